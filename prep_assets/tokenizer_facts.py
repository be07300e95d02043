"""What a plan must know of a tokenizer, kept between runs: a large one takes a second to load and to tell."""

import json
from functools import lru_cache
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from pydantic import BaseModel, NonNegativeInt, ValidationError

from prep_assets.cpus import available_cpus
from prep_assets.engines.battery import BATTERY
from prep_assets.formats.indexed_dataset import token_dtype
from prep_assets.layout import Layout
from prep_assets.payload import write_file
from prep_assets.receipt import fingerprint
from prep_assets.recipe import Recipe
from prep_assets.sources.files import identity_of, is_settled
from prep_assets.tokenizer import CONFIG_FILE, Tokenizer, locate_tokenizer


class TokenizerFacts(BaseModel, frozen=True, extra="forbid"):
    """key: of the files as they lie there, the options and the library: where these are the same, so is the rest."""

    key: str
    identity: str
    largest_id: NonNegativeInt

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of tokens, before they are forced into another."""
        return token_dtype(self.largest_id)


class _Files(NamedTuple):
    """A tokenizer's files. identities: of both, "" for a missing one; is_settled: whether these can be trusted."""

    path: Path
    identities: tuple[str, ...]
    is_settled: bool


def facts_of(recipe: Recipe, layout: Layout) -> TokenizerFacts:
    """The facts of the recipe's tokenizer: kept ones where nothing changed, or else the tokenizer's own."""
    files = _files(recipe, layout)
    key = fingerprint(files=files.identities, options=_options(recipe), library=tokenizers.__version__, battery=BATTERY)
    known = _read(layout.tokenizer)
    if known is not None and known.key == key:
        return known
    tokenizer = load_tokenizer(recipe, layout)
    facts = TokenizerFacts(key=key, identity=tokenizer.identity, largest_id=tokenizer.largest_id)
    if files.is_settled and layout.work.is_dir():
        write_file(layout.tokenizer, facts.model_dump_json(indent=1).encode() + b"\n")
    return facts


def load_tokenizer(recipe: Recipe, layout: Layout) -> Tokenizer:
    """The tokenizer with the recipe's options; the same object while nothing changes. Raises TokenizerError."""
    files, threads = _files(recipe, layout), min(recipe.tokenize_workers, available_cpus())
    load = _load if files.is_settled else _load.__wrapped__
    return load(files, _options(recipe), threads)


@lru_cache(maxsize=1)
def _load(files: _Files, options: str, threads: int) -> Tokenizer:
    named = json.loads(options)
    return Tokenizer(files.path, special_text=named.pop("special_tokens_in_text"), threads=threads, **named)


def _files(recipe: Recipe, layout: Layout) -> _Files:
    began, path = time_ns(), locate_tokenizer(recipe.tokenizer.path, recipe.base, layout.downloads)
    paths = (path, path.with_name(CONFIG_FILE))
    identities = tuple(identity_of(file) if file.exists() else "" for file in paths)
    return _Files(path, identities, all(is_settled(identity, began) for identity in identities if identity))


def _options(recipe: Recipe) -> str:
    return recipe.tokenizer.model_dump_json(exclude={"path", "engine"})


def _read(cache: Path) -> TokenizerFacts | None:
    try:
        return TokenizerFacts.model_validate_json(cache.read_bytes())
    except (FileNotFoundError, ValidationError):  # it would only save work, and is written anew
        return None
