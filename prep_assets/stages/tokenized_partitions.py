"""Documents of a shard -> their token ids; documents that were tokenized before keep theirs."""

from collections import Counter
from collections.abc import Iterator
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.build import Build, guarded
from prep_assets.errors import SourceError
from prep_assets.formats.raw_partition import Documents, read_raw_partition
from prep_assets.formats.source_index import place_of
from prep_assets.formats.token_partition import TokenizedDocuments, TokenPartitionWriter
from prep_assets.payload import new_payload
from prep_assets.receipt import Receipt, Stage, write_receipt
from prep_assets.reuse import KnownTokens, Part, merge
from prep_assets.tokenizer import Tokenizer

STAGE: Stage = "tokenized_partitions"
BATCH_SIZE = 4 << 20  # bytes of text that are encoded in one call
BATCH_DOCUMENTS = 4096


def make_token_partition(build: Build, shard: int) -> Receipt:
    """Makes the token partition of a shard if it is stale; gives its receipt.

    Raises SourceError where a text holds a special token's and the recipe says that this is an error.
    """
    made = build.made(shard)[STAGE]
    if made.is_fresh and made.receipt is not None:
        return made.receipt
    raw, upstream = build.upstream("raw_dataset", shard)
    assert made.made_from is not None
    begin, tokenizer, keep_columns = monotonic(), build.tokenizer, build.recipe.dataset.keep_columns
    known, counts = KnownTokens(build, shard), Counter[str]()
    end_ids = [tokenizer.eos_id] if tokenizer.eos_id is not None else list(tokenizer.special_tokens)
    with new_payload(made.make_room()) as folder:
        with TokenPartitionWriter(folder, tokenizer.dtype, keep_columns) as partition:
            for documents in batches(guarded(raw, read_raw_partition(raw, keep_columns, upstream.content))):
                special = tokenizer.holds_special_text(documents.texts)
                if special.any() and tokenizer.special_text == "error":
                    raise _special_text(build, documents, int(np.argmax(special)))
                lengths, ids, tokenized = _encode(tokenizer, known, documents)
                characters = pc.utf8_length(documents.texts).to_numpy().astype(np.int64)
                partition.write(TokenizedDocuments(documents.digests, lengths, ids, characters, documents.kept))
                present = lengths > 0
                last_ids = ids[np.cumsum(lengths)[present] - 1]
                counts.update(
                    {
                        "no tokens": len(present) - int(present.sum()),
                        "special": int(special.sum()),
                        "with end": int(np.isin(last_ids, end_ids).sum()),
                        "tokenized": tokenized,
                    }
                )
                build.progress.advance(STAGE, shard, len(present), len(ids))
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
            engine=tokenizer.engine.name,
            seconds=monotonic() - begin,
        )
        write_receipt(folder, receipt)
    return receipt


def _encode(
    tokenizer: Tokenizer, known: KnownTokens, documents: Documents
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], int]:
    """Lengths and ids of a batch, those that are known copied; how many documents the engine gave tokens for."""
    parts, missing = known.find(documents.digests)
    lengths, ids = tokenizer.encode(documents.texts.take(pa.array(missing)))
    if not parts:
        return lengths, ids, int((lengths > 0).sum())
    merged = merge([*parts, Part(missing, lengths, ids)], len(documents.digests), tokenizer.dtype)
    return *merged, int((lengths > 0).sum())


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
