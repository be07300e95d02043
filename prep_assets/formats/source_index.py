"""Source index: what documents the source holds, file by file, and each shard's version.

`<folder>/<id>.json` is a summary; `<folder>/files/<content>.arrow` the rows and digests of one source file's documents,
named by a digest of just them; `<folder>/current` names the newest summary. None is ever changed once written.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, NonNegativeInt, ValidationError

from prep_assets.arrow_stream import new_stream, read_stream
from prep_assets.digest import DIGEST, ContentDigest, Digests, from_arrow, to_arrow
from prep_assets.errors import DamagedFileError, NotReadyError
from prep_assets.payload import make_folder, retire, write_file
from prep_assets.receipt import fingerprint


class FileEntry(BaseModel, frozen=True, extra="forbid"):
    """One source file as it was read: content names its digest file; text_size in bytes of UTF-8.

    With shard_by: file nothing is read: content is the digest of name and identity, and documents are not known.
    """

    name: str
    content: str
    documents: NonNegativeInt | None
    null_rows: NonNegativeInt = 0
    bad_rows: tuple[tuple[NonNegativeInt, str], ...] = ()  # row in the file, cause
    text_size: NonNegativeInt


class ShardEntry(BaseModel, frozen=True, extra="forbid"):
    """version: digest of the shard's documents in order, whatever their files (shard_by: file: of its files)."""

    version: str
    documents: NonNegativeInt | None


class SourceIndex(BaseModel, frozen=True, extra="forbid"):
    """What the source held at one scan."""

    shard_by: Literal["document", "file"]
    reading: str  # fingerprint of the options that decide what documents a file gives
    keep_columns: tuple[str, ...]
    exclude_column: str | None = None
    excluded: str | None = None  # digest of the list of excluded documents
    revision: str | None
    files: tuple[FileEntry, ...]
    shards: tuple[ShardEntry, ...]
    excluded_documents: NonNegativeInt = 0

    @property
    def id(self) -> str:
        return fingerprint(**self.model_dump(mode="json"))


class FileDocuments(NamedTuple):
    """Documents of a source file. rows: (n,) int64 in the file; digests, kept, key: (n, 16) uint8.

    kept: of the kept columns, key: of the column that exclusion goes by; None where the recipe has none.
    """

    rows: npt.NDArray[np.int64]
    digests: Digests
    kept: Digests | None
    key: Digests | None

    @classmethod
    def concatenated(cls, parts: Sequence["FileDocuments"]) -> "FileDocuments":
        """Several batches as one."""
        columns: list[Any] = [
            None if column[0] is None else np.concatenate(column) for column in zip(*parts, strict=True)
        ]
        return cls(*columns)

    def select(self, rows: Any) -> "FileDocuments":
        """The documents at these places: a slice, indices or a mask."""
        kept, key = (None if column is None else column[rows] for column in (self.kept, self.key))
        return FileDocuments(self.rows[rows], self.digests[rows], kept, key)


def _schema(with_kept: bool, with_key: bool) -> pa.Schema:
    names = ["digest", *["kept"] * with_kept, *["key"] * with_key]
    columns = [pa.field(name, DIGEST, nullable=False) for name in names]
    return pa.schema([pa.field("row", pa.int64(), nullable=False), *columns])


