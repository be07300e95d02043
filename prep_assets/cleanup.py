"""Clean-up: leftovers of killed processes, intermediates that need not stay, versions and payloads that are too old.

Touches only names that are ours, and only while no other process of ours is at work in the folder.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from prep_assets.build import Build
from prep_assets.errors import BusyError, DamagedFileError
from prep_assets.formats.publications import Publications, read_pin, read_publications, write_publications
from prep_assets.formats.source_index import current_id, read_index
from prep_assets.layout import Layout
from prep_assets.payload import is_ours_to_sweep, lock, remove_tree, retire, write_file
from prep_assets.plan import make_plan
from prep_assets.publication import remove_version
from prep_assets.receipt import NAME, STAGES, dropped_receipt
from prep_assets.workspace import claim

KEPT_BY = {"all": 0, "tokens": 1, "none": 2}  # how many of the first stages' files `keep` lets go


def clean_up(build: Build) -> None:
    """Leaves what the recipe keeps, when a run has ended; does nothing while another process is at work."""
    layout = build.layout
    try:
        with lock(layout.lock("run"), wait=False):
            sweep(layout)
            # Else a payload that looks useless may be what the next run copies from, or what a newer one has made.
            if current_id(layout.index) == build.index.id and make_plan(build).is_fresh:
                remove_old_versions(layout, build.recipe.keep_versions)
                remove_unneeded(build)
                for stage in STAGES[: KEPT_BY[build.recipe.keep]]:
                    drop_files(payloads(layout, stage))
    except BusyError:
        return


def clean(layout: Layout, *, tokens: bool) -> int:
    """Removes the files of all raw partitions, and with tokens of all token partitions; gives the bytes freed.

    Raises BusyError while another process is at work. Between two steps of a run that Dagster's interface or sensor
    launched none is: the next step then says what has to be made again.
    """
    claim(layout)
    with lock(layout.lock("run"), wait=False):
        sweep(layout)
        return sum(drop_files(payloads(layout, stage)) for stage in STAGES[: 1 + tokens])


def sweep(layout: Layout) -> None:
    """Removes what killed writes and removals left behind."""
    folders = [layout.work, layout.index, layout.index / "files", layout.output, layout.output / "versions"]
    folders += (layout.output / "versions").glob("[0-9a-f]*")
    for stage in STAGES:
        folders += [layout.work / stage, *(layout.work / stage).glob("[0-9]*")]
    for folder in folders:
        if folder.is_dir():
            for path in folder.iterdir():
                if is_ours_to_sweep(path.name):
                    remove_tree(path)


def payloads(layout: Layout, stage: str) -> Iterator[Path]:
    """The payloads of a stage whose files are there."""
    for receipt in (layout.work / stage).glob(f"[0-9]*/[!.]*/{NAME}"):
        yield receipt.parent


def drop_files(folders: Iterable[Path]) -> int:
    """Removes the files of payloads; their receipts stay, and so what they made stays fresh. Gives the bytes freed."""
    freed = 0
    for payload in folders:
        freed += sum(file.stat().st_size for file in payload.iterdir())
        receipt, dropped = payload / NAME, dropped_receipt(payload)
        made = receipt.stat().st_mtime_ns
        write_file(dropped, receipt.read_bytes())
        os.utime(dropped, ns=(made, made))  # which of a shard's payloads is the newest goes by it
        retire(payload)
    return freed


def remove_old_versions(layout: Layout, keep: int) -> None:
    """Keeps the versions published last, and the pinned one."""
    record = read_publications(layout.publications).versions
    pinned = read_pin(layout.pin)
    kept = tuple(it for at, it in enumerate(record) if at >= len(record) - keep or it.id == pinned)
    if kept != record:
        for old in {it.id for it in record} - {it.id for it in kept}:
            remove_version(layout, old)
        write_publications(layout.publications, Publications(versions=kept))


def made_payloads(layout: Layout) -> Iterator[tuple[Path, Path]]:
    """Every payload's folder and every dropped receipt, each with the payload that it is of; no name but ours."""
    for stage in STAGES:
        for path in (layout.work / stage).glob("[0-9]*/*"):
            if re.fullmatch(r"[0-9a-f]{32}(\.json)?", path.name):
                yield path, path.with_suffix("")


def remove_unneeded(build: Build) -> None:
    """Removes payloads, receipts and indexes that neither a kept version nor the current plan needs."""
    layout = build.layout
    record = read_publications(layout.publications).versions
    needed = {
        layout.payload(stage, shard, name)
        for publication in record
        for shard, names in enumerate(publication.payloads)
        for stage, name in zip(STAGES, names, strict=True)
    }
    for shard in range(build.num_shards):
        needed |= {made.payload for made in build.made(shard).values() if made.payload}
    for path, payload in made_payloads(layout):
        if payload not in needed:
            retire(path)
    kept = {publication.index for publication in record} | {current_id(layout.index)}
    files: set[str] = set()
    names = re.compile(r"[0-9a-f]{32}")
    for path in layout.index.glob("*.json"):
        if path.stem in kept:
            try:
                files |= {file.content for file in read_index(layout.index, path.stem).files}
            except DamagedFileError:  # of an older one: only a plan's numbers go by it
                retire(path)
        elif names.fullmatch(path.stem):
            retire(path)
    for path in layout.index.glob("files/*.arrow"):
        if path.stem not in files and names.fullmatch(path.stem):
            retire(path)
