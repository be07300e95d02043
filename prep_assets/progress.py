"""Progress on a terminal: a bar for the scan and one for each stage; silent in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from prep_assets.build import Build
from prep_assets.plan import Plan


class ProgressBars:
    """A bar for the scan and for each stage on a terminal; silent in a pipe."""

    def __init__(self, bars: Bars) -> None:
        self._bars, self._tokens = bars, 0
        self._tasks: dict[str, TaskID] = {}

    def reader(self) -> Callable[[int], None]:
        self._scan = self._bars.add_task("scan", total=None, speed="")
        return lambda documents: self._bars.advance(self._scan, documents)

    def expect(self, build: Build, plan: Plan) -> None:
        self._bars.update(self._scan, total=self._bars.tasks[self._scan].completed)  # it is done
        documents = sum(build.index.shards[shard].documents or 0 for shard in plan.shards)
        for stage in dict.fromkeys(stale.stage for stale in plan.stale if stale.shard is not None):
            self._tasks[stage] = self._bars.add_task(stage, start=False, total=documents or None, speed="")

    def advance(self, stage: str, shard: int, documents: int, tokens: int) -> None:
        task = self._tasks.get(stage)
        if task is None:
            return
        self._bars.start_task(task)  # from its first documents on: what is before is another stage's time
        self._bars.advance(task, documents)
        if tokens:
            self._tokens += tokens if stage == "tokenized_partitions" else 0
            elapsed = self._bars.tasks[task].elapsed or 0
            speed = f"{self._tokens:,} tokens, {self._tokens / elapsed:,.0f}/s" if elapsed else ""
            self._bars.update(task, speed=speed if stage == "tokenized_partitions" else "")


@contextmanager
def progress_bars() -> Iterator[ProgressBars]:
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
        yield ProgressBars(bars)
