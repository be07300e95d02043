"""Token partition: the token ids of one shard, one row for every document, an Arrow IPC stream `tokens.arrow`.

Columns: digest fixed_size_binary(16), tokens large_list<uint16 | int32> (empty where the text has no ids),
characters int64, then each kept column as large_string.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prep_assets.arrow_stream import new_stream, read_stream
from prep_assets.digest import DIGEST, SIZE, ContentDigest, Digests, digests_of_rows, from_arrow, to_arrow
from prep_assets.errors import DamagedFileError
from prep_assets.lookup import Lookup

FILE = "tokens.arrow"


class TokenizedDocuments(NamedTuple):
    """A batch of tokenized documents.

    digests: (n, 16) uint8; lengths: (n,) int64, in tokens; ids: (lengths.sum(),) of the partition's dtype;
    characters: (n,) int64, code points; kept: large_string columns of n rows.
    """

    digests: Digests
    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[Any]
    characters: npt.NDArray[np.int64]
    kept: list[pa.Array]


def token_schema(dtype: np.dtype[Any], keep_columns: Sequence[str]) -> pa.Schema:
    tokens = pa.large_list(pa.field("item", pa.from_numpy_dtype(dtype), nullable=False))
    columns = {"digest": DIGEST, "tokens": tokens, "characters": pa.int64()}
    kept = [pa.field(name, pa.large_string()) for name in keep_columns]
    return pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in columns.items()), *kept])


class _TokenContent:
    """Digest of all columns of a partition, whatever its batches."""

    def __init__(self, with_kept: bool) -> None:
        self._with_kept = with_kept
        self._digest = ContentDigest(5 if with_kept else 4)

    def update(self, batch: TokenizedDocuments) -> None:
        kept = [digests_of_rows(batch.kept)] if self._with_kept else []
        ids = batch.ids.astype(batch.ids.dtype.newbyteorder("<"), copy=False)
        self._digest.update(batch.digests, batch.lengths.astype("<i8"), ids, batch.characters.astype("<i8"), *kept)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class TokenPartitionWriter:
    """Writes one partition: `with TokenPartitionWriter(folder, dtype, keep) as partition: partition.write(batch)`."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], keep_columns: Sequence[str]) -> None:
        self.path, self._schema = folder / FILE, token_schema(dtype, keep_columns)
        self._content = _TokenContent(bool(keep_columns))
        self._digests: list[Digests] = []
        self.documents = self.tokens = 0

    def __enter__(self) -> Self:
        self._stream = new_stream(self.path, self._schema)
        self._writer = self._stream.__enter__()
        return self

    def write(self, batch: TokenizedDocuments) -> None:
        offsets = np.zeros(len(batch.lengths) + 1, np.int64)
        np.cumsum(batch.lengths, out=offsets[1:])
        kind = self._schema.field(1).type
        tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(batch.ids), type=kind)
        columns = [to_arrow(batch.digests), tokens, pa.array(batch.characters), *batch.kept]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._content.update(batch)
        self._digests.append(batch.digests)
        self.documents += len(batch.lengths)
        self.tokens += len(batch.ids)

    @property
    def content(self) -> str:
        """Digest of what was written, independent of its batches."""
        return self._content.hexdigest()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.__exit__(kind, error, trace)
        if error is None:
            Lookup.of(np.concatenate([np.empty((0, SIZE), np.uint8), *self._digests])).write(self.path.parent)


def read_token_partition(
    folder: Path, dtype: np.dtype[Any], keep_columns: Sequence[str], content: str
) -> Iterator[TokenizedDocuments]:
    """The documents of a partition, batch by batch; ids are views of the mapped file.

    Raises DamagedFileError at the end where the whole is not what its receipt says: use nothing before that.
    """
    path, total = folder / FILE, _TokenContent(bool(keep_columns))
    for batch in read_stream(path, token_schema(dtype, keep_columns)):
        offsets, ids = _tokens(batch)
        documents = TokenizedDocuments(
            from_arrow(batch.column(0)),
            np.diff(offsets),
            ids[offsets[0] : offsets[-1]],
            batch.column(2).to_numpy(),
            batch.columns[3:],
        )
        total.update(documents)
        yield documents
    if total.hexdigest() != content:
        raise DamagedFileError(f"{path}: content {total.hexdigest()}; its receipt says {content}")


def _tokens(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Offsets (n + 1,) of a batch's documents in ids, both views of the mapped file."""
    lists = batch.column(1)
    return lists.offsets.to_numpy(), lists.values.to_numpy()


class Segment(NamedTuple):
    """Documents whose ids lie one after another. offsets: (n + 1,) int64, into ids; digests: (n, 16) uint8."""

    digests: Digests
    offsets: npt.NDArray[np.int64]
    ids: npt.NDArray[Any]


def segments(folder: Path, dtype: np.dtype[Any], keep_columns: Sequence[str], content: str) -> list[Segment]:
    """A whole partition, to copy tokens from: views of the mapped file. All of it is read once and checked."""
    for _ in read_token_partition(folder, dtype, keep_columns, content):
        pass
    batches = read_stream(folder / FILE, token_schema(dtype, keep_columns))
    return [Segment(from_arrow(batch.column(0)), *_tokens(batch)) for batch in batches]
