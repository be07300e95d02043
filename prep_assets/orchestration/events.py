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
from prep_assets.layout import MANIFEST, Layout
from prep_assets.receipt import Receipt

SHARDS_TAG = "prep_assets/shards"  # of a run: the shards of its range that it is for, "00001,00006"

# While a run carries this tag, a result makes no event of its own: ours stay the only ones. It is undocumented, and
# where it is gone Dagster's events come too (tests/test_dagster_behaviour.py says when).
DEFER_TAG: str | None = getattr(dagster_tags, "EXTERNALLY_MANAGED_ASSETS_TAG", None)

Event = dg.AssetMaterialization | dg.MaterializeResult[Any]


def requested_partitions(context: dg.AssetExecutionContext) -> Sequence[str]:
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
    provenance = {partition: _provenance(context, partition) for partition in requested_partitions(context)}
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


def _provenance(context: dg.AssetExecutionContext, partition: str) -> dict[str, str]:
    """The tags that Dagster itself would write: what it compares with later to tell fresh from stale."""
    asset = context.job_def.asset_layer.get(context.asset_key)
    tags = {CODE_VERSION_TAG: asset.code_version or context.run_id, DATA_VERSION_IS_USER_PROVIDED_TAG: "true"}
    for upstream in asset.parent_keys:
        # None: a materialization if there is one, otherwise an observation
        record = context.instance.get_latest_data_version_record(upstream, None, partition)
        known = (record.event_log_entry.tags or {}) if record else {}
        tags[get_input_data_version_tag(upstream)] = known.get(DATA_VERSION_TAG, DEFAULT_DATA_VERSION.value)
        tags[get_input_event_pointer_tag(upstream)] = str(record.storage_id) if record else NULL_EVENT_POINTER
    return tags


@contextmanager
def clear_failures() -> Iterator[None]:
    """An error of ours or the disk's becomes the headline of the step's failure, not a cause below a wall of frames."""
    try:
        yield
    except (PrepAssetsError, OSError) as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error


def receipt_metadata(receipt: Receipt) -> dict[str, Any]:
    """What the UI shows of a shard; sizes in bytes."""
    speed = receipt.tokens / receipt.seconds if receipt.tokens and receipt.seconds else 0.0
    metadata: dict[str, Any] = {
        "dagster/partition_row_count": receipt.documents,
        "bytes": receipt.bytes,
        "content": receipt.content,
        "seconds": round(receipt.seconds, 3),
    }
    if receipt.tokens:
        metadata |= {"tokens": receipt.tokens, "tokens/s": round(speed), "with end token": receipt.with_end}
    if receipt.engine:
        metadata |= {"engine": receipt.engine, "tokenized": receipt.tokenized}
    return metadata | {f"left out: {reason}": count for reason, count in receipt.left_out.items()}


def publication_metadata(publication: Publication, layout: Layout) -> dict[str, Any]:
    """What the UI shows of a published version."""
    folder = layout.version(publication.id)
    return {
        "dagster/row_count": publication.documents,
        "tokens": publication.tokens,
        "version": publication.id,
        "folder": dg.MetadataValue.path(str(folder)),
        "manifest": dg.MetadataValue.path(str(folder / MANIFEST)),
        **{f"left out: {reason}": count for reason, count in publication.left_out.items()},
    }
