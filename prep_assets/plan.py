"""Plan: what is fresh and what is stale, and why, and what a refresh would cost.

A function of the recipe, the source index, the receipts and the publication record: of what lies on the disk, never of
a history of runs. The commands, the sensor, the schedule, the manifest and its check all ask it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from prep_assets.build import Build, Made
from prep_assets.digest import Digests, shard_of_name, shards_of
from prep_assets.errors import DamagedFileError, NotReadyError
from prep_assets.formats.publications import Publication, read_pin, read_publications
from prep_assets.formats.source_index import SourceIndex, read_digests, read_index
from prep_assets.layout import partition_name
from prep_assets.publication import is_visible
from prep_assets.receipt import STAGES, Stage
from prep_assets.scan import exclusion_of
from prep_assets.sources.files import split_name
from prep_assets.workspace import BYTES_PER_TOKEN

MOST_COUNTED = 5_000_000  # documents of changed files: of more, a plan tells no numbers but "at most"
MUCH_REWRITTEN, LITTLE_REWRITTEN = 1_000_000_000, 250_000_000  # bytes

_REASONS = {
    "code": "code changed",
    "keep_columns": "kept columns changed",
    "tokenizer": "tokenizer or its options changed",
    "tokens": "tokens changed",
    "tokens_per_shard": "tokens_per_shard changed",
    "dtype": "data type changed",
}


@dataclass(frozen=True)
class Stale:
    """One thing that would run; shard None: the manifest."""

    stage: str
    shard: int | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """All that a refresh would do now. Sizes in bytes; seconds None: no receipt tells how long such work takes."""

    stale: tuple[Stale, ...]
    pinned: str | None
    num_shards: int
    documents: int | None  # of the whole source; None with shard_by: file, which reads nothing to plan
    documents_to_tokenize: int
    files_to_read: int
    size_to_read: int
    size_to_write: int  # also the disk needed at the peak: nothing is removed before the new version is published
    shard_size: int  # of an average shard's payloads, as far as they are made
    smallest_shard: int | None  # in documents
    largest_shard: int | None
    seconds: float | None

    @property
    def is_fresh(self) -> bool:
        return not self.stale

    @property
    def shards(self) -> list[int]:
        """The shards that have something stale."""
        return sorted({stale.shard for stale in self.stale if stale.shard is not None})

    @property
    def advice(self) -> str | None:
        """Where a refresh of one document rewrites much: the number of shards that would rewrite little."""
        rewritten = 2 * self.shard_size  # a document changes the shard that it was in and the one that it goes to
        if rewritten <= MUCH_REWRITTEN:
            return None
        shards = 2 ** math.ceil(math.log2(self.num_shards * rewritten / LITTLE_REWRITTEN))
        return (
            f"each refresh rewrites {rewritten / 1e9:,.1f} GB or more; shards: {shards} would rewrite"
            f" {self.num_shards * rewritten / shards / 1e9:,.1f} GB"
        )

    def as_json(self) -> dict[str, Any]:
        """What `plan --json` prints."""
        stale = [
            {"stage": it.stage, "shard": None if it.shard is None else partition_name(it.shard), "reason": it.reason}
            for it in self.stale
        ]
        others = {key: value for key, value in vars(self).items() if key != "stale"}
        return {"fresh": self.is_fresh, "stale": stale, **others}


def make_plan(build: Build) -> Plan:
    """What a refresh would do. Reads receipts, and the digests of changed files alone."""
    publications = read_publications(build.layout.publications).versions
    last = publications[-1] if publications else None
    changes = _Changes(build, last)
    made = {shard: build.made(shard) for shard in range(build.num_shards)}
    stale: list[Stale] = []
    for shard, stages in made.items():
        stale += [Stale(stage, shard, _reason(build, changes, stage, shard, it))
                  for stage, it in stages.items() if not it.is_fresh]  # fmt: skip
    stale.sort(key=lambda it: (it.shard, STAGES.index(it.stage)))
    cost = _cost(build, changes, stale)
    pinned = read_pin(build.layout.pin)
    if stale:
        stale.append(Stale("dataset_manifest", None, "upstream stale"))
    elif last is None or not is_visible(build.layout, last.id) or not _published(last, made):
        stale.append(Stale("dataset_manifest", None, "not published"))
    counts = [entry.documents for entry in build.index.shards if entry.documents is not None]
    return Plan(
        stale=() if pinned else tuple(stale),
        pinned=pinned,
        num_shards=build.num_shards,
        documents=sum(counts) if counts else None,
        shard_size=sum(it.receipt.bytes for stages in made.values() for it in stages.values() if it.receipt)
        // build.num_shards,
        smallest_shard=min(counts, default=None),
        largest_shard=max(counts, default=None),
        **cost,
    )


def reasons(build: Build, stage: Stage, shards: Iterable[int]) -> dict[int, str]:
    """Why a stage would run for these shards; those for which it is fresh are not there. A pin changes nothing here."""
    found = {shard: build.made(shard)[stage] for shard in shards}
    stale = {shard: made for shard, made in found.items() if not made.is_fresh}
    is_asked = bool(stale) and stage == "raw_dataset"  # the others' reasons need no documents counted
    versions = read_publications(build.layout.publications).versions if is_asked else ()
    changes = _Changes(build, versions[-1] if versions else None)
    return {shard: _reason(build, changes, stage, shard, made) for shard, made in stale.items()}


def _published(publication: Publication, made: dict[int, dict[Stage, Made]]) -> bool:
    pairs = [stages["memmap_shards"].payload for stages in made.values()]
    return [names[-1] for names in publication.payloads] == [path.name if path else None for path in pairs]


def _reason(build: Build, changes: "_Changes", stage: Stage, shard: int, made: Made) -> str:
    if made.made_from is None:
        return "upstream stale"
    if made.receipt is not None:
        kept = "special tokens in texts are an error now"
        return "damaged" if made.is_damaged else kept if made.has_files else "files were dropped and are needed again"
    former = build.newest(stage, shard)
    if former is None:
        return "not made yet"
    changed = [key for key, value in made.made_from.items() if former.made_from.get(key) != value]
    reasons = [_REASONS[key] for key in changed if key != "documents"]
    if "documents" in changed:
        reasons.append(changes.words(shard) if stage == "raw_dataset" else "documents changed")
    return ", ".join(reasons) or "its payload is gone"


class _Changes:
    """The documents that came and went since the last publication, counted in the files that changed, when asked."""

    def __init__(self, build: Build, last: Publication | None) -> None:
        self._build, self._last = build, last

    @cached_property
    def _former(self) -> SourceIndex | None:
        return _former_index(self._build, self._last)

    @cached_property
    def files(self) -> list[int] | None:
        """Places of the changed files in the index; None: not known."""
        if self._former is None:
            return None
        former = {file.content for file in self._former.files}
        return [at for at, file in enumerate(self._build.index.files) if file.content not in former]

    @cached_property
    def _counts(self) -> tuple[Counter[int], Counter[int]] | None:
        build, former = self._build, self._former
        if former is None or build.index.shard_by == "file" or former.excluded != build.index.excluded:
            return None
        contents, former_contents = ({file.content for file in it.files} for it in (build.index, former))
        changed = sum(file.documents or 0 for file in build.index.files if file.content not in former_contents)
        if changed > MOST_COUNTED:
            return None
        try:
            now, before = _digests(build, build.index, former_contents), _digests(build, former, contents)
        except DamagedFileError:  # the former index's digests are gone: only the numbers are not known
            return None
        return _more(now, before, build.num_shards), _more(before, now, build.num_shards)

    @property
    def new(self) -> Counter[int] | None:
        """New documents of each shard; None: not known."""
        return self._counts[0] if self._counts else None

    def words(self, shard: int) -> str:
        """What changed in a shard."""
        if self._former and self._former.excluded != self._build.index.excluded:
            return "source or exclusion changed"
        count = max(counted[shard] for counted in self._counts) if self._counts else 0
        return f"source changed: {count} document{'s' * (count != 1)}" if count else "source changed"


def _former_index(build: Build, last: Publication | None) -> SourceIndex | None:
    try:
        return read_index(build.layout.index, last.index) if last else None
    except (NotReadyError, DamagedFileError):
        return None


def _digests(build: Build, index: SourceIndex, others: set[str]) -> Digests:
    """Of the documents in the files whose content the other index has not."""
    exclusion = exclusion_of(build.recipe)
    found = [np.empty((0, 16), np.uint8)]
    for file in index.files:
        if file.content not in others:
            batches = read_digests(build.layout.index, index, file)
            found += [batch.digests[exclusion.keeps(batch.digests, batch.key)] for batch in batches]
    return np.concatenate(found)


def _more(one: Digests, other: Digests, num_shards: int) -> Counter[int]:
    """How many documents, by shard, one has more often than the other."""
    together = np.concatenate([one, other])
    values, places = np.unique(np.ascontiguousarray(together).view("V16").ravel(), return_inverse=True)
    sign = np.concatenate([np.ones(len(one), np.int64), -np.ones(len(other), np.int64)])
    surplus = np.bincount(places, sign, minlength=len(values)).astype(np.int64)
    digests = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, 16)
    shards = shards_of(digests, num_shards) if len(digests) else np.empty(0, np.int64)
    counts = np.bincount(shards, np.maximum(surplus, 0), minlength=num_shards).astype(np.int64)
    return Counter(dict(enumerate(counts.tolist())))


def _cost(build: Build, changes: _Changes, stale: Sequence[Stale]) -> dict[str, Any]:
    """What the stale stages of shards would tokenize, read and write, and how long former ones took."""
    to_tokenize, size, seconds, is_timed = 0, 0.0, 0.0, bool(stale)
    for it in stale:
        assert it.shard is not None
        stage: Stage = it.stage  # type: ignore[assignment]
        former = build.newest(stage, it.shard)
        entry = build.index.shards[it.shard]
        documents = entry.documents if entry.documents is not None else (former.documents if former else 0)
        size += former.bytes if former and former.documents else _guess(build, stage, documents)
        share = 1.0
        if stage == "tokenized_partitions":
            new = documents
            if former and former.made_from["tokenizer"] == build.facts.identity and changes.new is not None:
                new = min(documents, changes.new[it.shard])
            to_tokenize += new
            share = new / former.tokenized if former and former.tokenized else 1.0
        if former:
            seconds += former.seconds * share
        is_timed = is_timed and former is not None
    files = _files_to_read(
        build, changes, [it.shard for it in stale if it.stage == "raw_dataset" and it.shard is not None]
    )
    return {
        "documents_to_tokenize": to_tokenize,
        "files_to_read": len(files),
        "size_to_read": sum(build.index.files[at].text_size for at in files),
        "size_to_write": round(size),
        "seconds": round(seconds, 1) if is_timed else None,
    }


def _guess(build: Build, stage: Stage, documents: int) -> float:
    """Bytes that a stage writes for so many documents of average length, before any receipt tells."""
    text = sum(file.text_size for file in build.index.files)
    total = sum(file.documents or 0 for file in build.index.files)
    own = text * documents / total if total else text / build.num_shards
    tokens = own / BYTES_PER_TOKEN
    item = build.dtype.itemsize if stage == "memmap_shards" else build.facts.dtype.itemsize
    return own + 48 * documents if stage == "raw_dataset" else tokens * item + 60 * documents


def _files_to_read(build: Build, changes: _Changes, shards: Sequence[int]) -> list[int]:
    """Places in the index of the files that making these shards' documents reads, at most."""
    if not shards:
        return []
    files = range(len(build.index.files))
    if build.index.shard_by == "file":
        return [
            at for at in files if shard_of_name(split_name(build.index.files[at].name)[0], build.num_shards) in shards
        ]
    has_former = all(build.former("raw_dataset", shard) for shard in shards)
    return list(files) if changes.files is None or not has_former else changes.files
