"""Receipts -> Dagster's events: the one place that knows Dagster's tags."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.storage import tags as dagster_tags

from prep_assets.errors import PrepAssetsError
from prep_assets.formats.publications import Publication
from prep_assets.formats.source_index import SourceIndex
from prep_assets.layout import MANIFEST, Layout, partition_name
from prep_assets.receipt import Receipt

RANGE_BEGIN, RANGE_END = dagster_tags.ASSET_PARTITION_RANGE_START_TAG, dagster_tags.ASSET_PARTITION_RANGE_END_TAG
SHARDS_TAG = "prep_assets/shards"  # of a run: the shards of its range that it is for, "00001,00006"

# While a run carries this tag, a result makes no event of its own: ours stay the only ones. It is undocumented, and
# where it is gone Dagster's events come too (tests/test_dagster_behaviour.py says when).
DEFER_TAG: str | None = getattr(dagster_tags, "EXTERNALLY_MANAGED_ASSETS_TAG", None)

SOME = 5  # names that a line lists

MATERIALIZED, OBSERVED = dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION
Event = dg.AssetMaterialization | dg.AssetObservation | dg.MaterializeResult[Any]


def requested_partitions(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> Sequence[str]:
    """The partitions that this step makes and reports: those the run names in its tag, or its whole range."""
    partitions: Sequence[str] = context.partition_keys
    named = context.run.tags.get(SHARDS_TAG)
    if named is None or DEFER_TAG is None:  # without the tag, Dagster reports every partition of the range
        return partitions
    return sorted(set(partitions).intersection(named.split(",")))


def report(
    context: dg.AssetExecutionContext, receipts: Iterable[tuple[str, str, Mapping[str, Any]]]
) -> Iterator[Event]:
    """One materialization for each requested partition, as it is made, with its own version and provenance.

    receipts: (partition, data version, metadata) of the requested partitions, in any order, made while iterated over.
    A failure leaves those before it materialized. To be the last thing that an asset yields.
    """
    provenance = _provenance(context, requested_partitions(context))
    events = (
        dg.AssetMaterialization(
            context.asset_key,
            partition=partition,
            metadata=metadata,
            tags={**provenance.pop(partition), DATA_VERSION_TAG: version},
        )
        for partition, version, metadata in receipts
    )
    if DEFER_TAG is None:
        made = list(events)  # Dagster's events claim the whole range and must be older than ours: all first, then both
        yield dg.MaterializeResult()
        yield from made
    else:
        yield from events
        run_tags = cast(dict[str, str], context.run.tags)  # this process's copy alone: the stored run never changes
        run_tags[DEFER_TAG] = "true"
        try:
            yield dg.MaterializeResult()
        finally:
            del run_tags[DEFER_TAG]
    assert not provenance, f"{context.asset_key.to_user_string()}: no receipt for {', '.join(provenance)}"


def _provenance(context: dg.AssetExecutionContext, partitions: Sequence[str]) -> dict[str, dict[str, str]]:
    """The tags that Dagster itself would write: what it compares with later to tell fresh from stale."""
    asset = context.job_def.asset_layer.get(context.asset_key)
    own = {CODE_VERSION_TAG: asset.code_version or context.run_id, DATA_VERSION_IS_USER_PROVIDED_TAG: "true"}
    tags = {partition: dict(own) for partition in partitions}
    for upstream in asset.parent_keys:
        records = _latest(context.instance, upstream, partitions)
        for partition, of_partition in tags.items():
            storage_id, version = records.get(partition, (NULL_EVENT_POINTER, DEFAULT_DATA_VERSION.value))
            of_partition[get_input_data_version_tag(upstream)] = version
            of_partition[get_input_event_pointer_tag(upstream)] = str(storage_id)
    return tags


def _latest(instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Id and data version of each partition's newest event; of an asset that is only observed, its observation."""
    for kind in (MATERIALIZED, OBSERVED):
        if ids := instance.get_latest_storage_id_by_partition(asset, kind, set(partitions)):
            versions = versions_of(instance, asset, kind)
            return {
                partition: (at, versions.get(partition, DEFAULT_DATA_VERSION.value)) for partition, at in ids.items()
            }
    return {}


def versions_of(instance: dg.DagsterInstance, asset: dg.AssetKey, kind: dg.DagsterEventType) -> Mapping[str, str]:
    """The data version of each partition's newest event of a kind; one query, however many partitions there are."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(asset, kind, [DATA_VERSION_TAG])
    return {partition: of_partition[DATA_VERSION_TAG] for partition, of_partition in tags.items()}


def unobserved(instance: dg.DagsterInstance, source: dg.AssetKey, index: SourceIndex) -> dict[str, str]:
    """The version of each shard whose version in the index is not the one that was observed last."""
    known = versions_of(instance, source, OBSERVED)
    versions = {partition_name(shard): entry.version for shard, entry in enumerate(index.shards)}
    return {partition: version for partition, version in versions.items() if known.get(partition) != version}


def observe(instance: dg.DagsterInstance, source: dg.AssetKey, index: SourceIndex) -> Iterator[dg.AssetObservation]:
    """The same as events, for a step that works from this index to yield before it reads what it is made from."""
    for partition, version in unobserved(instance, source, index).items():
        yield dg.AssetObservation(source, partition=partition, tags={DATA_VERSION_TAG: version})


@contextmanager
def clear_failures() -> Iterator[None]:
    """An error of ours or the disk's becomes the headline of the step's failure, not a cause below a wall of frames."""
    try:
        yield
    except (PrepAssetsError, OSError) as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error


def receipt_metadata(receipt: Receipt, reason: str | None) -> dict[str, Any]:
    """What the UI shows of a shard; sizes in bytes. reason: why it was made, None where it was there already."""
    metadata: dict[str, Any] = {
        "dagster/partition_row_count": receipt.documents,
        "why": reason or "nothing to do: made before from the same inputs",
        "bytes": receipt.bytes,
    }
    if reason is None:
        metadata["reused"] = True
    else:
        metadata |= {"seconds": round(receipt.seconds, 3), "documents copied": receipt.reused}
    if receipt.tokens:
        metadata |= {"tokens": receipt.tokens, "with end token": receipt.with_end, "engine": ", ".join(receipt.engines)}
        if reason is not None and receipt.seconds:
            metadata["tokens/s"] = round(receipt.tokens / receipt.seconds)
    if reason is not None and receipt.stage == "tokenized_partitions":
        metadata["documents tokenized"] = receipt.tokenized
    return metadata | {f"left out: {what}": count for what, count in receipt.left_out.items() if count}


def some(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    return ", ".join(names[:SOME]) + (f" and {len(names) - SOME} more" if len(names) > SOME else "")


def publication_metadata(publication: Publication, former: Publication | None, layout: Layout) -> dict[str, Any]:
    """What the UI shows of a published version. former: the one that was published last before it."""
    folder = layout.version(publication.id)
    before = dict(enumerate(former.payloads)) if former else {}
    pairs = {shard: names[-1:] for shard, names in enumerate(publication.payloads)}
    changed = [partition_name(shard) for shard, name in pairs.items() if before.get(shard, ())[-1:] != name]
    return {
        "dagster/row_count": publication.documents,
        "why": f"changed: {some(changed)}" if changed else "nothing to do: published before",
        **({} if changed else {"reused": True}),
        "tokens": publication.tokens,
        "version": publication.id,
        "folder": dg.MetadataValue.path(str(folder)),
        "manifest": dg.MetadataValue.path(str(folder / MANIFEST)),
        **{f"left out: {reason}": count for reason, count in publication.left_out.items()},
    }
