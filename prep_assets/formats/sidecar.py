"""Sidecar of a pair, `<prefix>.docs.parquet`: what each of its documents is, in the pair's order.

Columns: position int64 (index in the pair), digest fixed_size_binary(16), tokens int32 (length), characters int64, then
each kept column as large_string, under its own name, or as `column.<name>` where that is one of ours or begins with
`column.`. Row groups of ROW_GROUP documents.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from prep_assets.digest import DIGEST, NO_DIGESTS, SIZE, ContentDigest, Digests, digests_of_rows, from_arrow, to_arrow
from prep_assets.errors import DamagedFileError
from prep_assets.payload import create

ROW_GROUP = 65_536


class Sidecar(NamedTuple):
    """Columns of a sidecar. digests: (n, 16) uint8; tokens: (n,) int32; characters: (n,) int64; kept: n rows each."""

    digests: Digests
    tokens: npt.NDArray[np.int32]
    characters: npt.NDArray[np.int64]
    kept: Sequence[pa.Array]


def sidecar_schema(keep_columns: Sequence[str]) -> pa.Schema:
    columns = {"position": pa.int64(), "digest": DIGEST, "tokens": pa.int32(), "characters": pa.int64()}
    names = [f"column.{name}" if name in columns or name.startswith("column.") else name for name in keep_columns]
    kept = [pa.field(name, pa.large_string()) for name in names]
    return pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in columns.items()), *kept])


def _update(content: ContentDigest, part: Sidecar) -> None:
    kept = [digests_of_rows(part.kept)] if part.kept else []
    content.update(part.digests, part.tokens.astype("<i4"), part.characters.astype("<i8"), *kept)


class SidecarWriter:
    """Writes one sidecar: `with SidecarWriter(path, keep_columns) as sidecar: sidecar.write(part)`."""

    size: int  # bytes of the finished file

    def __init__(self, path: Path, keep_columns: Sequence[str]) -> None:
        self._path, self._schema = path, sidecar_schema(keep_columns)
        self._content = ContentDigest(4 if keep_columns else 3)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._rows = 0

    @property
    def digest(self) -> str:
        """Of the columns, never of Parquet's bytes, which change with the library."""
        return self._content.hexdigest()

    def __enter__(self) -> Self:
        self._stream = create(self._path)
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        return self

    def write(self, part: Sidecar) -> None:
        """Appends documents."""
        _update(self._content, part)
        positions = pa.array(np.arange(self._rows, self._rows + len(part.tokens)), pa.int64())
        columns: list[Any] = [positions, to_arrow(part.digests), pa.array(part.tokens), pa.array(part.characters)]
        self._waiting.append(pa.RecordBatch.from_arrays([*columns, *part.kept], schema=self._schema))
        self._rows += len(part.tokens)
        self._waiting_rows += len(part.tokens)
        if self._waiting_rows >= ROW_GROUP:
            self._flush(self._waiting_rows - self._waiting_rows % ROW_GROUP)

    def _flush(self, rows: int) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table.slice(0, rows), row_group_size=ROW_GROUP)
        self._waiting, self._waiting_rows = table.slice(rows).to_batches(), self._waiting_rows - rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._waiting_rows:
            self._flush(self._waiting_rows)
        self._writer.close()
        self._stream.close()
        self.size = self._path.stat().st_size


def read_digests_at(path: Path, positions: Sequence[int]) -> Digests:
    """The digests of a few documents. Raises DamagedFileError; only the row groups that hold them are read."""
    with _opened(path) as file:
        groups = [file.read_row_group(at // ROW_GROUP, columns=["digest"]) for at in positions]
    rows = [group.column("digest")[at % ROW_GROUP].as_py() for group, at in zip(groups, positions, strict=True)]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, SIZE)


def read_sidecar(path: Path, keep_columns: Sequence[str], digest: str | None = None) -> Sidecar:
    """A whole sidecar but for its kept columns, which are only checked; digest: what its columns must give.

    Raises DamagedFileError for a file that is missing, of other columns, damaged, or of another digest.
    """
    content = ContentDigest(4 if keep_columns else 3)
    parts = [Sidecar(NO_DIGESTS, np.empty(0, np.int32), np.empty(0, np.int64), ())]
    with _opened(path) as file:
        if not file.schema_arrow.equals(sidecar_schema(keep_columns)):
            expected = sidecar_schema(keep_columns).names
            raise DamagedFileError(f"{path}: columns {file.schema_arrow.names}; expected {expected}")
        for batch in file.iter_batches(ROW_GROUP):
            digests, tokens, characters = from_arrow(batch.column(1)), batch.column(2), batch.column(3)
            part = Sidecar(digests, tokens.to_numpy(), characters.to_numpy(), batch.columns[4:])
            _update(content, part)
            parts.append(part._replace(kept=()))
    if digest is not None and content.hexdigest() != digest:
        raise DamagedFileError(f"{path}: its columns have the digest {content.hexdigest()}; expected {digest}")
    return Sidecar(
        np.concatenate([part.digests for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.characters for part in parts]),
        (),
    )


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path}: missing") from error
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(f"{path}: damaged: {' '.join(str(error).split())[:200]}") from error
