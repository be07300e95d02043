"""Build: one recipe at one source index, and from these what each stage's payloads are made from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from prep_assets.cpus import available_cpus
from prep_assets.errors import DamagedFileError, NotReadyError, RecipeError
from prep_assets.formats.source_index import SourceIndex
from prep_assets.layout import Layout, partition_name, piece_files
from prep_assets.payload import retire
from prep_assets.receipt import STAGES, Piece, Receipt, Stage, fingerprint, read_receipt
from prep_assets.recipe import Recipe
from prep_assets.tokenizer import Tokenizer, locate_tokenizer

# Raised when a stage gives other content for the same inputs, not at each release.
CODE_VERSIONS: dict[Stage, str] = {"raw_dataset": "1", "tokenized_partitions": "1", "memmap_shards": "1"}


@dataclass
class Progress:
    """Hears of work as it is done; the command line shows it, Dagster logs it."""

    advance: Callable[[str, int, int, int], None] = lambda stage, shard, documents, tokens: None


@dataclass(frozen=True)
class Build:
    """What the stages are told: the recipe, where files lie, and the one index that this run works from."""

    recipe: Recipe
    layout: Layout
    index: SourceIndex
    progress: Progress = field(default_factory=Progress)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The recipe's tokenizer, loaded once."""
        return load_tokenizer(self.recipe, self.layout)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens in `.bin`."""
        return pair_dtype(self.recipe, self.tokenizer)

    def made(self, shard: int) -> dict[Stage, "Made"]:
        """What each stage made of a shard from the inputs it has now, and whether that is fresh.

        A payload whose files were dropped is fresh as long as nothing downstream has to be made from them.
        """
        found: list[tuple[Stage, Path | None, Receipt | None]] = []
        receipt: Receipt | None = None
        for stage in STAGES:
            inputs = self._inputs(stage, shard, receipt)
            payload = None if inputs is None else self.layout.payload(stage, shard, inputs)
            receipt = None if payload is None else read_receipt(payload)
            found.append((stage, payload, receipt))
        made: dict[Stage, Made] = {}
        needed = True
        for stage, payload, receipt in reversed(found):
            has_files = payload is not None and payload.is_dir()
            is_fresh = receipt is not None and (has_files or not needed)
            if stage == "memmap_shards" and receipt is not None and payload is not None:
                is_fresh = has_files and has_sizes(payload, receipt.pieces)
            made[stage] = Made(payload, receipt, has_files, is_fresh)
            needed = not is_fresh
        return made

    def _inputs(self, stage: Stage, shard: int, upstream: Receipt | None) -> str | None:
        """Fingerprint of all that a payload is made from, and nothing more; None where upstream was not made."""
        code, keep_columns = CODE_VERSIONS[stage], self.recipe.dataset.keep_columns
        if stage == "raw_dataset":
            return fingerprint(code=code, documents=self.index.shards[shard].version, keep_columns=keep_columns)
        if upstream is None:
            return None
        if stage == "tokenized_partitions":
            return fingerprint(
                code=code,
                documents=upstream.content,
                keep_columns=keep_columns,
                tokenizer=self.tokenizer.identity,
            )
        return fingerprint(
            code=code,
            tokens=upstream.content,
            keep_columns=keep_columns,
            tokens_per_shard=self.recipe.tokens_per_shard,
            dtype=self.dtype.str,
        )

    def upstream(self, stage: Stage, shard: int) -> tuple[Path, Receipt]:
        """The payload to read from. Raises NotReadyError, naming the command that makes it."""
        payload, receipt, has_files, _ = self.made(shard)[stage]
        if payload is None or receipt is None or not has_files:
            raise NotReadyError(
                f"{stage}, shard {partition_name(shard)}: not made for the current source;"
                f" materialize {stage} for partition {partition_name(shard)}, or run prep-assets prepare"
            )
        return payload, receipt


class Made(NamedTuple):
    """One stage of a shard; payload None: what is upstream was not made, so its name is not known yet."""

    payload: Path | None
    receipt: Receipt | None
    has_files: bool
    is_fresh: bool


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


@contextmanager
def damage_retires(payload: Path) -> Iterator[None]:
    """Renames a payload away when reading it shows damage: a later run must not trust it again."""
    try:
        yield
    except DamagedFileError as error:
        retire(payload)
        raise DamagedFileError(f"{error}; it was put away and will be made again by the same command") from error


def load_tokenizer(recipe: Recipe, layout: Layout) -> Tokenizer:
    """The tokenizer with the recipe's options. Raises TokenizerError."""
    options = recipe.tokenizer
    return Tokenizer(
        locate_tokenizer(options.path, recipe.base, layout.downloads),
        add_bos=options.add_bos,
        add_eos=options.add_eos,
        bos_token=options.bos_token,
        eos_token=options.eos_token,
        special_text=options.special_tokens_in_text,
        threads=min(recipe.tokenize_workers, available_cpus()),
    )


def pair_dtype(recipe: Recipe, tokenizer: Tokenizer) -> np.dtype[Any]:
    """Of the tokens in `.bin`. Raises RecipeError for a forced type that is too narrow."""
    forced = recipe.dataset.data_type
    if forced == "auto":
        return tokenizer.dtype
    dtype = np.dtype(forced).newbyteorder("<")
    if np.iinfo(dtype).max < tokenizer.largest_id:
        raise RecipeError(
            f"dataset.data_type: found {forced}, which ends at {np.iinfo(dtype).max};"
            f" the largest id of {tokenizer.path} is {tokenizer.largest_id}: expected auto or a wider type"
        )
    return dtype
