"""Recipe and layout as a Dagster resource, and the source index that a run is pinned to."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import dagster as dg

from prep_assets.build import Build, Progress
from prep_assets.errors import NotReadyError
from prep_assets.formats.source_index import current_id, read_index
from prep_assets.layout import Layout
from prep_assets.recipe import Recipe
from prep_assets.scan import list_source, scan
from prep_assets.workspace import running

INDEX_TAG = "prep_assets/index"  # of a run: the id of the source index that all of its steps work from


@dataclass(frozen=True)
class Dataset:
    """What assets ask for: the build of their run."""

    recipe: Recipe
    layout: Layout
    progress: Progress = field(default_factory=Progress)

    def running(self) -> AbstractContextManager[None]:
        """Claims the work folder for the block."""
        return running(self.layout)

    def scanned(self, context: dg.AssetExecutionContext) -> Build:
        """The build of a run that may look at the source: it is scanned, and the run pinned to what was found."""
        pinned = context.run.tags.get(INDEX_TAG)
        # A run that is executed again brings the tags of the first: what was pinned then may be gone.
        if pinned is None or context.run.parent_run_id is not None:
            source = list_source(self.recipe, self.layout)
            for notice in source.notices:
                context.log.warning(notice)
            pinned = scan(self.recipe, self.layout, source).id
            context.instance.add_run_tags(context.run_id, {INDEX_TAG: pinned})
        return self._build(pinned)

    def pinned(self, context: dg.AssetExecutionContext) -> Build:
        """The build of a run whose source is scanned already: by its own first step, or by an earlier run."""
        run = context.instance.get_run_by_id(context.run_id)
        pinned = (run.tags.get(INDEX_TAG) if run else None) or current_id(self.layout.index)
        if pinned is None:
            raise NotReadyError(f"{self.layout.index}: the source was never scanned; materialize raw_dataset first")
        return self._build(pinned)

    def _build(self, identifier: str) -> Build:
        return Build(self.recipe, self.layout, read_index(self.layout.index, identifier), self.progress)
