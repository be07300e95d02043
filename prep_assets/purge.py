"""Purge: takes the text and the tokens of excluded documents out of everything of ours, and proves it by a search.

Hard links keep bytes alive, so every version and every payload that holds such a document goes, not only the newest; a
version of which that cannot be told goes too.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prep_assets.build import Build
from prep_assets.cleanup import made_payloads, remove_unneeded, sweep
from prep_assets.digest import NO_DIGESTS, Digests, contains
from prep_assets.errors import DamagedFileError, NotReadyError
from prep_assets.exclusion import Exclusion
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.formats.manifest import read_version
from prep_assets.formats.publications import (
    Publication,
    Publications,
    read_publications,
    write_publications,
)
from prep_assets.formats.raw_partition import read_raw_partition
from prep_assets.formats.sidecar import read_sidecar
from prep_assets.formats.source_index import read_digests, read_index
from prep_assets.layout import VERSION, Layout, piece_files
from prep_assets.payload import lock, retire
from prep_assets.publication import latest_id, remove_version
from prep_assets.receipt import NAME, STAGES, read_receipt
from prep_assets.scan import exclusion_of

SHORTEST = 16  # bytes: fewer would be found anywhere by chance
MOST_NEEDLES = 100  # of texts and of token runs, looked for in the proof


@dataclass(frozen=True)
class Purged:
    """What a purge removed, and its proof. size in bytes; needles: texts and token runs looked for in `searched` files.

    untold: those of the versions removed of which it could not be told whether they hold an excluded document.
    found: files in which a needle stands all the same: as a part of another document, which is not excluded.
    """

    documents: int
    versions: tuple[str, ...]
    untold: tuple[str, ...]
    payloads: int
    size: int
    needles: int
    searched: int
    found: tuple[Path, ...]


def purge(build: Build) -> Purged:
    """Removes the excluded documents from intermediates, sidecars, downloads of ours and every version.

    To be called when a version without them is published. Raises NotReadyError where it is not, or where `latest` leads
    to one that may hold them; BusyError where another process is at work.
    """
    layout = build.layout
    with lock(layout.lock("run"), wait=False):
        build.refuse_overtaken()
        exclusion = exclusion_of(build.recipe)
        record = read_publications(layout.publications).versions
        if exclusion.identity != build.index.excluded or not record or not _is_current(build, record[-1]):
            raise NotReadyError(
                f"{layout.output}: no version without the excluded documents is published last;"
                " run prep-assets prepare (and unpin) first"
            )
        gone, told = _excluded(build, exclusion, record)
        holds = {it.id: _holds(layout, it.id, gone) if it.index in told else None for it in record[:-1]}
        old = [identifier for identifier, is_held in holds.items() if is_held is not False]
        if (latest := latest_id(layout)) in old:  # pinned, or the newest one's publication was killed
            raise NotReadyError(
                f"{layout.latest}: leads to version {latest}, which may hold excluded documents;"
                " run prep-assets prepare (and unpin) first"
            )
        needles = [*_needles(_texts(build, gone)), *_needles(_tokens(layout, old, gone))]
        size = sum(_size(layout.version(identifier)) for identifier in old)
        for identifier in old:
            remove_version(layout, identifier)
        write_publications(layout.publications, Publications(versions=tuple(it for it in record if it.id not in old)))
        removed = _former_payloads(build)
        for path in removed:
            size += _size(path)
            retire(path)
        remove_unneeded(build)
        if layout.downloads.is_dir():  # the documents as the hub gave them; local source files are not ours to touch
            size += _size(layout.downloads)
            retire(layout.downloads)
        sweep(layout)
        untold = tuple(identifier for identifier in old if holds[identifier] is None)
        searched, found = _search((layout.work, layout.output), needles)
        return Purged(len(gone), tuple(old), untold, len(removed), size, len(needles), searched, found)


def _is_current(build: Build, publication: Publication) -> bool:
    """Whether a version is what the build gives, which is made without the excluded documents."""
    pairs = [build.made(shard)["memmap_shards"] for shard in range(build.num_shards)]
    made = [it.payload.name if it.payload and it.is_fresh else None for it in pairs]
    return made == [names[-1] for names in publication.payloads]


def _excluded(build: Build, exclusion: Exclusion, record: Sequence[Publication]) -> tuple[Digests, set[str]]:
    """Digests of the excluded texts, sorted, and the indexes of which these are all.

    A column's value leads to a text where an index was read with that column, by document; one that a document of the
    last version has stays.
    """
    if exclusion.column is None or not len(exclusion.digests):
        return exclusion.digests if exclusion.column is None else NO_DIGESTS, {it.index for it in record}
    folder, told = build.layout.index, set()
    parts, stay = [NO_DIGESTS], [NO_DIGESTS]
    for path in folder.glob("[0-9a-f]*.json"):
        index = read_index(folder, path.stem)
        if index.shard_by == "document" and index.exclude_column == exclusion.column:
            try:
                for file in index.files:
                    batches = read_digests(folder, index, file)
                    parts += (it.digests[~exclusion.keeps(it.digests, it.key)] for it in batches)
                told.add(index.id)
            except DamagedFileError:
                continue
    gone = np.unique(np.concatenate(parts), axis=0)
    stay += (digests[contains(gone, digests)] for _, digests in _pairs(build.layout, record[-1].id))
    return gone[~contains(np.unique(np.concatenate(stay), axis=0), gone)], told


def _pairs(layout: Layout, identifier: str) -> Iterator[tuple[Path, Digests]]:
    """A version's pairs, each with the digests of its documents."""
    folder = layout.version(identifier)
    version = read_version(folder / VERSION)
    for piece in version.pieces:
        yield folder / piece.prefix, read_sidecar(folder / piece_files(piece.prefix)[2], version.keep_columns).digests


