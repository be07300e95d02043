"""A bare loop: Parquet -> ids -> `.bin`/`.idx`, as short and as fast as each library allows. The limit, not a product.

Runs in a virtual environment of its own: loops.py LIBRARY PARQUET TOKENIZER_JSON PREFIX END_ID THREADS
"""

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Encode = Callable[[pa.Array], tuple[np.ndarray, np.ndarray]]  # texts -> lengths, flat ids
BATCH = 1024  # documents


def load_tokenizers(path: str, threads: int) -> Encode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)

    def encode(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        found = tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        ids = [np.array(encoding.ids, np.uint32) for encoding in found]
        return np.fromiter(map(len, ids), np.int64, len(ids)), np.concatenate(ids)

    return encode


def load_gigatoken(path: str, threads: int) -> Encode:
    import awkward
    import gigatoken

    tokenizer = gigatoken.Tokenizer(path)

    def encode(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        strings = awkward.from_arrow(texts.cast(pa.large_string()))
        found = tokenizer.encode_batch(strings, parallel=threads > 1).layout
        offsets = np.asarray(found.offsets.data).astype(np.int64)
        return np.diff(offsets), np.asarray(found.content.data)[offsets[0] : offsets[-1]]

    return encode


def load_tuetoken(path: str, threads: int) -> Encode:
    from tuetoken import Tokenizer

    tokenizer = Tokenizer(path)

    def encode(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        found = tokenizer.encode_ordinary_to_buffer(texts.to_pylist(), threads)
        return np.diff(np.asarray(found["offsets"])), np.asarray(found["data"])

    return encode


def main(library: str, source: str, path: str, prefix: str, end: int, threads: int) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    loaders = {"tokenizers": load_tokenizers, "gigatoken": load_gigatoken, "tuetoken": load_tuetoken}
    encode = loaders[library](path, threads)
    lengths = [np.zeros(0, np.int64)]
    with Path(f"{prefix}.bin").open("wb", buffering=0) as stream:
        for batch in pq.ParquetFile(source).iter_batches(BATCH, columns=["text"]):
            found, ids = encode(batch.column(0))
            stream.write(np.insert(ids, np.cumsum(found), end).astype("<i4").data)
            lengths.append(found + 1)
    write_index(f"{prefix}.idx", np.concatenate(lengths))


def write_index(path: str, lengths: np.ndarray) -> None:
    count = len(lengths)
    with Path(path).open("wb") as stream:
        stream.write(struct.pack("<9sQBQQ", b"MMIDIDX", 1, 4, count, count + 1))
        stream.write(lengths.astype("<i4").data)
        stream.write((np.cumsum(lengths * 4) - lengths * 4).astype("<i8").data)
        stream.write(np.arange(count + 1, dtype="<i8").data)


if __name__ == "__main__":
    main(*sys.argv[1:5], end=int(sys.argv[5]), threads=int(sys.argv[6]))