class DigestFileWriter:
    """Appends the documents of one source file; `content` is their digest, null and bad rows not counted."""

    def __init__(self, path: Path, with_kept: bool, with_key: bool) -> None:
        self._path, self._schema = path, _schema(with_kept, with_key)
        self._content = ContentDigest(len(self._schema))
        self.documents = 0

    @property
    def content(self) -> str:
        return self._content.hexdigest()

    def __enter__(self) -> Self:
        self._stream = new_stream(self._path, self._schema)
        self._writer = self._stream.__enter__()
        return self

    def write(self, documents: FileDocuments) -> None:
        digests = [column for column in (documents.digests, documents.kept, documents.key) if column is not None]
        columns = [pa.array(documents.rows, pa.int64()), *map(to_arrow, digests)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._content.update(documents.rows.astype("<i8"), *digests)
        self.documents += len(documents.rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.__exit__(kind, error, trace)


def digest_file(folder: Path, content: str) -> Path:
    return folder / "files" / f"{content}.arrow"


def read_digests(folder: Path, index: SourceIndex, entry: FileEntry) -> Iterator[FileDocuments]:
    """The documents of one source file, batch by batch, in the file's order.

    Raises DamagedFileError, and puts the file away, where its digests are not those of its name: the next scan then
    reads the source file again.
    """
    with_kept, with_key = bool(index.keep_columns), index.exclude_column is not None
    path, schema = digest_file(folder, entry.content), _schema(with_kept, with_key)
    content = ContentDigest(len(schema))
    try:
        for batch in read_stream(path, schema):
            rows, digests = batch.column(0).to_numpy(), [from_arrow(column) for column in batch.columns[1:]]
            content.update(rows.astype("<i8"), *digests)
            kept, key = digests[1] if with_kept else None, digests[-1] if with_key else None
            yield FileDocuments(rows, digests[0], kept, key)
        if content.hexdigest() != entry.content:
            raise DamagedFileError(f"{path}: its digests are not those of its name")
    except DamagedFileError as error:
        retire(path)
        raise DamagedFileError(f"{error}; the same command reads {entry.name} again") from error


def place_of(folder: Path, index: SourceIndex, digest: Digests) -> str:
    """Where the source has a document, for messages: file and row, or its digest where the index holds no rows."""
    for entry in index.files if index.shard_by == "document" else ():
        for documents in read_digests(folder, index, entry):
            for row in documents.rows[(documents.digests == digest).all(axis=1)][:1]:
                return f"{entry.name}, row {row} (from 0)"
    return f"document {digest.tobytes().hex()}"


def write_index(folder: Path, index: SourceIndex, *, make_current: bool = True) -> None:
    """Keeps the index, and makes it the current one."""
    path, data = make_folder(folder) / f"{index.id}.json", index.model_dump_json(indent=1).encode()
    if not path.exists() or path.read_bytes() != data:
        write_file(path, data)
    if make_current and current_id(folder) != index.id:
        write_file(folder / "current", index.id.encode())


def current_id(folder: Path) -> str | None:
    """The id of the newest index; None where the source was never scanned."""
    try:
        return (folder / "current").read_text()
    except FileNotFoundError:
        return None


def read_index(folder: Path, identifier: str) -> SourceIndex:
    """The index of this id. Raises DamagedFileError where it is not what it was when written."""
    path = folder / f"{identifier}.json"
    try:
        index = SourceIndex.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NotReadyError(f"{path}: missing; materialize raw_dataset, which scans the source") from error
    except ValidationError as error:
        raise DamagedFileError(f"{path}: not a source index ({error.error_count()} faults); remove it") from error
    if index.id != identifier:
        raise DamagedFileError(f"{path}: its content has the id {index.id}; remove it")
    return index


class Known(BaseModel, frozen=True, extra="forbid"):
    """What reading a file once told. is_settled: the identity could not have stayed the same over a later change."""

    identity: str
    is_settled: bool
    entry: FileEntry


class Identities(BaseModel, frozen=True, extra="forbid"):
    """Which files were read, by name, under which options (reading). Saves reading, and enters no fingerprint."""

    reading: str
    files: dict[str, Known]


def read_identities(folder: Path, reading: str) -> dict[str, Known]:
    """What is known of files that were read under these options; nothing where the cache cannot be used."""
    try:
        found = Identities.model_validate_json((folder / "identities.json").read_bytes())
    except (FileNotFoundError, ValidationError):  # it only saves reading: without it, files are read
        return {}
    return found.files if found.reading == reading else {}


def write_identities(folder: Path, identities: Identities) -> None:
    write_file(folder / "identities.json", identities.model_dump_json().encode())
