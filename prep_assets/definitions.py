"""The definitions that workspace.yaml names: environment and recipe -> Dagster's objects."""

import os
import warnings

import dagster as dg

from prep_assets.build import Progress
from prep_assets.layout import Layout, partition_name
from prep_assets.orchestration.assets import build_assets
from prep_assets.orchestration.prepare import RANGE_BEGIN, RANGE_END
from prep_assets.orchestration.resources import Dataset
from prep_assets.recipe import EXAMPLE, RECIPE_VARIABLE, Recipe, load_recipe
from prep_assets.workspace import settle_shards

# Each is pinned by tests/test_dagster_behaviour.py: a change that matters fails there, not in a line nobody reads.
warnings.filterwarnings("ignore", category=dg.BetaWarning)

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


def build_definitions(recipe: Recipe, progress: Progress | None = None) -> dg.Definitions:
    """The asset graph of one recipe."""
    layout = Layout(recipe.output, recipe.work)
    recipe = settle_shards(recipe, layout)
    assets = build_assets(recipe)
    tags = {RANGE_BEGIN: partition_name(0), RANGE_END: partition_name(recipe.num_shards - 1)}
    return dg.Definitions(
        assets=assets,
        jobs=[dg.define_asset_job("refresh", selection=dg.AssetSelection.assets(*assets), tags=tags)],
        resources={"dataset": Dataset(recipe, layout, progress or Progress())},
        executor=dg.multiprocess_executor.configured(FORK_SERVER),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The recipe that PREP_ASSETS_RECIPE names, or the packaged example."""
    return build_definitions(load_recipe(os.environ.get(RECIPE_VARIABLE, EXAMPLE)))
