"""`prepare`, the whole job in one go: scan, plan, one run through Dagster, and what came of it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import click

from prep_assets.build import Build, Progress, left_out, pair_dtype
from prep_assets.cleanup import clean_up
from prep_assets.errors import BusyError, EngineError, StorageError
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.formats.manifest import read_version
from prep_assets.formats.publications import Publication, read_publications
from prep_assets.layout import VERSION, Layout
from prep_assets.payload import lock
from prep_assets.plan import Plan, make_plan
from prep_assets.progress import ProgressBars, progress_bars
from prep_assets.publication import refuse_foreign_files
from prep_assets.recipe import Recipe
from prep_assets.scan import list_source, scan
from prep_assets.tokenizer_facts import facts_of
from prep_assets.workspace import running, settle_shards


@contextmanager
def opened(recipe: Recipe, *, rescan: bool = False, sole: bool = False) -> Iterator[tuple[Build, ProgressBars]]:
    """The build of a recipe at what its source holds now; the work folder is claimed and the source scanned.

    All that can be refused is, before a document is read. rescan: read every file again, whatever is known of it.
    sole: raises BusyError where another prepare is at work on this output, and lets none begin in the block; without it
    this is a look, which changes nothing for a run at work.
    """
    layout = Layout(recipe.output, recipe.work)
    pair_dtype(recipe, facts_of(recipe, layout))
    refuse_foreign_files(layout, [])
    with running(layout), _sole(layout) if sole else nullcontext(), progress_bars() as bars:
        recipe = settle_shards(recipe, layout)
        source = list_source(recipe, layout)
        for notice in source.notices:
            click.echo(f"note: {notice}", err=True)
        index = scan(recipe, layout, source, bars.reader(), rescan=rescan, make_current=sole)
        yield Build(recipe, layout, index, Progress(bars.advance, lambda message: click.echo(message, err=True))), bars


def prepare(recipe: Recipe, *, rescan: bool = False) -> None:
    """Makes what is stale of a recipe's dataset and publishes it; prints what was done.

    Raises BusyError where another prepare is at work on this output, StorageError where the disk has too little room.
    """
    with opened(recipe, rescan=rescan, sole=True) as (build, bars):
        plan = make_plan(build)
        if not plan.is_fresh:
            _refuse_too_little_disk(build, plan)
            bars.expect(build, plan)
            try:
                _materialize(build, plan)
            except EngineError as error:  # it is recorded: what that engine made is stale now
                click.echo(f"note: {error}", err=True)
                build = Build(build.recipe, build.layout, build.index, build.progress)
                _materialize(build, make_plan(build))
    clean_up(build)
    if plan.pinned:
        click.echo(f"version {plan.pinned} is pinned: nothing is published until prep-assets unpin")
    elif plan.is_fresh:
        click.echo(f"nothing to do: {build.layout.output} is up to date; left out: {_in_words(left_out(build))}")
    else:
        _summarize(build, read_publications(build.layout.publications).versions[-1])


def _materialize(build: Build, plan: Plan) -> None:
    from prep_assets.definitions import build_definitions  # Dagster takes seconds: only where it works
    from prep_assets.orchestration.prepare import materialize

    materialize(build_definitions(build.recipe, build.progress), build, plan)


@contextmanager
def _sole(layout: Layout) -> Iterator[None]:
    try:
        with lock(layout.lock("prepare"), wait=False):
            yield
    except BusyError as error:
        raise BusyError(f"{layout.output}: another prepare is at work on this output; wait for it to end") from error


def _refuse_too_little_disk(build: Build, plan: Plan) -> None:
    free = shutil.disk_usage(build.layout.work).free
    if plan.size_to_write > free:
        raise StorageError(
            f"{build.layout.work}: {size(free)} free; this refresh writes {size(plan.size_to_write)} before anything is"
            " removed: make room, or name another work_path"
        )


def size(count: float) -> str:
    """Bytes for people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _in_words(left_out: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.items()) or "nothing"


def _summarize(build: Build, publication: Publication) -> None:
    folder, tokenizer = build.layout.version(publication.id), build.tokenizer
    version = read_version(folder / VERSION)
    pairs = f"{len(version.pieces):,} pair{'s' * (len(version.pieces) != 1)}"
    click.echo(
        f"{build.layout.output}: {publication.documents:,} documents, {publication.tokens:,} tokens ({version.dtype})"
        f" in {pairs}; left out: {_in_words(publication.left_out)}\nversion {publication.id}: {folder}"
    )
    first = IndexedDataset(folder / version.pieces[0].prefix)
    for document in (first[at] for at in range(min(3, len(first)))):
        begin, end = int(document[0]), int(document[-1])
        click.echo(
            f"  document of {len(document):,} tokens: first id {begin} {tokenizer.name(begin)!r},"
            f" last id {end} {tokenizer.name(end)!r}"
        )
    receipts = [build.made(shard)["memmap_shards"].receipt for shard in range(build.num_shards)]
    if not any(receipt.with_end for receipt in receipts if receipt):
        click.echo(
            "warning: no document ends with an end token; trainers that mask or reset at it need one"
            " (tokenizer.add_eos: true)",
            err=True,
        )
    if publication.left_out.get("bad"):
        click.echo(
            f"warning: {publication.left_out['bad']:,} bad rows were left out; {build.layout.index} lists them",
            err=True,
        )
