"""Megatron's memory-mapped indexed dataset: tokens in `.bin`, where each document's lie in `.idx`.

Format: Megatron-LM, megatron/core/datasets/indexed_dataset.py, version 1. All numbers are little-endian.
`.bin`: the ids of all documents, one after another.
`.idx`: 9 bytes magic; uint64 version; uint8 dtype code; uint64 sequences n; uint64 n + 1; int32[n] lengths in tokens;
int64[n] byte offsets into `.bin`; int64[n + 1] document boundaries 0 … n, as each document is one sequence.
"""

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from prep_assets.errors import DamagedFileError, TokenRangeError
from prep_assets.payload import create

HEADER = struct.Struct("<9sQBQQ")  # magic, version, dtype code, sequences, documents + 1: 34 bytes
MAGIC = b"MMIDIDX\0\0"
VERSION = 1
DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(name) for code, name in {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}.items()
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
_CHUNK = 1 << 20  # documents whose index entries are made at once

Tokens = npt.NDArray[Any]


def token_dtype(largest_id: int) -> np.dtype[Any]:
    """uint16 where it holds every id from 0 to largest_id, otherwise int32."""
    return DTYPES[8] if largest_id <= np.iinfo(np.uint16).max else DTYPES[4]


def index_size(num_documents: int) -> int:
    """Bytes of an `.idx` file."""
    return HEADER.size + 20 * num_documents + 8


def encode_index(lengths: npt.ArrayLike, dtype: np.dtype[Any]) -> bytes:
    """The `.idx` file of documents of these lengths.

    lengths: (num_documents,), in tokens, each below 2**31; dtype: of the tokens in `.bin`.
    Raises TokenRangeError for a length that int32 cannot hold.
    """
    return b"".join(_index_parts(np.asarray(lengths, dtype=np.int64), dtype))


def _index_parts(lengths: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> Iterator[bytes]:
    count = len(lengths)
    if count and not 0 <= lengths.min() <= lengths.max() < 2**31:
        raise TokenRangeError(f"document lengths from {lengths.min()} to {lengths.max()}; expected 0 to {2**31 - 1}")
    yield HEADER.pack(MAGIC, VERSION, CODES[np.dtype(dtype)], count, count + 1)
    chunks = range(0, count, _CHUNK)
    for begin in chunks:
        yield lengths[begin : begin + _CHUNK].astype("<i4").tobytes()
    offset = 0
    for begin in chunks:
        sizes = lengths[begin : begin + _CHUNK] * dtype.itemsize  # bytes of each document, in 64 bits
        ends = np.cumsum(sizes) + offset
        yield (ends - sizes).astype("<i8").tobytes()
        offset = int(ends[-1])
    for begin in range(0, count + 1, _CHUNK):
        yield np.arange(begin, min(begin + _CHUNK, count + 1), dtype="<i8").tobytes()


class Index(NamedTuple):
    """A checked `.idx`; lengths: (num_documents,) int32, in tokens; offsets: (num_documents + 1,) int64, in tokens."""

    dtype: np.dtype[Any]
    lengths: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]


def decode_index(data: bytes | memoryview, name: str = ".idx") -> Index:
    """The index in the bytes of an `.idx` file, every field checked; name: the file's, for messages.

    Raises DamagedFileError for bytes that encode_index would not have written.
    """
    if len(data) < HEADER.size:
        raise DamagedFileError(f"{name}: {len(data)} bytes, less than its header's {HEADER.size}")
    magic, version, code, count, boundaries = HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or code not in DTYPES or boundaries != count + 1:
        raise DamagedFileError(
            f"{name}: header {magic!r}, version {version}, dtype {code}, {count} sequences, {boundaries} boundaries;"
            f" expected {MAGIC!r}, version {VERSION}, dtype of {sorted(DTYPES)}, n sequences and n + 1 boundaries"
        )
    if len(data) != index_size(count):  # before any array exists: a damaged count may ask for any memory
        raise DamagedFileError(f"{name}: {len(data)} bytes; its header implies {index_size(count)}")
    dtype = DTYPES[code]
    lengths = np.frombuffer(data, "<i4", count, HEADER.size)
    pointers = np.frombuffer(data, "<i8", count, HEADER.size + 4 * count)
    documents = np.frombuffer(data, "<i8", count + 1, HEADER.size + 12 * count)
    if count and lengths.min() < 0:
        raise DamagedFileError(f"{name}: document {int(np.argmin(lengths))} has a negative length")
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    if not np.array_equal(pointers, offsets[:-1] * dtype.itemsize):
        first = int(np.argmax(pointers != offsets[:-1] * dtype.itemsize))
        raise DamagedFileError(
            f"{name}: document {first} begins at byte {pointers[first]};"
            f" expected {offsets[first] * dtype.itemsize}, the sum of the sizes before it"
        )
    if not np.array_equal(documents, np.arange(count + 1)):
        raise DamagedFileError(f"{name}: its document boundaries are not 0 to {count}")
    return Index(dtype, lengths, offsets)


