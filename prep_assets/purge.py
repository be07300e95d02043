"""Purge: takes the text and the tokens of excluded documents out of everything of ours, and proves it by a search.

Hard links keep bytes alive, so every version and every payload that holds such a document goes, not only the newest.
"""

import json
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prep_assets.build import Build
from prep_assets.cleanup import sweep
from prep_assets.digest import Digests
from prep_assets.errors import NotReadyError
from prep_assets.exclusion import Exclusion
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.formats.manifest import read_version
from prep_assets.formats.publications import Publications, read_pin, read_publications, write_publications
from prep_assets.formats.raw_partition import read_raw_partition
from prep_assets.formats.sidecar import read_sidecar
from prep_assets.formats.source_index import read_digests, read_index
from prep_assets.layout import VERSION, Layout, piece_files
from prep_assets.payload import lock, retire
from prep_assets.receipt import STAGES, read_receipt
from prep_assets.scan import exclusion_of

SHORTEST = 16  # bytes: fewer would be found anywhere by chance
MOST_NEEDLES = 200  # looked for in the proof


@dataclass(frozen=True)
class Purged:
    """What a purge removed, and its proof. size in bytes; needles: texts and token runs looked for in `searched` files.

    found: files in which one stands all the same: as a part of another document, which is not excluded.
    """

    documents: int
    versions: tuple[str, ...]
    payloads: int
    size: int
    needles: int
    searched: int
    found: tuple[Path, ...]


def purge(build: Build) -> Purged:
    """Removes the excluded documents from intermediates, sidecars, downloads of ours and every version.

    To be called when a version without them is published. Raises NotReadyError where it is not, or where a version that
    holds them is pinned; BusyError where another process is at work.
    """
    layout = build.layout
    with lock(layout.lock("run"), wait=False):
        gone = _excluded(build)
        old = [it for it in read_publications(layout.publications).versions if _version_holds(layout, it.id, gone)]
        pinned, latest = read_pin(layout.pin), read_publications(layout.publications).versions[-1].id
        if any(it.id in (pinned, latest) for it in old):
            raise NotReadyError(
                f"{layout.output}: the version that is published holds excluded documents;"
                " run prep-assets prepare (and unpin) first"
            )
        needles = [*_texts(build, gone), *_tokens(layout, [it.id for it in old], gone)]
        size = sum(_size(layout.version(it.id)) for it in old)
        for it in old:
            retire(layout.version(it.id))
        kept = tuple(it for it in read_publications(layout.publications).versions if it not in old)
        write_publications(layout.publications, Publications(versions=kept))
        removed = _former_payloads(build)
        for path in removed:
            size += _size(path)
            retire(path)
        _remove_former_indexes(build)
        if layout.downloads.is_dir():  # the documents as the hub gave them; local source files are not ours to touch
            size += _size(layout.downloads)
            retire(layout.downloads)
        sweep(layout)
        searched, found = _search((layout.work, layout.output), needles)
        return Purged(len(gone), tuple(it.id for it in old), len(removed), size, len(needles), searched, found)


def _excluded(build: Build) -> Digests:
    """Digests of texts that an index of ours has, that the recipe excludes, and that no document left has."""
    exclusion, folder = exclusion_of(build.recipe), build.layout.index
    gone = [exclusion.digests if exclusion.column is None else np.empty((0, 16), np.uint8)]
    stays = [np.empty((0, 16), np.uint8)]
    for path in folder.glob("[0-9a-f]*.json"):
        index = read_index(folder, path.stem)
        if index.exclude_column != exclusion.column and exclusion.column is not None:
            continue  # its files were read without the column; they were read again since
        for file in index.files:
            if index.shard_by == "document":
                for batch in read_digests(folder, index, file):
                    keeps = exclusion.keeps(batch.digests, batch.key)
                    gone.append(batch.digests[~keeps])
                    if index.id == build.index.id:
                        stays.append(batch.digests[keeps])
    left = Exclusion(None, np.unique(np.concatenate(stays), axis=0))
    every = np.unique(np.concatenate(gone), axis=0)
    return every[left.keeps(every, None)]


def _holds(digests: Digests, gone: Digests) -> bool:
    return not Exclusion(None, gone).keeps(digests, None).all()


def _version_holds(layout: Layout, identifier: str, gone: Digests) -> bool:
    folder = layout.version(identifier)
    if not folder.is_dir():
        return False
    version = read_version(folder / VERSION)
    return any(
        _holds(read_sidecar(folder / piece_files(piece.prefix)[2], version.keep_columns).digests, gone)
        for piece in version.pieces
    )


def _former_payloads(build: Build) -> list[Path]:
    """All payloads and dropped receipts but those of the current build, which is made without these documents."""
    current = {made.payload for shard in range(build.num_shards) for made in build.made(shard).values()}
    paths = [path for stage in STAGES for path in (build.layout.work / stage).glob("[0-9]*/[!.]*")]
    return [path for path in paths if (path if path.is_dir() else path.with_suffix("")) not in current]


def _remove_former_indexes(build: Build) -> None:
    """Indexes that others need no more, and of the current one the digest files stay: digests tell no text."""
    for path in build.layout.index.glob("[0-9a-f]*.json"):
        if path.stem != build.index.id and len(path.stem) == 32:
            retire(path)


def _texts(build: Build, gone: Digests) -> Iterator[bytes]:
    """The texts of excluded documents, from former payloads that still hold them."""
    for payload in _former_payloads(build):
        receipt = read_receipt(payload) if payload.is_dir() else None
        if receipt and receipt.stage == STAGES[0]:
            columns = json.loads(receipt.made_from["keep_columns"])
            for batch in read_raw_partition(payload, columns, receipt.content):
                for at in np.flatnonzero(~Exclusion(None, gone).keeps(batch.digests, None)):
                    yield batch.texts[int(at)].as_py().encode()


def _tokens(layout: Layout, versions: Iterable[str], gone: Digests) -> Iterator[bytes]:
    """The token ids of excluded documents, as they stand in the pairs of versions."""
    for identifier in versions:
        folder = layout.version(identifier)
        version = read_version(folder / VERSION)
        for piece in version.pieces:
            digests = read_sidecar(folder / piece_files(piece.prefix)[2], version.keep_columns).digests
            dataset = IndexedDataset(folder / piece.prefix)
            for at in np.flatnonzero(~Exclusion(None, gone).keeps(digests, None)):
                yield dataset[int(at)].tobytes()


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _search(folders: Iterable[Path], needles: Iterable[bytes]) -> tuple[int, tuple[Path, ...]]:
    """How many files were searched, and those in which one of the needles stands."""
    distinct = list(dict.fromkeys(needle for needle in needles if len(needle) >= SHORTEST))[:MOST_NEEDLES]
    searched, found = 0, []
    for path in sorted({path for folder in folders for path in folder.rglob("*")}):
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        searched += 1
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if any(content.find(needle) >= 0 for needle in distinct):
                found.append(path)
    return searched, tuple(found)
