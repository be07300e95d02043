"""What a run of the refresh job is asked for: which shards, and its tags."""

from collections import defaultdict
from collections.abc import Sequence

import dagster as dg

from prep_assets.build import Build
from prep_assets.layout import partition_name
from prep_assets.orchestration.events import MATERIALIZED, RANGE_BEGIN, RANGE_END, SHARDS_TAG, SOME, some, versions_of
from prep_assets.orchestration.resources import INDEX_TAG, Dataset
from prep_assets.plan import Plan
from prep_assets.receipt import STAGES

WHY_TAG = "prep_assets/why"  # of a run: for people


def due_shards(instance: dg.DagsterInstance, dataset: Dataset, build: Build, plan: Plan) -> list[int]:
    """The stale shards, and those of which Dagster's history shows another content than they have: events are due."""
    shards = set(plan.shards)
    known = {stage: versions_of(instance, dataset.key(stage), MATERIALIZED) for stage in STAGES}
    for shard in range(build.num_shards):
        for stage, made in build.made(shard).items():
            if made.receipt and known[stage].get(partition_name(shard)) != made.receipt.content:
                shards.add(shard)
    return sorted(shards)


def run_tags(dataset: Dataset, build: Build, plan: Plan, shards: Sequence[int]) -> dict[str, str]:
    """Of a run of the refresh job that is for these shards; without any, for the manifest alone."""
    shards = shards or [0]  # a run of the job has a range, whatever it is for
    return dataset.tags | {
        RANGE_BEGIN: partition_name(shards[0]),
        RANGE_END: partition_name(shards[-1]),
        SHARDS_TAG: ",".join(map(partition_name, shards)),
        INDEX_TAG: build.index.id,
        WHY_TAG: why(plan) or "the history lacks events",
    }


def why(plan: Plan) -> str:
    """The reasons of a plan in a line, each with the shards that it holds for; empty where nothing is stale."""
    found: dict[str, list[str]] = defaultdict(list)
    for it in plan.stale:
        if it.reason != "upstream stale":
            found[it.reason].append("manifest" if it.shard is None else partition_name(it.shard))
    reasons = [f"{reason} ({some(list(dict.fromkeys(names)))})" for reason, names in found.items()]
    return "; ".join(reasons[:SOME])
