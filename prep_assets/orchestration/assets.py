"""The source and the four assets: partition keys -> stage -> receipt -> Dagster's events."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import dagster as dg

from prep_assets.build import CODE_VERSIONS, Build
from prep_assets.cleanup import clean_up
from prep_assets.formats.publications import read_publications
from prep_assets.layout import partition_name
from prep_assets.orchestration.events import (
    Event,
    clear_failures,
    observe,
    publication_metadata,
    receipt_metadata,
    report,
    requested_partitions,
    unobserved,
)
from prep_assets.orchestration.resources import Dataset
from prep_assets.plan import reasons
from prep_assets.receipt import Receipt, Stage
from prep_assets.recipe import Recipe
from prep_assets.stages.dataset_manifest import publish
from prep_assets.stages.memmap_shards import make_memmap_shards
from prep_assets.stages.raw_dataset import make_raw_partitions
from prep_assets.stages.tokenized_partitions import make_token_partitions

GROUP = "prep_assets"
SINGLE_RUN = dg.BackfillPolicy.single_run()


class Graph(NamedTuple):
    """The asset graph of one recipe; the source is observed, the others are made."""

    source_documents: dg.SourceAsset
    raw_dataset: dg.AssetsDefinition
    tokenized_partitions: dg.AssetsDefinition
    memmap_shards: dg.AssetsDefinition
    dataset_manifest: dg.AssetsDefinition


def build_assets(recipe: Recipe) -> Graph:
    """The assets of one recipe."""
    prefix = [recipe.name] if recipe.name else []
    shards = dg.StaticPartitionsDefinition([partition_name(shard) for shard in range(recipe.num_shards)])

    @dg.observable_source_asset(
        key_prefix=prefix,
        group_name=GROUP,
        partitions_def=shards,
        description=f"The documents of each shard where they come from: {recipe.dataset.name_or_path}",
    )
    def source_documents(
        context: dg.OpExecutionContext, dataset: dg.ResourceParam[Dataset]
    ) -> dg.DataVersionsByPartition:
        """Scans the source, and reports the shards whose documents changed."""
        with clear_failures(), dataset.running():
            index = dataset.scan(context)
        return dg.DataVersionsByPartition(unobserved(context.instance, dataset.key("source_documents"), index))

    @dg.asset(
        key_prefix=prefix,
        group_name=GROUP,
        kinds={"arrow"},
        partitions_def=shards,
        backfill_policy=SINGLE_RUN,
        deps=[source_documents],
        code_version=CODE_VERSIONS["raw_dataset"],
    )
    def raw_dataset(context: dg.AssetExecutionContext, dataset: dg.ResourceParam[Dataset]) -> Iterator[Any]:
        """The documents of each shard, in the source's order."""
        with clear_failures(), dataset.running():
            build = dataset.scanned(context)
            yield from observe(context.instance, source_documents.key, build.index)
            shards = [int(partition) for partition in requested_partitions(context)]
            why = reasons(build, "raw_dataset", shards)
            yield from report(context, _described(make_raw_partitions(build, shards), why))

    @dg.asset(
        key_prefix=prefix,
        group_name=GROUP,
        kinds={"arrow"},
        partitions_def=shards,
        backfill_policy=SINGLE_RUN,
        deps=[raw_dataset],
        code_version=CODE_VERSIONS["tokenized_partitions"],
    )
    def tokenized_partitions(context: dg.AssetExecutionContext, dataset: dg.ResourceParam[Dataset]) -> Iterator[Any]:
        """The token ids of each shard, one row a document."""
        yield from _each(context, dataset, "tokenized_partitions", make_token_partitions)

    @dg.asset(
        key_prefix=prefix,
        group_name=GROUP,
        kinds={"numpy"},
        partitions_def=shards,
        backfill_policy=SINGLE_RUN,
        deps=[tokenized_partitions],
        code_version=CODE_VERSIONS["memmap_shards"],
    )
    def memmap_shards(context: dg.AssetExecutionContext, dataset: dg.ResourceParam[Dataset]) -> Iterator[Any]:
        """Megatron indexed dataset of each shard: tokens in `.bin`, where they lie in `.idx`."""
        yield from _each(context, dataset, "memmap_shards", make_memmap_shards)

    @dg.asset(key_prefix=prefix, group_name=GROUP, kinds={"json"}, backfill_policy=SINGLE_RUN, deps=[memmap_shards])
    def dataset_manifest(
        context: dg.AssetExecutionContext, dataset: dg.ResourceParam[Dataset]
    ) -> dg.MaterializeResult[Any]:
        """Verifies every shard and publishes a version of the dataset, with `fast_llm_dataset.json`."""
        with clear_failures(), dataset.running():
            build = dataset.pinned(context)
            former = read_publications(build.layout.publications).versions[-1:]
            publication = publish(build)
        clean_up(build)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(publication.id),
            metadata=publication_metadata(publication, former[0] if former else None, dataset.layout),
        )

    return Graph(source_documents, raw_dataset, tokenized_partitions, memmap_shards, dataset_manifest)


def _each(
    context: dg.AssetExecutionContext,
    dataset: Dataset,
    stage: Stage,
    make: Callable[[Build, Sequence[int]], Iterator[tuple[int, Receipt]]],
) -> Iterator[Event]:
    with clear_failures(), dataset.running():
        build = dataset.pinned(context)
        shards = [int(partition) for partition in requested_partitions(context)]
        why = reasons(build, stage, shards)
        yield from report(context, _described(make(build, shards), why))


def _described(
    receipts: Iterator[tuple[int, Receipt]], why: dict[int, str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for shard, receipt in receipts:
        yield partition_name(shard), receipt.content, receipt_metadata(receipt, why.get(shard))
