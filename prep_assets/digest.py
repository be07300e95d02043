"""Digests of documents, and the shard that a digest decides: BLAKE2b-128 throughout."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SIZE = 16  # bytes of a digest
Digests = npt.NDArray[np.uint8]  # (num_documents, SIZE)

DIGEST = pa.binary(SIZE)
NO_DIGESTS: Digests = np.empty((0, SIZE), np.uint8)


def digests_of(texts: pa.LargeStringArray) -> Digests:
    """The digest of each text's UTF-8 bytes; texts holds no nulls."""
    _, offsets_buffer, data = texts.buffers()
    if not len(texts):
        return NO_DIGESTS
    assert offsets_buffer is not None
    offsets = np.frombuffer(offsets_buffer, np.int64, len(texts) + 1, texts.offset * 8).tolist()
    text = memoryview(data if data is not None else b"")
    digests = b"".join([blake2b(text[begin:end], digest_size=SIZE).digest() for begin, end in pairwise(offsets)])
    return np.frombuffer(digests, np.uint8).reshape(-1, SIZE)


def digests_of_rows(columns: Sequence[pa.Array]) -> Digests:
    """One digest for each row of several string columns of one length."""
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    digests = b"".join([blake2b(json.dumps(row).encode(), digest_size=SIZE).digest() for row in rows])
    return np.frombuffer(digests, np.uint8).reshape(-1, SIZE)


def shards_of(digests: Digests, num_shards: int) -> npt.NDArray[np.int64]:
    """Shard of each document: its digest's first 8 bytes, big-endian, modulo num_shards. Nothing else decides."""
    return (np.ascontiguousarray(digests[:, :8]).view(">u8").ravel() % num_shards).astype(np.int64)


def shard_of_name(name: str, num_shards: int) -> int:
    """Shard of a whole file, by its relative name without compression suffix."""
    return int.from_bytes(blake2b(name.encode(), digest_size=SIZE).digest()[:8], "big") % num_shards


def contains(sorted_digests: Digests, digests: Digests) -> npt.NDArray[np.bool_]:
    """Which of some digests are among sorted ones, as `np.unique(..., axis=0)` sorts them; (len(digests),)."""
    if not len(sorted_digests):
        return np.zeros(len(digests), bool)
    values, wanted = (np.ascontiguousarray(it).view(f"V{SIZE}").ravel() for it in (sorted_digests, digests))
    at = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
    found: npt.NDArray[np.bool_] = values[at] == wanted
    return found


def to_arrow(digests: Digests) -> pa.FixedSizeBinaryArray:
    """The digests as an Arrow column, without a copy."""
    data = pa.py_buffer(np.ascontiguousarray(digests))
    array = pa.FixedSizeBinaryArray.from_buffers(DIGEST, len(digests), [None, data])
    assert isinstance(array, pa.FixedSizeBinaryArray)
    return array


def from_arrow(column: pa.Array) -> Digests:
    """The digests in an Arrow column without nulls, as a view."""
    if not len(column):
        return NO_DIGESTS
    data = column.buffers()[1]
    assert data is not None
    return np.frombuffer(data, np.uint8, len(column) * SIZE, column.offset * SIZE).reshape(-1, SIZE)


class ContentDigest:
    """Digest of columns that arrive in batches: the same however they are cut into batches."""

    def __init__(self, num_columns: int) -> None:
        self._columns = [blake2b(digest_size=SIZE) for _ in range(num_columns)]

    def update(self, *columns: npt.NDArray[np.generic]) -> None:
        """Adds rows; each column an array of fixed-width values, its dtype the same in every call."""
        for state, column in zip(self._columns, columns, strict=True):
            state.update(np.ascontiguousarray(column).view(np.uint8).data if column.size else b"")

    def hexdigest(self) -> str:
        """32 hex digits."""
        return blake2b(b"".join(state.digest() for state in self._columns), digest_size=SIZE).hexdigest()
