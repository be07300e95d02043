"""Which engine encodes: the first that takes the tokenizer and gives the reference's ids for every hostile string."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from prep_assets.engines import Engine, is_same
from prep_assets.engines.battery import hostile_texts
from prep_assets.engines.gigatoken import GigatokenEngine
from prep_assets.engines.routed import YOUNG_MARKS, RoutedEngine, literals
from prep_assets.engines.tuetoken import TuetokenEngine
from prep_assets.errors import TokenizerError


@dataclass(frozen=True)
class Loaded:
    """A tokenizer as an engine is told of it. meaning: the parsed file; added: the tokens that are parsed in texts."""

    path: Path
    text: str
    meaning: dict[str, Any]
    added: Collection[str]
    threads: int


# The fastest first. Normalizers other than these were not compared.
_SAME_NORMALIZERS = frozenset({"Sequence", "Prepend", "Replace", "NFC"})


def _gigatoken(tokenizer: Loaded) -> tuple[Engine, str]:
    return GigatokenEngine(tokenizer.text), ""


def _tuetoken(tokenizer: Loaded) -> tuple[Engine, str]:
    return TuetokenEngine(tokenizer.path, tokenizer.threads), literals(tokenizer.added)


FAST: dict[str, Callable[[Loaded], tuple[Engine, str]]] = {"gigatoken": _gigatoken, "tuetoken": _tuetoken}


def choose_engine(wanted: str, tokenizer: Loaded, reference: Engine, disproved: Collection[str]) -> Engine:
    """The engine that a recipe's tokenizer.engine asks for: auto, tokenizers, or the name of a fast one.

    disproved: names and versions of engines that gave other ids for this tokenizer before.
    Raises TokenizerError where the one that is named cannot take this tokenizer.
    """
    for name in FAST if wanted == "auto" else [wanted] if wanted in FAST else []:
        try:
            return _proven(name, tokenizer, reference, disproved)
        except (ImportError, _NotProvenError) as error:
            reason = str(error)
        except Exception as error:  # whatever a library raises for a tokenizer that it does not take
            reason = f"it does not take this tokenizer: {' '.join(str(error).split())}"
        if wanted != "auto":
            raise TokenizerError(f"{tokenizer.path}: tokenizer.engine: {wanted}: {reason}; auto takes one that can")
    return reference


class _NotProvenError(Exception):
    """Why an engine is not taken."""


def _proven(name: str, tokenizer: Loaded, reference: Engine, disproved: Collection[str]) -> Engine:
    normalizers = set(_normalizers(tokenizer.meaning.get("normalizer")))
    if unknown := normalizers - _SAME_NORMALIZERS:
        raise _NotProvenError(f"it was never compared on the normalizer {', '.join(sorted(unknown))}")
    fast, pattern = FAST[name](tokenizer)
    if fast.name in disproved:
        raise _NotProvenError(f"{fast.name} gave other ids than {reference.name} for a document before")
    patterns = [pattern, YOUNG_MARKS if "NFC" in normalizers else ""]
    engine = RoutedEngine(fast, reference, "|".join(filter(None, patterns))) if any(patterns) else fast
    for text in hostile_texts(tokenizer.added):
        texts = pa.array([text], pa.large_string())
        if not is_same(engine.encode(texts), reference.encode(texts)):
            raise _NotProvenError(f"{engine.name} gives other ids than {reference.name} for {text[:60]!r}")
    return engine


def _normalizers(normalizer: Any) -> Iterator[str]:
    if isinstance(normalizer, dict):
        yield str(normalizer.get("type"))
        for inner in normalizer.get("normalizers", ()):
            yield from _normalizers(inner)
