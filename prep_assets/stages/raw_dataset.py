"""Source -> the documents of a shard, in the source's order. Only files that hold new documents are read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prep_assets.build import Build, damage_retires
from prep_assets.digest import digests_of, digests_of_rows, shard_of_name, shards_of, to_arrow
from prep_assets.errors import DamagedFileError, NotReadyError, SourceError
from prep_assets.formats.raw_partition import FormerPartition, RawPartitionsWriter, row_keys
from prep_assets.formats.source_index import FileDocuments, FileEntry, read_digests
from prep_assets.parallel import in_order
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
_NO_ROWS = np.empty(0, np.int64)


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


class _Portion(NamedTuple):
    """Some documents of one file. batch: as read, with all of them; None where they are known, all of them."""

    source: SourceFile | None
    documents: FileDocuments
    batch: pa.RecordBatch | None


class _Part(NamedTuple):
    """Documents of one shard, in order, on their way into its partition."""

    shard: int
    documents: FileDocuments
    batch: pa.RecordBatch
    reused: int


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
        begin, recipe = monotonic(), self._build.recipe
        with ExitStack() as folders:
            for shard in shards:
                self._made[shard] = self._begin(shard, folders)
                self._writer.open(shard)
            if self._build.index.shard_by == "file":
                for entry in self._build.index.files:
                    self._add_own_file(entry)
            else:
                dealt = in_order(self._deal, self._portions(), self._build.threads(recipe.loading_workers))
                for part in chain.from_iterable(dealt):
                    self._write(part)
            seconds = (monotonic() - begin) / len(shards)
            finish = partial(self._finish, seconds=seconds)
            for _ in in_order(finish, shards, self._build.threads(recipe.saving_workers)):
                pass

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

    def _portions(self) -> Iterator[_Portion]:
        """All documents of the source, file by file; read where one of a file is new."""
        for entry in self._build.index.files:
            indexed = Cursor(read_digests(self._build.layout.index, self._build.index, entry))
            if self._has_new(entry):
                source = self._source(entry)
                for batch, _ in documents_of(self._build.recipe, source, []):
                    if len(batch):
                        documents = indexed.take(len(batch))
                        if documents is None or not np.array_equal(documents.rows, batch.column(0).to_numpy()):
                            raise _changed(source)
                        yield _Portion(source, documents, batch)
                if indexed.take(1) is not None:
                    raise _changed(source)
            else:
                while (documents := indexed.take(ROWS)) is not None:
                    yield _Portion(None, documents, None)

    def _has_new(self, entry: FileEntry) -> bool:
        """Whether a file holds documents of these shards that no former partition has."""
        if all(made.former is None for made in self._made.values()):
            return True
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

    def _deal(self, portion: _Portion) -> list[_Part]:
        """A portion's documents by shard: copied where the former partition has them, or else as read.

        Runs on several threads.
        """
        source, documents, batch = portion
        if batch is not None and source is not None and not _same(describe(self._build.recipe, batch), documents):
            raise _changed(source)
        dealt = list(self._dealt(documents))
        new = [rows[known < 0] for _, rows, known in dealt]
        read = None if batch is None else self._as_written(documents, batch, np.concatenate([_NO_ROWS, *new]))
        parts, begin = [], 0
        for (shard, rows, known), new_rows in zip(dealt, new, strict=True):
            fresh = read.slice(begin, len(new_rows)) if read is not None else None
            begin += len(new_rows)
            parts.append(self._joined(shard, documents.select(rows), known, fresh))
        return parts

    def _as_written(
        self, documents: FileDocuments, batch: pa.RecordBatch, rows: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        """Rows of a batch with the columns of a partition."""
        columns = [to_arrow(documents.digests), *batch.columns[1 : len(self._writer.schema)]]
        whole = pa.RecordBatch.from_arrays(columns, schema=self._writer.schema)
        return whole if np.array_equal(rows, np.arange(len(batch))) else whole.take(pa.array(rows))

    def _joined(
        self, shard: int, part: FileDocuments, known: npt.NDArray[np.int64], read: pa.RecordBatch | None
    ) -> _Part:
        """Documents of one shard. read: those that are new; the others are copied from the former partition."""
        is_known = known >= 0
        if read is not None and not is_known.any():
            return _Part(shard, part, read, 0)
        former = self._made[shard].former
        assert former is not None
        table = former.take(known[is_known])
        with damage_retires(former.folder):
            _check_copied(table, part.select(is_known), former.folder)
        if read is not None and len(read):
            table = pa.concat_tables([pa.Table.from_batches([read]), table])
            order = np.argsort(np.argsort(is_known, kind="stable"), kind="stable")
            table = table.take(pa.array(order))
        [batch] = table.combine_chunks().to_batches()
        return _Part(shard, part, batch, int(is_known.sum()))

    def _write(self, part: _Part) -> None:
        self._writer.write(part.shard, part.documents.digests, part.documents.kept, part.batch)
        self._made[part.shard].reused += part.reused
        self._build.progress.advance(STAGE, part.shard, len(part.batch), 0)

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
            if stays.any():
                written = self._as_written(documents, batch, np.flatnonzero(stays))
                self._write(_Part(shard, documents.select(stays), written, 0))
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
