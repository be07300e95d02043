"""Source -> the documents of a shard, in the source's order."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from time import monotonic

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prep_assets.build import Build
from prep_assets.digest import Digests, shard_of_name, shards_of, to_arrow
from prep_assets.errors import SourceError
from prep_assets.formats.raw_partition import RawPartitionsWriter
from prep_assets.formats.source_index import FileEntry, read_digests
from prep_assets.payload import install, lock, scratch
from prep_assets.receipt import Receipt, Stage, write_receipt
from prep_assets.scan import content_by_identity, digests_of_batch, documents_of, list_source, split_by_shard
from prep_assets.sources.files import SourceFile

STAGE: Stage = "raw_dataset"
BUFFER_SIZE = 64 << 20  # bytes of text that wait in memory for their shard's file


def make_raw_partitions(build: Build, shards: Sequence[int]) -> Iterator[tuple[int, Receipt]]:
    """Makes what is stale of these shards in one pass over the source; gives each shard's receipt.

    Raises SourceError where a source file no longer holds the documents that the index says.
    """
    with lock(build.layout.lock("raw")):
        stale = [shard for shard in shards if not build.made(shard)[STAGE].is_fresh]
        if stale:
            _read_source(build, stale)
    for shard in shards:
        receipt = build.made(shard)[STAGE].receipt
        assert receipt is not None
        yield shard, receipt


def _read_source(build: Build, shards: Sequence[int]) -> None:
    """Writes the payloads of these shards."""
    begin = monotonic()
    payloads = {shard: build.made(shard)[STAGE].payload for shard in shards}
    with ExitStack() as folders:
        folder = {shard: folders.enter_context(scratch(payload)) for shard, payload in payloads.items() if payload}
        writer = RawPartitionsWriter(folder.__getitem__, build.recipe.dataset.keep_columns, BUFFER_SIZE)
        left_out: dict[int, Counter[str]] = {shard: Counter() for shard in shards}
        for shard in shards:
            writer.open(shard)
        sources = {file.name: file for file in list_source(build.recipe, build.layout).files}
        if build.index.shard_by == "file":
            for file in build.index.files:
                source = _find(sources, file)
                shard = shard_of_name(source.stem, len(build.index.shards))
                if shard in folder:
                    _read_whole_file(build, source, file, shard, writer, left_out[shard])
        else:
            for file in build.index.files:
                _read_shared_file(build, file, sources, shards, writer)
        for shard in shards:
            partition = writer.close(shard)
            expected = build.index.shards[shard]
            if expected.documents is not None and partition.content != expected.version:
                raise SourceError(
                    f"shard {shard}: its documents are not those of the index; run the same command again"
                )
            payload = payloads[shard]
            assert payload is not None
            receipt = Receipt(
                stage=STAGE,
                shard=shard,
                inputs=payload.name,
                content=partition.content,
                documents=partition.documents,
                bytes=partition.size,
                left_out=dict(left_out[shard]),
                seconds=monotonic() - begin,
            )
            write_receipt(folder[shard], receipt)
            install(folder[shard], payload)
            begin = monotonic()


def _find(sources: dict[str, SourceFile], entry: FileEntry) -> SourceFile:
    if entry.name not in sources:
        raise SourceError(f"{entry.name}: gone from the source since it was scanned; run the same command again")
    return sources[entry.name]


def _read_shared_file(
    build: Build,
    entry: FileEntry,
    sources: dict[str, SourceFile],
    shards: Sequence[int],
    writer: RawPartitionsWriter,
) -> None:
    """Deals a file's documents to those of the shards that they belong to, each compared with the index's digest."""
    indexed = _IndexedDocuments(build, entry, shards)
    if not indexed.wanted.any():
        return
    source, begin = _find(sources, entry), 0
    for batch, _ in documents_of(build.recipe, source, []):
        rows = batch.column("row").to_numpy()
        end = begin + len(batch)
        if not np.array_equal(rows, indexed.rows[begin:end]):
            raise _changed(source, rows, indexed.rows[begin:end])
        picked = np.flatnonzero(indexed.wanted[begin:end])
        if len(picked):
            documents = batch.take(pa.array(picked))
            digests, kept = digests_of_batch(documents)
            if not np.array_equal(digests, indexed.digests[begin:end][picked]):
                raise _changed(source, rows, indexed.rows[begin:end])
            _deal(build, documents, digests, kept, indexed.shards[begin:end][picked], writer)
        begin = end
    if begin != len(indexed.rows):
        raise _changed(source, indexed.rows[:begin], indexed.rows)


def _deal(
    build: Build,
    documents: pa.RecordBatch,
    digests: Digests,
    kept: Digests | None,
    shards: npt.NDArray[np.int64],
    writer: RawPartitionsWriter,
) -> None:
    for shard, rows in split_by_shard(shards):
        columns = [to_arrow(digests[rows]), *(column.take(pa.array(rows)) for column in documents.columns[1:])]
        part = pa.RecordBatch.from_arrays(columns, schema=writer.schema)
        writer.write(shard, digests[rows], None if kept is None else kept[rows], part)
        build.progress.advance(STAGE, shard, len(rows), 0)


class _IndexedDocuments:
    """What the index says of a file: rows, digests, the shard of each document, and whether that shard is wanted."""

    def __init__(self, build: Build, entry: FileEntry, shards: Sequence[int]) -> None:
        batches = list(read_digests(build.layout.index, entry, bool(build.recipe.dataset.keep_columns)))
        self.rows = np.concatenate([np.empty(0, np.int64), *(batch.rows for batch in batches)])
        self.digests = np.concatenate([np.empty((0, 16), np.uint8), *(batch.digests for batch in batches)])
        self.shards = shards_of(self.digests, len(build.index.shards))
        self.wanted = np.isin(self.shards, list(shards))


def _changed(source: SourceFile, found: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]) -> SourceError:
    at = f"from row {found[0]}" if len(found) else "at its end"
    return SourceError(
        f"{source.path}: changed since it was scanned ({at}: {len(found)} documents, the index says {len(expected)},"
        " or other text); run the same command again"
    )


def _read_whole_file(
    build: Build,
    source: SourceFile,
    entry: FileEntry,
    shard: int,
    writer: RawPartitionsWriter,
    left_out: Counter[str],
) -> None:
    """With shard_by: file, deals all documents of a file to its shard, and counts what is left out."""
    if content_by_identity(source) != entry.content:
        raise SourceError(f"{source.path}: changed since it was listed; run the same command again")
    bad_rows: list[tuple[int, str]] = []
    for batch, nulls in documents_of(build.recipe, source, bad_rows):
        left_out["null"] += nulls
        digests, kept = digests_of_batch(batch)
        _deal(build, batch, digests, kept, np.full(len(batch), shard, np.int64), writer)
    left_out["bad"] += len(bad_rows)
