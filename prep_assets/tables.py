"""Plans and versions as text for people."""

from collections.abc import Iterable, Sequence

import click

from prep_assets.layout import partition_name
from prep_assets.plan import Plan
from prep_assets.prepare import size
from prep_assets.versions import Listed

MOST_NAMES = 8  # shards named on a line


def print_plan(plan: Plan) -> None:
    """What would run and why, then what it would cost."""
    if plan.pinned:
        click.echo(f"version {plan.pinned} is pinned: nothing is published until prep-assets unpin")
    if plan.is_fresh:
        click.echo(f"all is fresh: {plan.num_shards} shards")
        return
    groups: dict[tuple[str, str], list[int | None]] = {}
    for stale in plan.stale:
        groups.setdefault((stale.stage, stale.reason), []).append(stale.shard)
    _print_table([(stage, reason, _names(shards)) for (stage, reason), shards in groups.items()])
    click.echo(
        f"\n{plan.documents_to_tokenize:,} documents to tokenize, at most {plan.files_to_read:,} files"
        f" ({size(plan.size_to_read)} of text) to read, {size(plan.size_to_write)} to write before anything is removed"
    )
    if plan.documents:
        mean = plan.documents / plan.num_shards
        click.echo(
            f"{plan.documents:,} documents in {plan.num_shards} shards:"
            f" {plan.smallest_shard:,} to {plan.largest_shard:,}, {mean:,.0f} on average"
        )
    if plan.advice:
        click.echo(f"warning: {plan.advice}")
    if plan.seconds is not None:
        click.echo(f"about {plan.seconds:,.0f} s beyond Dagster's start, as the last ones took")


def print_versions(versions: Iterable[Listed]) -> None:
    """One line a version, the newest last."""
    rows = [("version", "published", "documents", "tokens", "own bytes", "against the one before", "")]
    for it in versions:
        held = ("latest" if it.is_latest else "") + (" pinned" if it.is_pinned else "")
        counts = (f"{it.publication.documents:,}", f"{it.publication.tokens:,}", size(it.own_size))
        change = f"{it.changed_shards} shards, {it.documents_more:+,} documents"
        rows.append((it.publication.id, it.publication.published, *counts, change, held.strip()))
    _print_table(rows)


def _names(shards: Sequence[int | None]) -> str:
    names = [partition_name(shard) for shard in shards if shard is not None]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return " ".join(names[:MOST_NAMES]) + more


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
