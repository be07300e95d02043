"""Plan: what is fresh and what is stale, and why. Computed from what lies on the disk, never from a history of runs."""

from dataclasses import dataclass

from prep_assets.build import Build
from prep_assets.formats.publications import read_publications
from prep_assets.publication import is_visible
from prep_assets.receipt import STAGES


@dataclass(frozen=True)
class Stale:
    """One thing that would run; shard None: the manifest."""

    stage: str
    shard: int | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """All that a refresh would do now."""

    stale: tuple[Stale, ...]

    @property
    def is_fresh(self) -> bool:
        return not self.stale

    @property
    def shards(self) -> list[int]:
        """The shards that have something stale."""
        return sorted({stale.shard for stale in self.stale if stale.shard is not None})


def make_plan(build: Build) -> Plan:
    """What a refresh would do, from index, receipts and the publication record."""
    stale: list[Stale] = []
    payloads: list[str | None] = []
    for shard in range(build.num_shards):
        made = build.made(shard)
        upstream_is_stale = False
        for stage in STAGES:
            if not made[stage].is_fresh:
                stale.append(Stale(stage, shard, "upstream stale" if upstream_is_stale else "not made"))
                upstream_is_stale = True
        payload = made["memmap_shards"].payload
        payloads.append(payload.name if payload else None)
    versions = read_publications(build.layout.publications).versions
    if stale:
        stale.append(Stale("dataset_manifest", None, "upstream stale"))
    elif (
        not versions
        or [names[-1] for names in versions[-1].payloads] != payloads
        or not is_visible(build.layout, versions[-1].id)
    ):
        stale.append(Stale("dataset_manifest", None, "not published"))
    return Plan(tuple(stale))
