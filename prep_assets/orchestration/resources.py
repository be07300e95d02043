"""Recipe and layout as a Dagster resource, and the source index that a run is pinned to."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import dagster as dg

from prep_assets.build import Build, Progress
from prep_assets.errors import NotReadyError
from prep_assets.formats.source_index import SourceIndex, current_id, read_index
from prep_assets.layout import Layout
from prep_assets.recipe import Recipe
from prep_assets.scan import list_source, scan
from prep_assets.workspace import running, settle_shards

# Of a run: the id of the source index that all of its steps work from; the work folder that it works in; and the number
# of shards of the recipe when it was planned.
INDEX_TAG, DATASET_TAG, NUM_SHARDS_TAG = "prep_assets/index", "prep_assets/dataset", "prep_assets/num_shards"

Context = dg.AssetExecutionContext | dg.OpExecutionContext | dg.AssetCheckExecutionContext


@dataclass(frozen=True)
class Dataset:
    """What assets ask for: the build of their run. reload: reads the recipe again, which may have changed since."""

    recipe: Recipe
    layout: Layout
    progress: Progress = field(default_factory=Progress)
    reload: Callable[[], Recipe] | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Of every run of this dataset."""
        return {DATASET_TAG: str(self.layout.work), NUM_SHARDS_TAG: str(self.recipe.num_shards)}

    def key(self, asset: str) -> dg.AssetKey:
        """Of one of this dataset's assets."""
        return dg.AssetKey([self.recipe.name, asset] if self.recipe.name else [asset])

    def running(self) -> AbstractContextManager[None]:
        """Claims the work folder for the block."""
        return running(self.layout)

    def now(self) -> "Dataset":
        """This dataset as the recipe describes it now.

        Raises NotReadyError where the recipe has another name or number of shards than the definitions were made for.
        """
        if self.reload is None:
            return self
        recipe = self.reload()
        layout = Layout(recipe.output, recipe.work)
        recipe = settle_shards(recipe, layout)
        if (recipe.name, recipe.num_shards) != (self.recipe.name, self.recipe.num_shards):
            raise _other(_shards(recipe.num_shards, recipe.name), _shards(self.recipe.num_shards, self.recipe.name))
        return replace(self, recipe=recipe, layout=layout)

    def scan(self, context: Context) -> SourceIndex:
        """What the source holds now."""
        source = list_source(self.recipe, self.layout)
        for notice in source.notices:
            context.log.warning(notice)
        return scan(self.recipe, self.layout, source)

    def scanned(self, context: dg.AssetExecutionContext) -> Build:
        """The build of a run that may look at the source: it is scanned, and the run pinned to what was found."""
        self._refuse_other_shards(context.run)
        pinned = context.run.tags.get(INDEX_TAG)
        # A run that is executed again brings the tags of the first: what was pinned then may be gone.
        if pinned is None or context.run.parent_run_id is not None:
            pinned = self.scan(context).id
            context.instance.add_run_tags(context.run_id, {INDEX_TAG: pinned})
        return self.build(pinned)

    def pinned(self, context: Context) -> Build:
        """The build of a run whose source is scanned already: by its own first step, or by an earlier run."""
        self._refuse_other_shards(context.run)
        run = context.instance.get_run_by_id(context.run.run_id)
        return self.build(run.tags.get(INDEX_TAG) if run else None)

    def build(self, index: str | None = None) -> Build:
        """The build at a source index, the current one where none is named."""
        if (identifier := index or current_id(self.layout.index)) is None:
            raise NotReadyError(f"{self.layout.index}: the source was never scanned; materialize raw_dataset first")
        found = read_index(self.layout.index, identifier)
        if len(found.shards) != self.recipe.num_shards:
            raise NotReadyError(
                f"the source was scanned for {len(found.shards)} shards and the recipe says {self.recipe.num_shards};"
                " materialize raw_dataset first, or run prep-assets prepare"
            )
        return Build(self.recipe, self.layout, found, self.progress)

    def _refuse_other_shards(self, run: dg.DagsterRun) -> None:
        """Raises NotReadyError for a run that was planned for another number of shards than the recipe has."""
        planned = run.tags.get(NUM_SHARDS_TAG)
        if planned not in (None, str(self.recipe.num_shards)):
            raise _other(_shards(self.recipe.num_shards), _shards(planned))


def _shards(count: int | str | None, name: str | None = None) -> str:
    return f"{count} shards" + (f", name {name}" if name else "")


def _other(now: str, before: str) -> NotReadyError:
    return NotReadyError(
        f"the recipe says {now} now, and said {before} when Dagster loaded it: reload the code location (in the UI:"
        " Deployment, Code locations, Reload) and start the run again"
    )
