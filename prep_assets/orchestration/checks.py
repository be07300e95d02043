"""Asset checks: read back what was made, and ask the plan whether it is all."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from prep_assets.formats.publications import read_publications
from prep_assets.orchestration.events import MATERIALIZED, clear_failures, requested_partitions
from prep_assets.orchestration.requests import why
from prep_assets.orchestration.resources import Dataset
from prep_assets.plan import make_plan
from prep_assets.round_trip import check_round_trip, check_sizes

WARNING, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR
WANTED_OUT = frozenset({"excluded"})  # what is left out because the recipe says so


def build_checks(
    memmap_shards: dg.AssetsDefinition, dataset_manifest: dg.AssetsDefinition
) -> list[dg.AssetChecksDefinition]:
    """The checks of the pairs and of the manifest."""

    @dg.asset_check(asset=memmap_shards, partitions_def=memmap_shards.partitions_def)
    def round_trip(context: dg.AssetCheckExecutionContext, dataset: dg.ResourceParam[Dataset]) -> Any:
        """Files have their sizes; sampled documents' ids are in range and what their texts encode to."""
        with clear_failures():
            build = dataset.pinned(context)
        [spec] = context.check_specs
        made, partitions = set(requested_partitions(context)), context.partition_keys
        targets = _targets(context.instance, spec.asset_key, set(partitions))
        # Dagster has planned an evaluation of the whole range: of shards that this run is not for, only sizes are due.
        for partition in partitions:
            found = (check_round_trip if partition in made else check_sizes)(build, int(partition))
            yield dg.AssetCheckEvaluation(
                asset_key=spec.asset_key,
                check_name=spec.name,
                partition=partition,
                passed=found.fault is None,
                severity=ERROR,
                description=found.fault,
                metadata={"sampled": found.sampled, "compared": found.compared, "lossless": found.lossless},
                target_materialization_data=targets.get(partition),
                blocking=spec.blocking,
            )
        yield dg.Output(None)  # the step wants one result; an AssetCheckResult would be one more evaluation

    names = {
        "rows_left_out": "Every row of the source has become a document with tokens.",
        "end_tokens": "Some document ends with an end token, which trainers mask or reset at.",
        "up_to_date": "The plan has nothing to do: the published version is what the source holds, as last scanned.",
    }

    @dg.multi_asset_check(
        name="manifest_checks",
        specs=[dg.AssetCheckSpec(name, asset=dataset_manifest, description=text) for name, text in names.items()],
        can_subset=True,
    )
    def manifest_checks(
        context: dg.AssetCheckExecutionContext, dataset: dg.ResourceParam[Dataset]
    ) -> Iterator[dg.AssetCheckResult]:
        with clear_failures():
            build = dataset.build()
            plan, versions = make_plan(build), read_publications(build.layout.publications).versions
            receipts = [build.made(shard)["memmap_shards"].receipt for shard in range(build.num_shards)]
        left_out = dict(versions[-1].left_out) if versions else {}
        ended = sum(receipt.with_end for receipt in receipts if receipt)
        found: dict[str, tuple[bool, dict[str, Any]]] = {
            "rows_left_out": (not any(left_out.keys() - WANTED_OUT), left_out),
            "end_tokens": (ended > 0, {"documents with end token": ended}),
            "up_to_date": (plan.is_fresh, {"stale shards": len(plan.shards), "why": why(plan) or "nothing is stale"}),
        }
        for key in context.selected_asset_check_keys:
            passed, metadata = found[key.name]
            yield dg.AssetCheckResult(
                passed=passed, asset_key=key.asset_key, check_name=key.name, severity=WARNING, metadata=metadata
            )

    return [round_trip, manifest_checks]


def _targets(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: set[str]
) -> dict[str, AssetCheckEvaluationTargetMaterializationData]:
    """The newest materialization of each partition: without it, the UI says that the check is missing."""
    ids = list(instance.get_latest_storage_id_by_partition(asset, MATERIALIZED, partitions).values())
    wanted = dg.AssetRecordsFilter(asset, storage_ids=ids)
    records = instance.fetch_materializations(wanted, limit=len(ids)).records if ids else ()
    return {
        it.partition_key: AssetCheckEvaluationTargetMaterializationData(
            storage_id=it.storage_id, run_id=it.run_id, timestamp=it.timestamp
        )
        for it in records
        if it.partition_key is not None
    }