class IndexedDataset(Sequence[Tokens]):
    """The documents of one pair, read through the memory map: dataset[i] is a view, (length,) of the pair's dtype."""

    def __init__(self, prefix: Path) -> None:
        """prefix: the path without suffix. Raises DamagedFileError, naming the file and what was expected."""
        idx, self.path = prefix.with_name(prefix.name + ".idx"), prefix.with_name(prefix.name + ".bin")
        try:
            self.entries = decode_index(idx.read_bytes(), str(idx))
            size = self.path.stat().st_size
        except FileNotFoundError as error:
            raise DamagedFileError(f"{error.filename}: missing; a pair is a .bin and an .idx") from error
        expected = int(self.entries.offsets[-1]) * self.entries.dtype.itemsize
        if size != expected:
            raise DamagedFileError(f"{self.path}: {size} bytes; its index implies {expected}")
        # An empty file cannot be mapped.
        self.tokens: Tokens = np.memmap(self.path, self.entries.dtype, "r") if size else np.empty(0, self.entries.dtype)

    def __len__(self) -> int:
        return len(self.entries.lengths)

    def __getitem__(self, at: int) -> Tokens:  # type: ignore[override]
        at = range(len(self))[at]
        return self.tokens[self.entries.offsets[at] : self.entries.offsets[at + 1]]


class Written(NamedTuple):
    """What a writer wrote; sizes in bytes, digests BLAKE2b-128 of the file in hex."""

    documents: int
    tokens: int
    bin_size: int
    bin_digest: str
    idx_size: int
    idx_digest: str


class IndexedDatasetWriter:
    """Writes one pair: `with IndexedDatasetWriter(prefix, dtype) as pair: pair.write(lengths, ids)`.

    Memory: 16 bytes a document and the batch. The index is written when the block ends well; the folder around it
    is what makes the pair appear whole (payload.new_payload).
    """

    written: Written

    def __init__(self, prefix: Path, dtype: np.dtype[Any]) -> None:
        self._prefix, self._dtype = prefix, np.dtype(dtype)
        self._bounds = np.iinfo(self._dtype)
        self._lengths: list[npt.NDArray[np.int32]] = []
        self._digest = blake2b(digest_size=16)
        self.tokens = 0

    def __enter__(self) -> Self:
        self._stream = create(self._prefix.with_name(self._prefix.name + ".bin"))
        return self

    def write(self, lengths: npt.NDArray[np.integer[Any]], ids: npt.NDArray[np.integer[Any]]) -> None:
        """Appends documents. lengths: (num_documents,), in tokens; ids: (lengths.sum(),), any integer dtype.

        Raises TokenRangeError for an id that the pair's dtype cannot hold: nothing is ever narrowed silently.
        """
        assert int(lengths.sum()) == len(ids)
        if len(lengths) and lengths.max() >= 2**31:
            raise TokenRangeError(f"{self._prefix}: a document of {lengths.max()} tokens; expected less than {2**31}")
        if len(ids) and ids.dtype != self._dtype and not self._bounds.min <= ids.min() <= ids.max() <= self._bounds.max:
            raise TokenRangeError(
                f"{self._prefix}: ids from {ids.min()} to {ids.max()}; expected 0 to {self._bounds.max} ({self._dtype})"
            )
        data = np.ascontiguousarray(ids, dtype=self._dtype).data.cast("B")
        self._stream.write(data)
        self._digest.update(data)
        self._lengths.append(lengths.astype(np.int32))
        self.tokens += len(ids)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        if error is not None:
            return
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int32)
        digest, size = blake2b(digest_size=16), 0
        with create(self._prefix.with_name(self._prefix.name + ".idx")) as stream:
            for part in _index_parts(lengths.astype(np.int64), self._dtype):
                stream.write(part)
                digest.update(part)
                size += len(part)
        self.written = Written(
            documents=len(lengths),
            tokens=self.tokens,
            bin_size=self.tokens * self._dtype.itemsize,
            bin_digest=self._digest.hexdigest(),
            idx_size=size,
            idx_digest=digest.hexdigest(),
        )
