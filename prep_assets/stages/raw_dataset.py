"""Source -> the documents of a shard, in the source's order. Only files that hold new documents are read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prep_assets.build import Build, damage_retires
from prep_assets.digest import digests_of, digests_of_rows, shard_of_name, shards_of, to_arrow
from prep_assets.errors import DamagedFileError, NotReadyError, SourceError
from prep_assets.formats.raw_partition import FormerPartition, RawPartitionsWriter, row_keys
from prep_assets.formats.source_index import FileDocuments, FileEntry, read_digests
from prep_assets.payload import install, lock, scratch
from prep_assets.receipt import Receipt, Stage, write_receipt
from prep_assets.scan import (
    Cursor,
    content_by_identity,
    describe,
    documents_of,
    exclusion_of,
    list_source,
    split_by_shard,
)
from prep_assets.sources.files import SourceFile, identity_of

STAGE: Stage = "raw_dataset"
BUFFER_SIZE = 64 << 20  # bytes of text that wait in memory for their shard's file
ROWS = 8192  # documents that are copied at once from former partitions


def make_raw_partitions(build: Build, shards: Sequence[int]) -> Iterator[tuple[int, Receipt]]:
    """Makes what is stale of these shards in one pass over the source; gives each shard's receipt.

    A pass for one shard serves every stale one: the runs of the others find theirs made.
    Raises SourceError where a source file no longer holds the documents that the index says.
    """
    by_document = build.index.shard_by == "document"
    # Shards of files share no pass: machines need not take turns.
    with lock(build.layout.lock("raw" if by_document else f"raw-{shards[0]}-{shards[-1]}")):
        if not all(build.made(shard)[STAGE].is_fresh for shard in shards):
            build.refuse_overtaken()  # what it goes by may be gone already
            serves_all = len(shards) == 1 and by_document
            wanted = range(build.num_shards) if serves_all else shards
            _Pass(build).make([shard for shard in wanted if not build.made(shard)[STAGE].is_fresh])
    for shard in shards:
        receipt = build.made(shard)[STAGE].receipt
        assert receipt is not None
        yield shard, receipt


@dataclass
class _Shard:
    """A partition that is being made. former: its newest payload, to copy documents from."""

    payload: Path
    made_from: dict[str, str]
    folder: Path
    former: FormerPartition | None
    left_out: Counter[str] = field(default_factory=Counter)
    reused: int = 0


class _Pass:
    """One pass over the source that makes the partitions of some shards."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._exclusion = exclusion_of(build.recipe)
        if self._exclusion.identity != build.index.excluded:
            raise NotReadyError(
                f"{build.recipe.dataset.exclude}: changed since the source was scanned; run the same command again"
            )
        source = list_source(build.recipe, build.layout, build.index.revision)
        self._sources = {file.name: file for file in source.files}
        self._made: dict[int, _Shard] = {}
        self._writer = RawPartitionsWriter(
            lambda shard: self._made[shard].folder, build.recipe.dataset.keep_columns, BUFFER_SIZE
        )

    def make(self, shards: Sequence[int]) -> None:
        """Writes the payloads of these shards."""
        begin = monotonic()
        with ExitStack() as folders:
            for shard in shards:
                self._made[shard] = self._begin(shard, folders)
                self._writer.open(shard)
            for entry in self._build.index.files:
                if self._build.index.shard_by == "file":
                    self._add_own_file(entry)
                else:
                    self._add_shared_file(entry)
            for shard in shards:
                self._finish(shard, monotonic() - begin)
                begin = monotonic()

    def _begin(self, shard: int, folders: ExitStack) -> _Shard:
        state = self._build.made(shard)[STAGE]
        made_from, payload = state.made_from, state.make_room()
        assert made_from is not None
        made = _Shard(payload, made_from, folders.enter_context(scratch(payload)), None)
        for former, receipt in self._build.former(STAGE, shard):
            if receipt.keep_columns == self._build.recipe.dataset.keep_columns:
                with damage_retires(former):
                    made.former = FormerPartition(former, receipt.keep_columns)
                break
        return made

    def _finish(self, shard: int, seconds: float) -> None:
        made, partition = self._made[shard], self._writer.close(shard)
        expected = self._build.index.shards[shard]
        if expected.documents is not None and partition.content != expected.version:
            raise SourceError(f"shard {shard}: its documents are not those of the index; run the same command again")
        receipt = Receipt(
            stage=STAGE,
            shard=shard,
            made_from=made.made_from,
            content=partition.content,
            documents=partition.documents,
            bytes=partition.size,
            left_out=dict(made.left_out),
            reused=made.reused,
            seconds=seconds,
        )
        write_receipt(made.folder, receipt)
        install(made.folder, made.payload)

    def _source(self, entry: FileEntry) -> SourceFile:
        if entry.name not in self._sources:
            raise SourceError(f"{entry.name}: gone from the source since it was scanned; run the same command again")
        return self._sources[entry.name]

    def _add_shared_file(self, entry: FileEntry) -> None:
        """Deals a file's documents to their shards: copied where the former partition has them, or else read."""
        if not self._has_new(entry):
            indexed = self._indexed(entry)
            while (documents := indexed.take(ROWS)) is not None:
                for shard, rows, known in self._dealt(documents):
                    self._write(shard, documents.select(rows), known, None)
            return
        source, indexed = self._source(entry), self._indexed(entry)
        for batch, _ in documents_of(self._build.recipe, source, []):
            if len(batch):
                documents = indexed.take(len(batch))
                if documents is None or not np.array_equal(documents.rows, batch.column(0).to_numpy()):
                    raise _changed(source)
                for shard, rows, known in self._dealt(documents):
                    read = batch.take(pa.array(rows[known < 0]))
                    if not _same(describe(self._build.recipe, read), documents.select(rows[known < 0])):
                        raise _changed(source)
                    self._write(shard, documents.select(rows), known, read)
        if indexed.take(1) is not None:
            raise _changed(source)

    def _indexed(self, entry: FileEntry) -> Cursor:
        return Cursor(read_digests(self._build.layout.index, self._build.index, entry))

    def _has_new(self, entry: FileEntry) -> bool:
        """Whether a file holds documents of these shards that no former partition has."""
        batches = read_digests(self._build.layout.index, self._build.index, entry)
        return any((known < 0).any() for documents in batches for _, _, known in self._dealt(documents))

    def _dealt(self, documents: FileDocuments) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """The rows of each wanted shard, and where each lies in the shard's former partition: -1 where it is new."""
        stays = np.flatnonzero(self._exclusion.keeps(documents.digests, documents.key))
        for shard, places in split_by_shard(shards_of(documents.digests[stays], self._build.num_shards)):
            if made := self._made.get(shard):
                rows = stays[places]
                part = documents.select(rows)
                keys = row_keys(part.digests, part.kept)
                yield shard, rows, made.former.find(keys) if made.former else np.full(len(rows), -1, np.int64)

    def _write(
        self, shard: int, part: FileDocuments, known: npt.NDArray[np.int64], read: pa.RecordBatch | None
    ) -> None:
        """Appends documents to a shard. read: those that are new, from the source; the others are copied."""
        made, is_known = self._made[shard], known >= 0
        table = self._writer.schema.empty_table()
        if read is not None:
            columns = [to_arrow(part.digests[~is_known]), *read.columns[1 : len(self._writer.schema)]]
            table = pa.Table.from_arrays(columns, schema=self._writer.schema)
        if is_known.any():
            assert made.former is not None
            copied = made.former.take(known[is_known])
            with damage_retires(made.former.folder):
                _check_copied(copied, part.select(is_known), made.former.folder)
            table = pa.concat_tables([table, copied])
            order = np.argsort(np.argsort(is_known, kind="stable"), kind="stable")
            table = table.take(pa.array(order))
            made.reused += int(is_known.sum())
        [batch] = table.combine_chunks().to_batches()
        self._writer.write(shard, part.digests, part.kept, batch)
        self._build.progress.advance(STAGE, shard, len(known), 0)

    def _add_own_file(self, entry: FileEntry) -> None:
        """With shard_by: file, appends all documents of a file to its shard, and counts what is left out."""
        source = self._source(entry)
        shard = shard_of_name(source.stem, self._build.num_shards)
        if shard not in self._made:
            return
        if content_by_identity(source) != entry.content:
            raise _changed(source)
        left_out, bad_rows = self._made[shard].left_out, list[tuple[int, str]]()
        for batch, nulls in documents_of(self._build.recipe, source, bad_rows):
            documents = describe(self._build.recipe, batch)
            stays = self._exclusion.keeps(documents.digests, documents.key)
            left_out.update({"null": nulls, "excluded": len(stays) - int(stays.sum())})
            part = documents.select(stays)
            if len(part.rows):
                self._write(shard, part, np.full(len(part.rows), -1, np.int64), batch.filter(pa.array(stays)))
        left_out["bad"] += len(bad_rows)
        if not source.identity.startswith("blob:") and identity_of(source.path) != source.identity:
            raise _changed(source)


def _same(found: FileDocuments, expected: FileDocuments) -> bool:
    pairs = ((found.digests, expected.digests), (found.kept, expected.kept))
    return all(one is None or other is None or np.array_equal(one, other) for one, other in pairs)


def _changed(source: SourceFile) -> SourceError:
    return SourceError(
        f"{source.path}: changed since it was scanned, and holds other documents; run the same command again"
    )


def _check_copied(copied: pa.Table, expected: FileDocuments, payload: Path) -> None:
    """Raises DamagedFileError where a former partition gave other documents than it should have."""
    batch = copied.combine_chunks()
    texts = batch.column(1).combine_chunks()
    kept = [column.combine_chunks() for column in batch.columns[2:]]
    if not np.array_equal(digests_of(texts), expected.digests) or (
        expected.kept is not None and not np.array_equal(digests_of_rows(kept), expected.kept)
    ):
        raise DamagedFileError(f"{payload}: a text in it is not what its digest says")
