"""Documents of a shard -> their token ids."""

from collections.abc import Iterator
from time import monotonic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.build import Build, damage_retires
from prep_assets.errors import SourceError
from prep_assets.formats.raw_partition import Documents, read_raw_partition
from prep_assets.formats.token_partition import TokenizedDocuments, TokenPartitionWriter
from prep_assets.payload import new_payload
from prep_assets.receipt import Receipt, Stage, write_receipt

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
    begin, tokenizer, keep_columns = monotonic(), build.tokenizer, build.recipe.dataset.keep_columns
    payload = build.made(shard)[STAGE].payload
    assert payload is not None
    empty = special = with_end = 0
    end_ids = [tokenizer.eos_id] if tokenizer.eos_id is not None else list(tokenizer.special_tokens)
    with damage_retires(raw), new_payload(payload) as folder:
        with TokenPartitionWriter(folder, tokenizer.dtype, keep_columns) as partition:
            for documents in batches(read_raw_partition(raw, keep_columns, upstream.content)):
                tokens = tokenizer.encode(documents.texts)
                if tokens.special_text.any() and tokenizer.special_text == "error":
                    raise _special_text(build, documents, int(np.argmax(tokens.special_text)))
                characters = pc.utf8_length(documents.texts).to_numpy().astype(np.int64)
                batch = TokenizedDocuments(documents.digests, tokens.lengths, tokens.ids, characters, documents.kept)
                partition.write(batch)
                present = tokens.lengths > 0
                empty += len(present) - int(present.sum())
                special += int(tokens.special_text.sum())
                with_end += int(np.isin(tokens.ids[np.cumsum(tokens.lengths)[present] - 1], end_ids).sum())
                build.progress.advance(STAGE, shard, len(present), len(tokens.ids))
        receipt = Receipt(
            stage=STAGE,
            shard=shard,
            inputs=payload.name,
            content=partition.content,
            documents=partition.documents,
            tokens=partition.tokens,
            bytes=partition.path.stat().st_size,
            left_out={"no tokens": empty},
            tokenized=partition.documents,
            with_special_text=special,
            with_end=with_end,
            engine=tokenizer.engine.name,
            seconds=monotonic() - begin,
        )
        write_receipt(folder, receipt)
    return receipt


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
    text = documents.texts[at].as_py()
    token = next(token for token in build.tokenizer.special_tokens.values() if token in text)
    return SourceError(
        f"document {documents.digests[at].tobytes().hex()}: its text holds {token!r}, a special token of the tokenizer"
        f" ({text[:60]!r} ...); tokenizer.special_tokens_in_text: parse or text accepts it"
    )
