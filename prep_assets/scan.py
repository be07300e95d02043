"""Scan: the source -> the source index. Reads only files whose identity changed, several at once."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import time_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.cpus import available_cpus
from prep_assets.digest import ContentDigest, digests_of, digests_of_rows, shard_of_name, shards_of
from prep_assets.errors import DamagedFileError, NotReadyError, SourceError
from prep_assets.exclusion import Exclusion, load_exclusion
from prep_assets.formats.source_index import (
    DigestFileWriter,
    FileDocuments,
    FileEntry,
    Identities,
    Known,
    ShardEntry,
    SourceIndex,
    current_id,
    digest_file,
    read_digests,
    read_identities,
    read_index,
    write_identities,
    write_index,
)
from prep_assets.layout import Layout
from prep_assets.payload import install_file, make_folder, scratch
from prep_assets.receipt import fingerprint
from prep_assets.recipe import Recipe
from prep_assets.sources.files import Source, SourceFile, is_local, is_settled, list_files
from prep_assets.sources.read import BadRow, read_documents

READER_VERSION = "1"  # raised when a reader gives other documents for the same bytes


def list_source(recipe: Recipe, layout: Layout, revision: str | None = None) -> Source:
    """The files of the recipe's source; those of a hub dataset are downloaded first, once whoever asks.

    revision: the hub's commit that an index was made of; None: what the recipe names now.
    """
    dataset = recipe.dataset
    if is_local(dataset.name_or_path, recipe.base):
        return list_files(dataset.name_or_path, recipe.base, _data_files(recipe), dataset.split)
    from prep_assets.sources import hub  # importing its client takes a second

    asked = _of_hub(recipe, layout)
    asked["revision"] = revision or asked["revision"]
    return hub.fetch(dataset.name_or_path, **asked, workers=recipe.loading_workers)


def list_what_is_here(recipe: Recipe, layout: Layout) -> Source | None:
    """The same files without a download; None where something has to be downloaded first."""
    if is_local(recipe.dataset.name_or_path, recipe.base):
        return list_source(recipe, layout)
    from prep_assets.sources import hub  # importing its client takes a second

    found = hub.resolve(recipe.dataset.name_or_path, **_of_hub(recipe, layout))
    return found.source() if found.is_here else None


def _data_files(recipe: Recipe) -> list[str] | None:
    named = recipe.dataset.data_files
    return [named] if isinstance(named, str) else named


def _of_hub(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    dataset = recipe.dataset
    return {
        "config_name": dataset.config_name,
        "revision": dataset.revision,
        "split": dataset.split or "train",
        "data_files": _data_files(recipe),
        "downloads": layout.downloads,
    }


def scan(
    recipe: Recipe,
    layout: Layout,
    source: Source,
    read: Callable[[int], None] = lambda documents: None,
    *,
    rescan: bool = False,
    make_current: bool = True,
) -> SourceIndex:
    """The index of what the source holds now, kept as the current one unless make_current is False: for who only looks.

    read: told of documents as they are read; rescan: read every file, whatever is known of it.
    Raises SourceError, naming file and row, for a source that cannot be used.
    """

    def look() -> SourceIndex:
        by_file = recipe.dataset.shard_by == "file"
        files = _unread_entries(source) if by_file else _read_changed_files(recipe, layout, source, read, rescan)
        return _with_shards(recipe, layout, source, _without_shards(recipe, source, files), exclusion_of(recipe))

    for _ in source.files:
        with suppress(DamagedFileError):  # what we knew of a source file is damaged, and put away: it is read again
            index = look()
            break
    else:
        index = look()
    write_index(layout.index, index, make_current=make_current)
    return index


def scanned(recipe: Recipe, layout: Layout, source: Source) -> SourceIndex | None:
    """The current index, if it is what a scan would find now; None where it must look. Reads listings alone."""
    if recipe.dataset.shard_by == "file":
        return _if_current(recipe, layout, _without_shards(recipe, source, _unread_entries(source)))
    known = read_identities(layout.index, reading_of(recipe))
    if not all(_is_known(layout, known.get(file.name), file) for file in source.files):
        return None
    return _if_current(
        recipe, layout, _without_shards(recipe, source, [known[file.name].entry for file in source.files])
    )


def _unread_entries(source: Source) -> list[FileEntry]:
    return [
        FileEntry(name=file.name, content=content_by_identity(file), documents=None, text_size=file.size)
        for file in source.files
    ]


def _without_shards(recipe: Recipe, source: Source, files: Sequence[FileEntry]) -> SourceIndex:
    return SourceIndex(
        shard_by=recipe.dataset.shard_by,
        reading=reading_of(recipe),
        keep_columns=tuple(recipe.dataset.keep_columns),
        exclude_column=recipe.dataset.exclude_column,
        excluded=exclusion_of(recipe).identity,
        revision=source.revision,
        files=tuple(files),
        shards=(),
    )


def _if_current(recipe: Recipe, layout: Layout, index: SourceIndex) -> SourceIndex | None:
    """The current index, where it is this one with its shards."""
    if (current := current_id(layout.index)) is None:
        return None
    try:
        former = read_index(layout.index, current)
    except (NotReadyError, DamagedFileError):  # it would only save work, and is written anew
        return None
    is_same = former.model_copy(update={"shards": (), "excluded_documents": 0}) == index
    return former if is_same and len(former.shards) == recipe.num_shards else None


def unread_files(recipe: Recipe, layout: Layout, source: Source) -> list[SourceFile]:
    """The files that a scan would read: those whose identity changed. Looks at listings alone."""
    known = read_identities(layout.index, reading_of(recipe))
    return [file for file in source.files if not _is_known(layout, known.get(file.name), file)]


def exclusion_of(recipe: Recipe) -> Exclusion:
    """The documents that the recipe leaves out."""
    return load_exclusion(recipe.exclude_path, recipe.dataset.exclude_column)


def reading_of(recipe: Recipe) -> str:
    """Fingerprint of the options that decide what documents a file gives."""
    dataset = recipe.dataset
    return fingerprint(
        code=READER_VERSION,
        field=dataset.field,
        keep_columns=dataset.keep_columns,
        exclude_column=dataset.exclude_column,
        on_bad_row=dataset.on_bad_row,
    )


def _is_known(layout: Layout, known: Known | None, file: SourceFile) -> bool:
    return (
        known is not None
        and known.is_settled
        and known.identity == file.identity
        and digest_file(layout.index, known.entry.content).exists()
    )


def _read_changed_files(
    recipe: Recipe, layout: Layout, source: Source, read: Callable[[int], None], rescan: bool
) -> list[FileEntry]:
    reading = reading_of(recipe)
    known = {} if rescan else read_identities(layout.index, reading)
    found = {file.name: known[file.name] for file in source.files if _is_known(layout, known.get(file.name), file)}
    changed = [file for file in source.files if file.name not in found]

    def know(file: SourceFile) -> Known:
        began = time_ns()
        entry = _read_file(recipe, layout, file, read)
        return Known(identity=file.identity, is_settled=is_settled(file.identity, began), entry=entry)

    try:
        with ThreadPoolExecutor(min(recipe.loading_workers, available_cpus())) as pool:
            for file, told in zip(changed, pool.map(know, changed), strict=True):
                found[file.name] = told
    finally:  # also of a scan that ends at a bad row: what it read is not read again
        if changed or found.keys() != known.keys():
            write_identities(layout.index, Identities(reading=reading, files=found))
    return [found[file.name].entry for file in source.files]


def _read_file(recipe: Recipe, layout: Layout, file: SourceFile, read: Callable[[int], None]) -> FileEntry:
    bad_rows: list[tuple[int, str]] = []
    null_rows = text_size = 0
    path = make_folder(layout.index / "files") / "digests"
    with scratch(path) as folder:
        with DigestFileWriter(
            folder / "digests.arrow", bool(recipe.dataset.keep_columns), recipe.dataset.exclude_column is not None
        ) as digests:
            for batch, nulls in documents_of(recipe, file, bad_rows):
                null_rows += nulls
                text_size += int(pc.sum(pc.binary_length(batch.column(1))).as_py() or 0)
                digests.write(describe(recipe, batch))
                read(len(batch))
        install_file(folder / "digests.arrow", digest_file(layout.index, digests.content))
    return FileEntry(
        name=file.name,
        content=digests.content,
        documents=digests.documents,
        null_rows=null_rows,
        bad_rows=tuple(bad_rows),
        text_size=text_size,
    )


def documents_of(
    recipe: Recipe, file: SourceFile, bad_rows: list[tuple[int, str]]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The documents of one source file in batches, with how many null rows were left out of each.

    Columns by position: row, text, the kept columns, then the column that exclusion goes by, if any.
    Bad rows end in a SourceError, or with on_bad_row: skip in bad_rows, as (row, cause).
    """
    dataset = recipe.dataset

    def skip(bad: BadRow) -> None:
        bad_rows.append((bad.row, bad.cause))

    on_bad_row = skip if dataset.on_bad_row == "skip" else None
    columns = [*dataset.keep_columns, *([dataset.exclude_column] if dataset.exclude_column else [])]
    for batch in read_documents(file, dataset.field, columns, on_bad_row):
        nulls = batch.column(1).null_count
        yield (batch.filter(pc.is_valid(batch.column(1))) if nulls else batch), nulls


