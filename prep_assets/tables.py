"""Tables for people: plans and versions."""

from collections import Counter
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table

from prep_assets.layout import partition_name
from prep_assets.plan import Plan
from prep_assets.prepare import size
from prep_assets.versions import Listed

MOST_ROWS = 40


def print_plan(plan: Plan) -> None:
    """What would run and why, then what it would cost."""
    if plan.pinned:
        click.echo(f"version {plan.pinned} is pinned: nothing is published until prep-assets unpin")
    if plan.is_fresh:
        click.echo(f"all is fresh: {plan.num_shards} shards")
        return
    table = Table("stage", "shard", "reason")
    for stale in plan.stale[:MOST_ROWS]:
        table.add_row(stale.stage, "" if stale.shard is None else partition_name(stale.shard), stale.reason)
    Console().print(table)
    if len(plan.stale) > MOST_ROWS:
        counts = Counter(stale.stage for stale in plan.stale)
        click.echo(
            f"and {len(plan.stale) - MOST_ROWS} more: " + ", ".join(f"{n} {stage}" for stage, n in counts.items())
        )
    time = f"; about {plan.seconds:,.0f} s, as the last ones took" if plan.seconds is not None else ""
    click.echo(
        f"{plan.documents_to_tokenize:,} documents to tokenize; at most {plan.files_to_read:,} files"
        f" ({size(plan.size_to_read)} of text) to read; {size(plan.size_to_write)} to write, the disk needed at the peak{time}"
    )
    if plan.documents:
        mean = plan.documents / plan.num_shards
        click.echo(
            f"{plan.documents:,} documents in {plan.num_shards} shards:"
            f" {plan.smallest_shard:,} to {plan.largest_shard:,}, {mean:,.0f} on average"
        )


def print_versions(versions: Iterable[Listed]) -> None:
    """One line a version: the newest last."""
    table = Table("version", "published", "documents", "tokens", "bytes of its own", "against the one before", "")
    for it in versions:
        held = " pinned" if it.is_pinned else ""
        table.add_row(
            it.publication.id,
            it.publication.published,
            f"{it.publication.documents:,}",
            f"{it.publication.tokens:,}",
            size(it.own_size),
            f"{it.changed_shards} shards, {it.documents_more:+,} documents",
            ("latest" if it.is_latest else "") + held,
        )
    Console().print(table)
