"""Four stages that do no work, for test_dagster_behaviour; in a module, so that the processes of steps can import it.

The source is a file, `{"00003": "text"}`. A raw version is its text, a token version the text without case.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from prep_assets.errors import DamagedFileError
from prep_assets.orchestration.events import Event, report, requested_partitions

KEYS = [f"{shard:05}" for shard in range(8)]
SHARDS = dg.StaticPartitionsDefinition(KEYS)
SINGLE_RUN = dg.BackfillPolicy.single_run()
PRELOADED = [
    "dagster",
    "dagster._cli",
    "dagster._core.executor.multiprocess",
    "dagster._core.storage.event_log.sqlite",
    "dagster._core.storage.runs.sqlite",
    "dagster._core.storage.schedules.sqlite",
    "dagster._grpc.types",
    "tests.dagster_stub",
]
EXECUTOR = {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": PRELOADED}}}
INDEX_TAG = "prep_assets/index"


def read_source() -> dict[str, str]:
    return json.loads(Path(os.environ["STUB_SOURCE"]).read_text())


def stage(context: dg.AssetExecutionContext, version: Callable[[str], str]) -> Iterator[Event]:
    """Reports each requested shard; stops at the one that STUB_FAILS names, as `memmap_shards/00005`."""
    run = context.instance.get_run_by_id(context.run_id)  # context.run lacks the tags that former steps added
    assert run is not None

    def receipts() -> Iterator[tuple[str, str, dict[str, Any]]]:
        for key in requested_partitions(context):
            if os.environ.get("STUB_FAILS") == f"{context.asset_key.to_user_string()}/{key}":
                raise DamagedFileError(f"shard {key} is damaged")
            text = version(read_source()[key])
            yield key, text, {"shard": key, "process": os.getpid(), "index": run.tags.get(INDEX_TAG, "none")}

    yield from report(context, receipts())


@dg.observable_source_asset(partitions_def=SHARDS)
def source_documents() -> dg.DataVersionsByPartition:
    return dg.DataVersionsByPartition(read_source())


@dg.asset(partitions_def=SHARDS, deps=[source_documents], code_version="1", backfill_policy=SINGLE_RUN)
def raw_dataset(context: dg.AssetExecutionContext) -> Iterator[Any]:
    context.instance.add_run_tags(context.run_id, {INDEX_TAG: "pinned"})
    yield from stage(context, str)


@dg.asset(partitions_def=SHARDS, deps=[raw_dataset], code_version="1", backfill_policy=SINGLE_RUN)
def tokenized_partitions(context: dg.AssetExecutionContext) -> Iterator[Any]:
    yield from stage(context, str.lower)


@dg.asset(partitions_def=SHARDS, deps=[tokenized_partitions], code_version="1", backfill_policy=SINGLE_RUN)
def memmap_shards(context: dg.AssetExecutionContext) -> Iterator[Any]:
    yield from stage(context, str.lower)


@dg.asset(deps=[memmap_shards], code_version="1", backfill_policy=SINGLE_RUN)
def dataset_manifest() -> dg.MaterializeResult:
    text = " ".join(read_source().values()).lower()
    return dg.MaterializeResult(data_version=dg.DataVersion(text), metadata={"dagster/row_count": len(text)})


@dg.asset_check(asset=memmap_shards, partitions_def=SHARDS)
def round_trip(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
    [spec] = context.check_specs
    for key in context.partition_keys:
        record = context.instance.get_latest_data_version_record(spec.asset_key, False, key)
        assert record is not None
        yield dg.AssetCheckEvaluation(
            asset_key=spec.asset_key,
            check_name=spec.name,
            passed=True,
            partition=key,
            target_materialization_data=AssetCheckEvaluationTargetMaterializationData(
                storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
            ),
        )
    yield dg.Output(None)  # the step wants one result; an AssetCheckResult would add an evaluation of no partition


STAGES = [raw_dataset, tokenized_partitions, memmap_shards]
defs = dg.Definitions(
    assets=[source_documents, *STAGES, dataset_manifest],
    asset_checks=[round_trip],
    jobs=[
        dg.define_asset_job(
            "refresh",
            selection=dg.AssetSelection.assets(*STAGES, dataset_manifest),
            tags={"dagster/asset_partition_range_start": KEYS[0], "dagster/asset_partition_range_end": KEYS[-1]},
        )
    ],
    executor=dg.multiprocess_executor.configured(EXECUTOR),
)
