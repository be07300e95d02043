"""Documents of a shard -> their token ids; documents that were tokenized before keep theirs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from time import monotonic
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.build import Build, disprove, guarded
from prep_assets.engines.sample import first_difference
from prep_assets.errors import SourceError
from prep_assets.formats.raw_partition import Documents, read_raw_partition
from prep_assets.formats.source_index import place_of
from prep_assets.formats.token_partition import TokenizedDocuments, TokenPartitionWriter
from prep_assets.parallel import in_order
from prep_assets.payload import new_payload
from prep_assets.ragged import Part, merge
from prep_assets.receipt import Receipt, Stage, write_receipt
from prep_assets.reuse import KnownTokens

STAGE: Stage = "tokenized_partitions"
BATCH_SIZE = 4 << 20  # bytes of text that are encoded in one call
BATCH_DOCUMENTS = 4096


def make_token_partitions(build: Build, shards: Iterable[int]) -> Iterator[tuple[int, Receipt]]:
    """Makes the stale token partitions of these shards, some at once; gives each shard's receipt, in order.

    Raises SourceError where a text holds a special token's and the recipe says that this is an error, EngineError where
    the engine gave other ids than the reference for a sampled document.
    """
    return in_order(lambda shard: (shard, _make(build, shard)), shards, build.threads(build.recipe.tokenize_workers))


def _make(build: Build, shard: int) -> Receipt:
    made = build.made(shard)[STAGE]
    if made.is_fresh and made.receipt is not None:
        return made.receipt
    raw, upstream = build.upstream("raw_dataset", shard)
    assert made.made_from is not None
    begin, tokenizer, keep_columns = monotonic(), build.tokenizer, build.recipe.dataset.keep_columns
    known, counts = KnownTokens(build, shard), Counter[str]()
    end_ids = [tokenizer.eos_id] if tokenizer.eos_id is not None else list(tokenizer.special_tokens)
    documents = batches(guarded(raw, read_raw_partition(raw, keep_columns, upstream.content)))
    threads = build.threads(build.recipe.tokenize_workers)
    work = (_Batch(it, *known.find(it.digests)) for it in documents)
    with new_payload(made.make_room()) as folder:
        with TokenPartitionWriter(folder, tokenizer.dtype, keep_columns) as partition:
            for batch, tokenized, special in in_order(partial(_tokenize, build), work, threads):
                partition.write(batch)
                present = batch.lengths > 0
                last_ids = batch.ids[np.cumsum(batch.lengths)[present] - 1]
                counts.update(
                    {
                        "no tokens": len(present) - int(present.sum()),
                        "special": special,
                        "with end": int(np.isin(last_ids, end_ids).sum()),
                        "tokenized": tokenized,
                    }
                )
                build.progress.advance(STAGE, shard, len(present), len(batch.ids))
        receipt = Receipt(
            stage=STAGE,
            shard=shard,
            made_from=made.made_from,
            content=partition.content,
            documents=partition.documents,
            tokens=partition.tokens,
            bytes=partition.path.stat().st_size,
            left_out={"no tokens": counts["no tokens"]},
            reused=partition.documents - counts["no tokens"] - counts["tokenized"],
            tokenized=counts["tokenized"],
            with_special_text=counts["special"],
            with_end=counts["with end"],
            engines=tuple(sorted(known.engines | ({build.engine.name} if counts["tokenized"] else set()))),
            seconds=monotonic() - begin,
        )
        write_receipt(folder, receipt)
    return receipt


class _Batch(NamedTuple):
    """Documents to tokenize. parts: what is known of them; missing: (n,) the places of the others."""

    documents: Documents
    parts: list[Part]
    missing: npt.NDArray[np.int64]


def _tokenize(build: Build, batch: _Batch) -> tuple[TokenizedDocuments, int, int]:
    """A batch with its tokens; how many documents an engine gave tokens for, and how many hold a special token's text.

    Runs on several threads.
    """
    (digests, texts, kept), tokenizer = batch.documents, build.tokenizer
    special = tokenizer.holds_special_text(texts)
    if special.any() and tokenizer.special_text == "error":
        raise _special_text(build, batch.documents, int(np.argmax(special)))
    characters = pc.utf8_length(texts).to_numpy().astype(np.int64)
    if not len(batch.missing):
        lengths, ids = merge(batch.parts, len(digests), tokenizer.dtype)
        return TokenizedDocuments(digests, lengths, ids, characters, kept), 0, int(special.sum())
    new = texts.take(pa.array(batch.missing)) if batch.parts else texts
    encoded = build.engine.encode(new)
    if build.engine is not tokenizer.reference:
        new_digests = digests[batch.missing]
        if (at := first_difference(tokenizer.reference, new_digests, new, encoded)) is not None:
            raise disprove(build, new_digests[at])
    lengths, ids = tokenizer.with_ends(encoded)
    tokenized = int((lengths > 0).sum())
    if batch.parts:
        lengths, ids = merge([*batch.parts, Part(batch.missing, lengths, ids)], len(digests), tokenizer.dtype)
    return TokenizedDocuments(digests, lengths, ids, characters, kept), tokenized, int(special.sum())


def batches(partition: Iterator[Documents]) -> Iterator[Documents]:
    """The same documents in batches that bound the memory of encoding; a longer document is one for itself."""
    for documents in partition:
        texts = documents.texts
        ends = np.cumsum(pc.binary_length(texts).to_numpy())
        begin, count = 0, len(texts)
        while begin < count:
            before = ends[begin - 1] if begin else 0
            end = int(np.searchsorted(ends, before + BATCH_SIZE, side="right"))
            end = min(max(end, begin + 1), begin + BATCH_DOCUMENTS)
            kept = [column[begin:end] for column in documents.kept]
            part = texts[begin:end]
            assert isinstance(part, pa.LargeStringArray)
            yield Documents(documents.digests[begin:end], part, kept)
            begin = end


def _special_text(build: Build, documents: Documents, at: int) -> SourceError:
    text, digest = documents.texts[at].as_py(), documents.digests[at]
    token = next(token for token in build.tokenizer.special_tokens.values() if token in text)
    return SourceError(
        f"{place_of(build.layout.index, build.index, digest)}: its text holds {token!r}, a special token of the"
        " tokenizer; tokenizer.special_tokens_in_text: parse or text accepts it"
    )