def _holds(layout: Layout, identifier: str, gone: Digests) -> bool | None:
    """Whether a version holds one of these documents; None where it is damaged."""
    try:
        return layout.version(identifier).is_dir() and any(
            contains(gone, digests).any() for _, digests in _pairs(layout, identifier)
        )
    except DamagedFileError:
        return None


def _former_payloads(build: Build) -> list[Path]:
    """All payloads and dropped receipts but those of the current build, which is made without these documents."""
    current = {made.payload for shard in range(build.num_shards) for made in build.made(shard).values()}
    return [path for path, payload in made_payloads(build.layout) if payload not in current]


def _texts(build: Build, gone: Digests) -> Iterator[bytes]:
    """The texts of excluded documents, from former payloads that still hold them."""
    for payload in _former_payloads(build):
        try:
            receipt = read_receipt(payload) if (payload / NAME).exists() else None
            if receipt and receipt.stage == STAGES[0]:
                for batch in read_raw_partition(payload, receipt.keep_columns, receipt.content):
                    for at in np.flatnonzero(contains(gone, batch.digests)):
                        yield batch.texts[int(at)].as_py().encode()
        except DamagedFileError:  # it goes, whatever it holds
            continue


def _tokens(layout: Layout, versions: Iterable[str], gone: Digests) -> Iterator[bytes]:
    """The token ids of excluded documents, as they stand in the pairs of versions."""
    for identifier in versions:
        try:
            for prefix, digests in _pairs(layout, identifier):
                if (found := np.flatnonzero(contains(gone, digests))).size:
                    dataset = IndexedDataset(prefix)
                    yield from (dataset[int(at)].tobytes() for at in found)
        except DamagedFileError:
            continue


def _needles(found: Iterable[bytes]) -> list[bytes]:
    """The first distinct ones that are long enough."""
    needles: dict[bytes, None] = {}
    for needle in found:
        if len(needle) >= SHORTEST:
            needles[needle] = None
        if len(needles) == MOST_NEEDLES:
            break
    return list(needles)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _search(folders: Iterable[Path], needles: Sequence[bytes]) -> tuple[int, tuple[Path, ...]]:
    """How many files were searched, and those in which one of the needles stands."""
    searched, found = 0, []
    for path in sorted({path for folder in folders for path in folder.rglob("*")}):
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        searched += 1
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if any(content.find(needle) >= 0 for needle in needles):
                found.append(path)
    return searched, tuple(found)
