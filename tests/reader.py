"""Megatron's `.bin`/`.idx` pairs read a second way: from the format's description alone, without prep_assets."""

import struct
from pathlib import Path

import numpy as np

DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def read_pair(prefix: Path) -> list[np.ndarray]:
    """The documents of a pair, each its tokens; asserts whatever the format says.

    prefix: the pair's path without `.bin` and `.idx`.
    """
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    tokens = prefix.with_name(prefix.name + ".bin").read_bytes()

    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, num_sequences, num_indices = struct.unpack("<QBQQ", index[9:34])
    assert version == 1
    assert num_indices == num_sequences + 1
    assert len(index) == 42 + 20 * num_sequences
    dtype = np.dtype(DTYPES[code])

    lengths = np.frombuffer(index, "<i4", num_sequences, 34).astype(np.int64)
    offsets = np.frombuffer(index, "<i8", num_sequences, 34 + 4 * num_sequences)
    documents = np.frombuffer(index, "<i8", num_sequences + 1, 34 + 12 * num_sequences)
    assert (lengths >= 0).all()
    assert offsets.tolist() == [0, *np.cumsum(lengths * dtype.itemsize).tolist()][:num_sequences]
    assert documents.tolist() == list(range(num_sequences + 1))
    assert len(tokens) == int(lengths.sum()) * dtype.itemsize

    return [
        np.frombuffer(tokens, dtype, length, offset)
        for length, offset in zip(lengths.tolist(), offsets.tolist(), strict=True)
    ]
