"""Build: one recipe at one source index, and from these what each stage's payloads are made from."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from prep_assets.cpus import available_cpus
from prep_assets.engines import Engine
from prep_assets.errors import DamagedFileError, EngineError, NotReadyError, RecipeError
from prep_assets.formats.differences import Difference, read_differences, write_difference
from prep_assets.formats.source_index import SourceIndex, current_id
from prep_assets.layout import Layout, partition_name, piece_files
from prep_assets.payload import lock, retire
from prep_assets.receipt import NAME, STAGES, Piece, Receipt, Stage, fingerprint, read_receipt
from prep_assets.recipe import Recipe
from prep_assets.scan import reading_of
from prep_assets.tokenizer import Tokenizer
from prep_assets.tokenizer_facts import TokenizerFacts, facts_of, load_tokenizer

# Raised when a stage gives other content for the same inputs, not at each release.
CODE_VERSIONS: dict[Stage, str] = {"raw_dataset": "1", "tokenized_partitions": "1", "memmap_shards": "1"}


Item = TypeVar("Item")


@dataclass
class Progress:
    """Hears of work as it is done; the command line shows it, Dagster logs it."""

    advance: Callable[[str, int, int, int], None] = lambda stage, shard, documents, tokens: None
    note: Callable[[str], None] = lambda message: None


@dataclass(frozen=True)
class Build:
    """What the stages are told: the recipe, where files lie, and the one index that this run works from."""

    recipe: Recipe
    layout: Layout
    index: SourceIndex
    progress: Progress = field(default_factory=Progress)
    opened: dict[Path, Any] = field(default_factory=dict)  # former partitions that were read and found right
    _choosing: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Raises NotReadyError where the recipe reads the source in another way than the index was made."""
        if (self.index.reading, self.index.shard_by) != (reading_of(self.recipe), self.recipe.dataset.shard_by):
            raise NotReadyError("the recipe changed since the source was scanned; run the same command again")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The recipe's tokenizer; loaded only where texts are encoded, or it is not known yet."""
        return load_tokenizer(self.recipe, self.layout)

    @cached_property
    def facts(self) -> TokenizerFacts:
        """What is known of the tokenizer without loading it."""
        return facts_of(self.recipe, self.layout)

    @cached_property
    def disproved(self) -> frozenset[str]:
        """Engines, with their versions, that gave other ids than the reference for this tokenizer."""
        found = read_differences(self.layout.differences).found
        return frozenset(it.engine for it in found if it.tokenizer == self.facts.identity)

    @property
    def engine(self) -> Engine:
        """What encodes: chosen, and proven on hostile strings, when first needed."""
        with self._choosing:  # shards are made on several threads, and a load takes a second
            if "_engine" not in vars(self):
                vars(self)["_engine"] = self.tokenizer.choose_engine(self.recipe.tokenizer.engine, self.disproved)
            engine: Engine = vars(self)["_engine"]
            return engine

    def threads(self, workers: int) -> int:
        """How many a stage keeps busy that the recipe allows so many."""
        return min(workers, available_cpus())

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens in `.bin`."""
        return pair_dtype(self.recipe, self.facts)

    @property
    def num_shards(self) -> int:
        return len(self.index.shards)

    def made(self, shard: int) -> dict[Stage, "Made"]:
        """What each stage made of a shard from the inputs it has now, and whether that is fresh.

        A payload whose files were dropped is fresh as long as nothing downstream has to be made from them.
        """
        found: list[tuple[Stage, dict[str, str] | None, Path | None, Receipt | None]] = []
        receipt: Receipt | None = None
        for stage in STAGES:
            made_from = self._made_from(stage, shard, receipt)
            payload = self.layout.payload(stage, shard, fingerprint(**made_from)) if made_from else None
            receipt = _readable(payload) if payload else None
            found.append((stage, made_from, payload, receipt))
        made: dict[Stage, Made] = {}
        is_needed = True
        for stage, made_from, payload, receipt in reversed(found):
            has_files = payload is not None and payload.is_dir()
            is_fresh = receipt is not None and (has_files or not is_needed)
            is_damaged = has_files and (receipt is None or not has_sizes(payload or Path(), receipt.pieces))
            is_damaged = is_damaged or (receipt is not None and not self.disproved.isdisjoint(receipt.engines))
            is_fresh = is_fresh and not is_damaged
            if is_fresh and stage == "tokenized_partitions" and receipt and receipt.with_special_text:
                is_fresh = self.recipe.tokenizer.special_tokens_in_text != "error"
            made[stage] = Made(made_from, payload, receipt, has_files, is_damaged, is_fresh)
            is_needed = not is_fresh
        return made

    def _made_from(self, stage: Stage, shard: int, upstream: Receipt | None) -> dict[str, str] | None:
        """All that a stage's payload is made from, and nothing more; None where upstream was not made."""
        common = {"code": CODE_VERSIONS[stage], "keep_columns": json.dumps(self.recipe.dataset.keep_columns)}
        if stage == "raw_dataset":
            return common | {"documents": self.index.shards[shard].version}
        if upstream is None:
            return None
        if stage == "tokenized_partitions":
            return common | {"documents": upstream.content, "tokenizer": self.facts.identity}
        return common | {
            "tokens": upstream.content,
            "tokens_per_shard": str(self.recipe.tokens_per_shard),
            "dtype": self.dtype.str,
        }

    def newest(self, stage: Stage, shard: int) -> Receipt | None:
        """The receipt of the payload that was made last, whatever from, and whether or not its files are there."""
        return next((receipt for _, receipt in self._receipts(stage, shard, NAME, "*.json")), None)

    def former(self, stage: Stage, shard: int) -> list[tuple[Path, Receipt]]:
        """The payloads of a stage and shard whose files are there, the newest first."""
        return list(self._receipts(stage, shard, NAME))

    def _receipts(self, stage: Stage, shard: int, *names: str) -> Iterator[tuple[Path, Receipt]]:
        folder = self.layout.payload(stage, shard, "_").parent
        paths = [path for name in names for path in folder.glob(f"[!.]*/{name}" if name == NAME else f"[!.]{name}")]
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True):
            payload = path.parent if path.name == NAME else path.with_suffix("")
            if (receipt := _readable(payload)) is not None:
                yield payload, receipt

    def refuse_overtaken(self) -> None:
        """Raises NotReadyError where the source was scanned again since: an older run must not overtake a newer."""
        current = current_id(self.layout.index)
        if current != self.index.id:
            raise NotReadyError(
                f"this run worked from source index {self.index.id}, but {current} is newer:"
                " it must not overtake; materialize again, or run prep-assets prepare"
            )

    def upstream(self, stage: Stage, shard: int) -> tuple[Path, Receipt]:
        """The payload to read from. Raises NotReadyError, naming the command that makes it."""
        made = self.made(shard)[stage]
        if made.payload is None or made.receipt is None or not made.has_files:
            raise NotReadyError(
                f"{stage}, shard {partition_name(shard)}: not made for the current source;"
                f" materialize {stage} for partition {partition_name(shard)}, or run prep-assets prepare"
            )
        return made.payload, made.receipt