def describe(recipe: Recipe, batch: pa.RecordBatch) -> FileDocuments:
    """What the index says of a batch of documents_of."""
    kept = batch.columns[2 : 2 + len(recipe.dataset.keep_columns)]
    return FileDocuments(
        rows=batch.column(0).to_numpy(),
        digests=digests_of(batch.column(1)),
        kept=digests_of_rows(kept) if kept else None,
        key=digests_of_rows([batch.columns[-1]]) if recipe.dataset.exclude_column else None,
    )


def _with_shards(
    recipe: Recipe, layout: Layout, source: Source, index: SourceIndex, exclusion: Exclusion
) -> SourceIndex:
    """The index with its shards' versions; where nothing changed since the current one, that one, nothing read."""
    if index.shard_by == "file":
        return index.model_copy(update={"shards": _shards_of_files(source, recipe.num_shards, index)})
    if (current := _if_current(recipe, layout, index)) is not None:
        return current
    contents = [ContentDigest(2 if index.keep_columns else 1) for _ in range(recipe.num_shards)]
    documents = np.zeros(recipe.num_shards, np.int64)
    excluded = 0
    for file in index.files:
        for batch in read_digests(layout.index, index, file):
            stays = exclusion.keeps(batch.digests, batch.key)
            excluded += len(stays) - int(stays.sum())
            kept = batch.select(stays)
            shards = shards_of(kept.digests, recipe.num_shards)
            for shard, rows in split_by_shard(shards):
                part = kept.select(rows)
                contents[shard].update(part.digests, *([] if part.kept is None else [part.kept]))
            documents += np.bincount(shards, minlength=recipe.num_shards)
    if not documents.any():
        raise SourceError(
            f"{recipe.dataset.name_or_path}: no documents in its {len(index.files)} files"
            f" ({sum(file.null_rows for file in index.files)} rows whose text is null, {excluded} excluded documents)"
        )
    counted = zip(contents, documents.tolist(), strict=True)
    shard_entries = tuple(ShardEntry(version=content.hexdigest(), documents=count) for content, count in counted)
    return index.model_copy(update={"shards": shard_entries, "excluded_documents": excluded})


