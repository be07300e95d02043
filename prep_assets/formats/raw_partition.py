"""Raw partition: the documents of one shard in the source's order: an Arrow IPC stream `documents.arrow`, a lookup.

Columns: digest fixed_size_binary(16) of the text, text large_string, then each kept column as large_string.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prep_assets.arrow_stream import END, read_stream
from prep_assets.digest import DIGEST, SIZE, ContentDigest, Digests, digests_of, digests_of_rows, from_arrow
from prep_assets.errors import DamagedFileError
from prep_assets.lookup import Lookup
from prep_assets.payload import append

FILE = "documents.arrow"


def raw_schema(keep_columns: Sequence[str]) -> pa.Schema:
    kept = [pa.field(name, pa.large_string()) for name in keep_columns]
    return pa.schema(
        [pa.field("digest", DIGEST, nullable=False), pa.field("text", pa.large_string(), nullable=False), *kept]
    )


class Partition(NamedTuple):
    """What was written for one shard; content: digest of digests and kept columns, as the source index has it."""

    content: str
    documents: int
    size: int  # bytes of the file


class RawPartitionsWriter:
    """Writes the partitions of many shards side by side, in bounded memory and with one open file at a time.

    A partition's batches collect in memory until all of them together exceed `buffer_size` bytes of text; then each is
    appended to its file, which is open only meanwhile: the number of shards costs neither open files nor memory.
    """

    def __init__(self, folder: Callable[[int], Path], keep_columns: Sequence[str], buffer_size: int) -> None:
        self._folder, self.schema, self._limit = folder, raw_schema(keep_columns), buffer_size
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._waiting_size = 0
        self._content: dict[int, ContentDigest] = {}
        self._documents: dict[int, int] = {}

    def open(self, shard: int) -> None:
        """Begins the partition of a shard, which may stay empty."""
        self._waiting[shard] = []
        self._content[shard] = ContentDigest(1 if len(self.schema) == 2 else 2)
        self._documents[shard] = 0
        append(self._folder(shard) / FILE, [memoryview(self.schema.serialize())])

    def write(self, shard: int, digests: Digests, kept: Digests | None, batch: pa.RecordBatch) -> None:
        """Appends documents. digests: of batch's texts; kept: of its kept columns, None where there are none."""
        self._content[shard].update(digests, *([] if kept is None else [kept]))
        self._documents[shard] += len(batch)
        self._waiting[shard].append(batch)
        self._waiting_size += batch.nbytes
        if self._waiting_size > self._limit:
            for waiting in self._waiting:
                self._flush(waiting)
            self._waiting_size = 0

    def _flush(self, shard: int) -> None:
        if batches := self._waiting[shard]:
            joined = pa.Table.from_batches(batches, self.schema).combine_chunks().to_batches()
            append(self._folder(shard) / FILE, [memoryview(batch.serialize()) for batch in joined])
            self._waiting[shard] = []

    def close(self, shard: int) -> Partition:
        """Ends the partition of a shard and writes its lookup."""
        self._flush(shard)
        path = self._folder(shard) / FILE
        append(path, [memoryview(END)])
        keys = [_keys(batch) for batch in read_stream(path, self.schema, check_all=False)]
        Lookup.of(np.concatenate([np.empty((0, SIZE), np.uint8), *keys])).write(path.parent)
        return Partition(self._content[shard].hexdigest(), self._documents[shard], path.stat().st_size)


def row_keys(digests: Digests, kept: Digests | None) -> Digests:
    """What a document is found by: its text, and its kept columns where there are any."""
    return digests if kept is None else digests ^ kept


def _keys(batch: pa.RecordBatch) -> Digests:
    kept = batch.columns[2:]
    return row_keys(from_arrow(batch.column(0)), digests_of_rows(kept) if kept else None)


class FormerPartition:
    """A partition that was made before, to copy documents from; nothing but the map is in memory."""

    def __init__(self, folder: Path, keep_columns: Sequence[str]) -> None:
        self.folder, self._schema = folder, raw_schema(keep_columns)
        self._batches = list(read_stream(folder / FILE, self._schema))
        self._begins = np.cumsum([0, *map(len, self._batches)])
        self._lookup = Lookup.read(folder, int(self._begins[-1]))

    def find(self, keys: Digests) -> npt.NDArray[np.int64]:
        """Position of each document, by row_keys; -1 where it is not there."""
        return self._lookup.find(keys)

    def take(self, positions: npt.NDArray[np.int64]) -> pa.Table:
        """The documents at these positions, in that order. What damage changed shows in their digests."""
        batches = np.searchsorted(self._begins, positions, side="right") - 1
        order = np.argsort(batches, kind="stable")
        parts = [
            self._batches[batch].take(pa.array(positions[batches == batch] - self._begins[batch]))
            for batch in np.unique(batches).tolist()
        ]
        return pa.Table.from_batches(parts, self._schema).take(pa.array(np.argsort(order)))


def find_texts(folder: Path, keep_columns: Sequence[str], digests: Digests) -> dict[bytes, str]:
    """Texts of a few documents, by digest. Of the partition only its digests and these texts are read.

    Raises DamagedFileError where a text is not what its digest says.
    """
    path, found = folder / FILE, dict[bytes, str]()
    for batch in read_stream(path, raw_schema(keep_columns), check_all=False):
        present = from_arrow(batch.column(0))
        for digest in digests:
            for at in np.flatnonzero((present == digest).all(axis=1))[:1].tolist():
                row = batch.column(1).slice(at, 1)
                row.validate(full=True)
                if not np.array_equal(digests_of(row)[0], digest):
                    raise DamagedFileError(
                        f"{path}: the text of document {digest.tobytes().hex()} is not that of its digest"
                    )
                found[digest.tobytes()] = row[0].as_py()
    return found


class Documents(NamedTuple):
    """A batch of documents. digests: (n, 16) uint8; texts: large_string without nulls; kept: a column each."""

    digests: Digests
    texts: pa.LargeStringArray
    kept: list[pa.Array]


def read_raw_partition(folder: Path, keep_columns: Sequence[str], content: str) -> Iterator[Documents]:
    """The documents of a shard, each text compared with its digest while it is read.

    Raises DamagedFileError where a text, or at the end the whole, is not what its digest says.
    """
    path, total = folder / FILE, ContentDigest(2 if keep_columns else 1)
    for batch in read_stream(path, raw_schema(keep_columns)):
        digests, texts, kept = from_arrow(batch.column(0)), batch.column(1), batch.columns[2:]
        assert isinstance(texts, pa.LargeStringArray)
        found = digests_of(texts)
        if not np.array_equal(found, digests):
            wrong = digests[int(np.argmax((found != digests).any(axis=1)))].tobytes().hex()
            raise DamagedFileError(f"{path}: the text of document {wrong} is not what its digest says")
        total.update(digests, *([digests_of_rows(kept)] if keep_columns else []))
        yield Documents(digests, texts, kept)
    if total.hexdigest() != content:
        raise DamagedFileError(f"{path}: content {total.hexdigest()}; its receipt says {content}")