def _readable(payload: Path) -> Receipt | None:
    """A payload's receipt; a folder without a readable one is no payload, and is made again."""
    try:
        return read_receipt(payload)
    except DamagedFileError:
        return None


class Made(NamedTuple):
    """One stage of a shard; made_from, payload None: what is upstream was not made, so they are not known yet."""

    made_from: dict[str, str] | None
    payload: Path | None
    receipt: Receipt | None
    has_files: bool
    is_damaged: bool
    is_fresh: bool

    def make_room(self) -> Path:
        """The name for a payload that is to be made; damaged files that lie there are put away."""
        assert self.payload is not None
        if self.is_damaged and self.has_files:
            retire(self.payload)
        return self.payload


def left_out(build: Build) -> dict[str, int]:
    """How many rows and documents are left out of what is made now, by reason; without those that are none."""
    total = Counter({"excluded": build.index.excluded_documents})
    for file in build.index.files:
        total.update({"null": file.null_rows, "bad": len(file.bad_rows)})
    for shard in range(build.num_shards):
        for made in build.made(shard).values():
            total.update(made.receipt.left_out if made.receipt else {})
    return dict(+total)


def has_sizes(folder: Path, pieces: Sequence[Piece]) -> bool:
    """Whether the files of these pairs lie in the folder, each of its size in bytes."""
    for piece in pieces:
        for name, size in zip(
            piece_files(piece.prefix), (piece.bin_size, piece.idx_size, piece.docs_size), strict=True
        ):
            try:
                if (folder / name).stat().st_size != size:
                    return False
            except FileNotFoundError:
                return False
    return True


def disprove(build: Build, document: npt.NDArray[np.uint8]) -> EngineError:
    """Records that the engine gave other ids than the reference for a document of this digest; the error to raise."""
    name, digest = build.engine.name, document.tobytes().hex()
    with lock(build.layout.lock("engines")):
        write_difference(
            build.layout.differences, Difference(engine=name, tokenizer=build.facts.identity, document=digest)
        )
    return EngineError(
        f"{name} gave other ids than {build.tokenizer.reference.name} for document {digest}: it is not used for this"
        " tokenizer any more, and the same command makes what it made again"
    )


@contextmanager
def damage_retires(payload: Path) -> Iterator[None]:
    """Renames a payload away when reading it shows damage: a later run must not trust it again."""
    try:
        yield
    except DamagedFileError as error:
        retire(payload)
        raise DamagedFileError(f"{error}; it was put away and will be made again by the same command") from error


def guarded(payload: Path, items: Iterator[Item]) -> Iterator[Item]:
    """What is read of a payload; damage met while reading it, and nothing else, retires it."""
    with damage_retires(payload):
        yield from items


def pair_dtype(recipe: Recipe, facts: TokenizerFacts) -> np.dtype[Any]:
    """Of the tokens in `.bin`. Raises RecipeError for a forced type that is too narrow."""
    forced = recipe.dataset.data_type
    if forced == "auto":
        return facts.dtype
    dtype = np.dtype(forced).newbyteorder("<")
    if np.iinfo(dtype).max < facts.largest_id:
        raise RecipeError(
            f"dataset.data_type: found {forced}, which ends at {np.iinfo(dtype).max};"
            f" the largest id of {recipe.tokenizer.path} is {facts.largest_id}: expected auto or a wider type"
        )
    return dtype
