"""The definitions that workspace.yaml names: environment and recipe -> Dagster's objects."""

import os
import warnings
from collections.abc import Callable

import dagster as dg

from prep_assets.build import Progress
from prep_assets.layout import Layout, partition_name
from prep_assets.orchestration.assets import build_assets
from prep_assets.orchestration.checks import build_checks
from prep_assets.orchestration.events import RANGE_BEGIN, RANGE_END
from prep_assets.orchestration.refresh import build_schedule, build_sensor
from prep_assets.orchestration.resources import Dataset
from prep_assets.recipe import EXAMPLE, RECIPE_VARIABLE, Recipe, load_recipe
from prep_assets.workspace import settle_shards

# Each is pinned by tests/test_dagster_behaviour.py: a change that matters fails there, not in a line nobody reads.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

# Steps fork from one server that has imported what takes long, instead of importing it again each: a third of the time.
FORK_SERVER = {
    "start_method": {
        "forkserver": {
            "preload_modules": [
                "dagster",
                "dagster._cli",
                "dagster._core.storage.event_log.sqlite",
                "dagster._core.storage.runs.sqlite",
                "dagster._core.storage.schedules.sqlite",
                "dagster._grpc.types",
                "prep_assets.orchestration.assets",
            ]
        }
    }
}


def build_definitions(
    recipe: Recipe, progress: Progress | None = None, reload: Callable[[], Recipe] | None = None
) -> dg.Definitions:
    """The asset graph of one recipe. reload: reads the recipe again, for who lives longer than it may stay the same."""
    layout = Layout(recipe.output, recipe.work)
    recipe = settle_shards(recipe, layout)
    dataset = Dataset(recipe, layout, progress or Progress(), reload)
    source, *assets = build_assets(recipe)
    tags = {RANGE_BEGIN: partition_name(0), RANGE_END: partition_name(recipe.num_shards - 1), **dataset.tags}
    refresh = dg.define_asset_job("refresh", selection=dg.AssetSelection.assets(*assets), tags=tags)
    scan = dg.define_asset_job("scan", selection=dg.AssetSelection.assets(source.key), tags=dataset.tags)
    return dg.Definitions(
        assets=[source, *assets],
        asset_checks=build_checks(*assets[-2:]),
        jobs=[refresh, scan],
        sensors=[build_sensor(recipe.refresh, [refresh, scan])],
        schedules=[build_schedule(recipe.refresh, refresh)],
        resources={"dataset": dataset},
        executor=dg.multiprocess_executor.configured(FORK_SERVER),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The recipe that PREP_ASSETS_RECIPE names, or the packaged example."""

    def load() -> Recipe:
        return load_recipe(os.environ.get(RECIPE_VARIABLE) or EXAMPLE)

    return build_definitions(load(), reload=load)
