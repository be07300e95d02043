"""Source index: what documents the source holds, file by file, and each shard's version.

`<folder>/<id>.json` is a summary; `<folder>/files/<content>.arrow` the rows and digests of one source file's documents,
named by a digest of just them; `<folder>/current` names the newest summary. None is ever changed once written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, NonNegativeInt, ValidationError

from prep_assets.arrow_stream import new_stream, read_stream
from prep_assets.digest import DIGEST, ContentDigest, Digests, from_arrow, to_arrow
from prep_assets.errors import DamagedFileError, NotReadyError
from prep_assets.payload import make_folder, write_file
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
    field: str
    keep_columns: tuple[str, ...]
    revision: str | None
    files: tuple[FileEntry, ...]
    shards: tuple[ShardEntry, ...]

    @property
    def id(self) -> str:
        return fingerprint(**self.model_dump(mode="json"))


class FileDocuments(NamedTuple):
    """A batch of a digest file. rows: (n,) int64 in the source file; digests, kept: (n, 16) uint8."""

    rows: npt.NDArray[np.int64]
    digests: Digests
    kept: Digests | None


def _schema(with_kept: bool) -> pa.Schema:
    kept = [pa.field("kept", DIGEST, nullable=False)] if with_kept else []
    return pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("digest", DIGEST, nullable=False), *kept])


class DigestFileWriter:
    """Appends the documents of one source file; `content` is their digest, null and bad rows not counted."""

    def __init__(self, writer: pa.ipc.RecordBatchStreamWriter, with_kept: bool) -> None:
        self._writer, self._schema = writer, _schema(with_kept)
        self._content = ContentDigest(3 if with_kept else 2)
        self.documents = 0

    @property
    def content(self) -> str:
        return self._content.hexdigest()

    def write(self, rows: npt.NDArray[np.int64], digests: Digests, kept: Digests | None) -> None:
        columns = [pa.array(rows, pa.int64()), to_arrow(digests), *([] if kept is None else [to_arrow(kept)])]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._content.update(rows.astype("<i8"), digests, *([] if kept is None else [kept]))
        self.documents += len(rows)


@contextmanager
def new_digest_file(path: Path, with_kept: bool) -> Iterator[DigestFileWriter]:
    """A writer of a digest file at path."""
    with new_stream(path, _schema(with_kept)) as writer:
        yield DigestFileWriter(writer, with_kept)


def digest_file(folder: Path, content: str) -> Path:
    return folder / "files" / f"{content}.arrow"


def read_digests(folder: Path, entry: FileEntry, with_kept: bool) -> Iterator[FileDocuments]:
    """The documents of one source file, batch by batch, in the file's order."""
    for batch in read_stream(digest_file(folder, entry.content), _schema(with_kept)):
        rows: npt.NDArray[Any] = batch.column(0).to_numpy()
        yield FileDocuments(rows, from_arrow(batch.column(1)), from_arrow(batch.column(2)) if with_kept else None)


def write_index(folder: Path, index: SourceIndex) -> None:
    """Keeps the index and makes it the current one."""
    path = make_folder(folder) / f"{index.id}.json"
    if not path.exists():
        write_file(path, index.model_dump_json(indent=1).encode())
    if current_id(folder) != index.id:
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
