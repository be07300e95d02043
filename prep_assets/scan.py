"""Scan: the source -> the source index. Reads every file once for its documents' digests."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.cpus import available_cpus
from prep_assets.digest import ContentDigest, Digests, digests_of, digests_of_rows, shard_of_name, shards_of
from prep_assets.errors import SourceError
from prep_assets.formats.source_index import (
    FileEntry,
    ShardEntry,
    SourceIndex,
    digest_file,
    new_digest_file,
    read_digests,
    write_index,
)
from prep_assets.layout import Layout
from prep_assets.payload import install_file, make_folder, scratch
from prep_assets.receipt import fingerprint
from prep_assets.recipe import Recipe
from prep_assets.sources.files import Source, SourceFile, is_local, list_files
from prep_assets.sources.read import BadRow, read_documents


def list_source(recipe: Recipe, layout: Layout) -> Source:
    """The files of the recipe's source; those of a hub dataset are downloaded first, once whoever asks."""
    dataset = recipe.dataset
    data_files = [dataset.data_files] if isinstance(dataset.data_files, str) else dataset.data_files
    if is_local(dataset.name_or_path, recipe.base):
        return list_files(dataset.name_or_path, recipe.base, data_files, dataset.split)
    from prep_assets.sources import hub  # importing its client takes a second

    return hub.fetch(
        dataset.name_or_path,
        config_name=dataset.config_name,
        revision=dataset.revision,
        split=dataset.split or "train",
        data_files=data_files,
        downloads=layout.downloads,
        workers=recipe.loading_workers,
    )


def scan(
    recipe: Recipe, layout: Layout, source: Source, read: Callable[[int], None] = lambda documents: None
) -> SourceIndex:
    """The index of what the source holds now, kept as the current one; read: told of documents as they are read.

    Several files are read at once. Raises SourceError, naming file and row, for a source that cannot be used.
    """
    if recipe.dataset.shard_by == "file":
        files = tuple(
            FileEntry(name=file.name, content=content_by_identity(file), documents=None, text_size=file.size)
            for file in source.files
        )
        shards = _shards_of_files(source, recipe.shards)
    else:
        with ThreadPoolExecutor(min(recipe.loading_workers, available_cpus())) as pool:
            files = tuple(pool.map(lambda file: _read_file(recipe, layout, file, read), source.files))
        shards = tuple(_shards_of_documents(layout.index, files, recipe))
        if not any(file.documents for file in files):
            raise SourceError(
                f"{recipe.dataset.name_or_path}: no documents in its {len(files)} files"
                f" ({sum(file.null_rows for file in files)} rows whose text is null)"
            )
    index = SourceIndex(
        shard_by=recipe.dataset.shard_by,
        field=recipe.dataset.field,
        keep_columns=tuple(recipe.dataset.keep_columns),
        revision=source.revision,
        files=files,
        shards=shards,
    )
    write_index(layout.index, index)
    return index


def documents_of(
    recipe: Recipe, file: SourceFile, bad_rows: list[tuple[int, str]]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The documents of one source file in batches (row, text, kept columns), with how many null rows were left out.

    Bad rows end in a SourceError, or with on_bad_row: skip in bad_rows, as (row, cause).
    """
    dataset = recipe.dataset

    def skip(bad: BadRow) -> None:
        bad_rows.append((bad.row, bad.cause))

    on_bad_row = skip if dataset.on_bad_row == "skip" else None
    for batch in read_documents(file, dataset.field, dataset.keep_columns, on_bad_row):
        nulls = batch.column("text").null_count
        yield (batch.filter(pc.is_valid(batch.column("text"))) if nulls else batch), nulls


def digests_of_batch(batch: pa.RecordBatch) -> tuple[Digests, Digests | None]:
    """Of a batch of documents_of: the texts' digests, and those of the kept columns where there are any."""
    kept = batch.columns[2:]
    return digests_of(batch.column(1)), digests_of_rows(kept) if kept else None


def _read_file(recipe: Recipe, layout: Layout, file: SourceFile, read: Callable[[int], None]) -> FileEntry:
    bad_rows: list[tuple[int, str]] = []
    null_rows = text_size = 0
    path = make_folder(layout.index / "files") / "digests"
    with scratch(path) as folder:
        with new_digest_file(folder / "digests.arrow", bool(recipe.dataset.keep_columns)) as digests:
            for batch, nulls in documents_of(recipe, file, bad_rows):
                null_rows += nulls
                text_size += int(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)
                digests.write(batch.column("row").to_numpy(), *digests_of_batch(batch))
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


def _shards_of_documents(folder: Path, files: Sequence[FileEntry], recipe: Recipe) -> Iterator[ShardEntry]:
    with_kept = bool(recipe.dataset.keep_columns)
    contents = [ContentDigest(2 if with_kept else 1) for _ in range(recipe.shards)]
    documents = np.zeros(recipe.shards, np.int64)
    for file in files:
        for batch in read_digests(folder, file, with_kept):
            shards = shards_of(batch.digests, recipe.shards)
            for shard, rows in split_by_shard(shards):
                kept = [] if batch.kept is None else [batch.kept[rows]]
                contents[shard].update(batch.digests[rows], *kept)
            documents += np.bincount(shards, minlength=recipe.shards)
    for content, count in zip(contents, documents.tolist(), strict=True):
        yield ShardEntry(version=content.hexdigest(), documents=count)


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


def _shards_of_files(source: Source, num_shards: int) -> tuple[ShardEntry, ...]:
    contents: list[list[str]] = [[] for _ in range(num_shards)]
    for file in source.files:
        contents[shard_of_name(file.stem, num_shards)].append(content_by_identity(file))
    return tuple(ShardEntry(version=fingerprint(files=content), documents=None) for content in contents)
