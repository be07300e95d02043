"""`prepare`, the whole job in one go: scan, plan, one run through Dagster, and what came of it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bars,
)

from prep_assets.build import Build, Progress, load_tokenizer, pair_dtype
from prep_assets.errors import BusyError
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.formats.manifest import read_version
from prep_assets.formats.publications import Publication, read_publications
from prep_assets.layout import VERSION, Layout
from prep_assets.payload import lock
from prep_assets.plan import Plan, make_plan
from prep_assets.publication import refuse_foreign_files
from prep_assets.recipe import Recipe
from prep_assets.scan import list_source, scan
from prep_assets.workspace import running


def prepare(recipe: Recipe) -> None:
    """Makes what is stale of a recipe's dataset and publishes it; prints what was done.

    Raises BusyError where another prepare is at work on this output.
    """
    layout = Layout(recipe.output, recipe.work)
    tokenizer = load_tokenizer(recipe, layout)  # all that can be refused is, before a document is read
    pair_dtype(recipe, tokenizer)
    refuse_foreign_files(layout, [])
    with running(layout), _sole(layout), _bars() as bars:
        source = list_source(recipe, layout)
        for notice in source.notices:
            click.echo(f"note: {notice}", err=True)
        index = scan(recipe, layout, source, bars.reader())
        build = Build(recipe, layout, index, Progress(bars.advance))
        plan = make_plan(build)
        if plan.is_fresh:
            click.echo(f"nothing to do: {layout.output} is up to date")
            return
        bars.expect(build, plan)
        from prep_assets.definitions import build_definitions  # Dagster takes seconds to import: only where it works
        from prep_assets.orchestration.prepare import materialize

        materialize(build_definitions(recipe, build.progress), build, plan)
    _summarize(build, read_publications(layout.publications).versions[-1])


@contextmanager
def _sole(layout: Layout) -> Iterator[None]:
    try:
        with lock(layout.lock("prepare"), wait=False):
            yield
    except BusyError as error:
        raise BusyError(f"{layout.output}: another prepare is at work on this output; wait for it to end") from error


class _Bars:
    """A bar for the scan and for each stage on a terminal; silent in a pipe."""

    def __init__(self, bars: Bars) -> None:
        self._bars, self._tokens = bars, 0
        self._tasks: dict[str, TaskID] = {}

    def reader(self) -> Callable[[int], None]:
        task = self._bars.add_task("scan", total=None, speed="")
        return lambda documents: self._bars.advance(task, documents)

    def expect(self, build: Build, plan: Plan) -> None:
        documents = sum(build.index.shards[shard].documents or 0 for shard in plan.shards)
        for stage in dict.fromkeys(stale.stage for stale in plan.stale if stale.shard is not None):
            self._tasks[stage] = self._bars.add_task(stage, total=documents or None, speed="")

    def advance(self, stage: str, shard: int, documents: int, tokens: int) -> None:
        task = self._tasks.get(stage)
        if task is None:
            return
        self._bars.advance(task, documents)
        if tokens:
            self._tokens += tokens if stage == "tokenized_partitions" else 0
            elapsed = self._bars.tasks[task].elapsed or 0
            speed = f"{self._tokens:,} tokens, {self._tokens / elapsed:,.0f}/s" if elapsed else ""
            self._bars.update(task, speed=speed if stage == "tokenized_partitions" else "")


@contextmanager
def _bars() -> Iterator[_Bars]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} documents"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        yield _Bars(bars)


def _summarize(build: Build, publication: Publication) -> None:
    folder, tokenizer = build.layout.version(publication.id), build.tokenizer
    version = read_version(folder / VERSION)
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in publication.left_out.items() if count)
    click.echo(
        f"{build.layout.output}: {publication.documents:,} documents, {publication.tokens:,} tokens ({version.dtype})"
        f" in {len(version.pieces)} pairs; left out: {left_out or 'nothing'}\nversion {publication.id}: {folder}"
    )
    first = IndexedDataset(folder / version.pieces[0].prefix)
    for document in (first[at] for at in range(min(3, len(first)))):
        begin, end = int(document[0]), int(document[-1])
        click.echo(
            f"  document of {len(document):,} tokens: first id {begin} {tokenizer.name(begin)!r},"
            f" last id {end} {tokenizer.name(end)!r}"
        )
    receipts = [build.made(shard)["memmap_shards"].receipt for shard in range(len(build.index.shards))]
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
    sys.stdout.flush()
