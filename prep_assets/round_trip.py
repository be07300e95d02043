"""Round trip: whether a shard's pairs still say what its texts say, on a sample of its documents."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from prep_assets.build import Build
from prep_assets.digest import Digests
from prep_assets.errors import DamagedFileError
from prep_assets.formats.indexed_dataset import IndexedDataset, Tokens
from prep_assets.formats.raw_partition import find_texts
from prep_assets.formats.sidecar import read_digests_at
from prep_assets.layout import partition_name, piece_files
from prep_assets.receipt import Receipt

SAMPLE = 8  # documents of a shard
LONGEST = 1 << 20  # characters of a text that is still encoded again


@dataclass(frozen=True)
class RoundTrip:
    """What a look at a shard showed. compared: documents whose text was there; lossless: those that decode to it."""

    sampled: int = 0
    compared: int = 0
    lossless: int = 0
    fault: str | None = None


def check_sizes(build: Build, shard: int) -> RoundTrip:
    """Looks at a shard's receipts and the sizes of its pairs alone."""
    pairs = build.made(shard)["memmap_shards"]
    if pairs.is_fresh:
        return RoundTrip()
    what = "missing, or not of the sizes that its receipt says" if pairs.receipt else "not made for the current source"
    return RoundTrip(fault=f"memmap_shards, shard {partition_name(shard)}: {what}; materialize it again")


def check_round_trip(build: Build, shard: int) -> RoundTrip:
    """Sizes, structure and ids of a shard's pairs, and whether sampled documents are what their texts encode to.

    The documents are chosen by the shard's content. A tokenizer that loses something (case, unknown characters) gives
    the same ids again, and only `lossless` is smaller. Texts are compared where the raw partition's files are there.
    """
    if (found := check_sizes(build, shard)).fault:
        return found
    _, payload, receipt, *_ = build.made(shard)["memmap_shards"]
    assert payload is not None and receipt is not None
    try:
        digests, documents = _sample(payload, receipt)
        texts = _texts(build, shard, digests)
    except DamagedFileError as error:
        return RoundTrip(fault=str(error))
    compared = lossless = 0
    for digest, ids in zip(digests, documents, strict=True):
        name = f"document {digest.tobytes().hex()} of shard {partition_name(shard)}"
        if not 0 <= int(ids.min()) <= int(ids.max()) <= build.facts.largest_id:
            return RoundTrip(
                fault=f"{name}: ids from {ids.min()} to {ids.max()}; expected 0 to {build.facts.largest_id}"
            )
        text = texts.get(digest.tobytes())
        if text is None or len(text) > LONGEST:
            continue
        compared += 1
        expected = build.tokenizer.encode(pa.array([text], pa.large_string())).ids
        if not np.array_equal(expected, ids):
            return RoundTrip(fault=f"{name}: its ids are not those of its text; remove {payload} and materialize again")
        lossless += build.tokenizer.decode(ids.tolist()) == text
    return RoundTrip(len(documents), compared, lossless)


def _sample(payload: Path, receipt: Receipt) -> tuple[list[Digests], list[Tokens]]:
    """Digests and ids of some documents of a shard's pairs, always the same of the same content."""
    digests: list[Digests] = []
    documents: list[Tokens] = []
    chosen = Random(receipt.content).sample(range(receipt.documents), min(SAMPLE, receipt.documents))
    begin = 0
    for piece in receipt.pieces:
        at = [place - begin for place in sorted(chosen) if begin <= place < begin + piece.documents]
        begin += piece.documents
        if at:
            pair = IndexedDataset(payload / piece.prefix)
            documents += [pair[place] for place in at]
            digests += list(read_digests_at(payload / piece_files(piece.prefix)[2], at))
    return digests, documents


def _texts(build: Build, shard: int, digests: list[Digests]) -> dict[bytes, str]:
    """Their texts, as far as the raw partition's files are still there."""
    raw = build.made(shard)["raw_dataset"]
    if not raw.has_files or raw.payload is None or not digests:
        return {}
    try:
        return find_texts(raw.payload, build.recipe.dataset.keep_columns, np.array(digests))
    except DamagedFileError:
        if raw.payload.is_dir():
            raise
        return {}  # clean-up of another run took it away meanwhile