def split_by_shard(shards: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """The rows of each shard, in order. shards: (n,), the shard of each row."""
    order = np.argsort(shards, kind="stable")
    present, begins = np.unique(shards[order], return_index=True)
    ends = np.append(begins, len(order))[1:]
    for shard, begin, end in zip(present.tolist(), begins, ends, strict=True):
        yield shard, order[begin:end]


def content_by_identity(file: SourceFile) -> str:
    """With shard_by: file, what stands for a file's content: its name without compression suffix, and its identity."""
    return fingerprint(name=file.stem, identity=file.identity)


def _shards_of_files(source: Source, num_shards: int, index: SourceIndex) -> tuple[ShardEntry, ...]:
    contents: list[list[str]] = [[] for _ in range(num_shards)]
    for file in source.files:
        contents[shard_of_name(file.stem, num_shards)].append(content_by_identity(file))
    versions = (fingerprint(files=files, reading=index.reading, excluded=index.excluded) for files in contents)
    return tuple(ShardEntry(version=version, documents=None) for version in versions)


class Cursor:
    """Documents of one file, taken in order in any portions, whatever batches they lie in."""

    def __init__(self, batches: Iterator[FileDocuments]) -> None:
        self._batches = batches
        self._rest: list[FileDocuments] = []

    def take(self, count: int) -> FileDocuments | None:
        """The next documents; fewer where the file ends, None at its end."""
        while sum(len(part.rows) for part in self._rest) < count and (part := next(self._batches, None)) is not None:
            self._rest += [part] if len(part.rows) else []
        if not self._rest:
            return None
        joined = FileDocuments.concatenated(self._rest)
        self._rest = [joined.select(slice(count, None))] if len(joined.rows) > count else []
        return joined.select(slice(count))
