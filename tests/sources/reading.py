"""What the tests of the readers share: a file of these bytes, and what is read from it."""

from collections.abc import Sequence
from pathlib import Path

from prep_assets.sources.files import SourceFile, list_files
from prep_assets.sources.read import BadRow, read_documents

Skipped = list[tuple[int, str, str]]  # row, where, cause


def make(folder: Path, name: str, data: bytes | str) -> SourceFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return listed(path)


def listed(path: Path) -> SourceFile:
    (file,) = list_files(str(path), path.parent, None, None).files
    return file


def texts(file: SourceFile, field: str = "text") -> list[str | None]:
    return [text for _, text in rows(file, field)]


def rows(file: SourceFile, field: str = "text", keep: Sequence[str] = ()) -> list[tuple]:
    """(row, text, kept columns...) of every row, in Python values; each batch is checked in full."""
    return _rows(file, field, keep, None)


def skipping(file: SourceFile, field: str = "text", keep: Sequence[str] = ()) -> tuple[list[tuple], Skipped]:
    bad: list[BadRow] = []
    found = _rows(file, field, keep, bad.append)
    assert all(row.file == file.name for row in bad)
    return found, [(row.row, row.where, row.cause) for row in bad]


def _rows(file, field, keep, on_bad_row):
    found = []
    for batch in read_documents(file, field, keep, on_bad_row):
        batch.validate(full=True)
        assert [str(kind) for kind in batch.schema.types] == ["int64", *["large_string"] * (1 + len(keep))]
        assert 0 < len(batch) <= 8192
        found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found
