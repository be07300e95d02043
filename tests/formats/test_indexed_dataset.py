from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep_assets.errors import DamagedFileError, TokenRangeError
from prep_assets.formats.indexed_dataset import (
    CODES,
    DTYPES,
    IndexedDataset,
    IndexedDatasetWriter,
    decode_index,
    encode_index,
    index_size,
    token_dtype,
)
from tests.reader import read_pair

U16 = np.dtype("<u2")

# Worked out by hand from the format's description: documents of 2, 0 and 3 tokens, uint16.
GOLDEN_INDEX = bytes.fromhex(
    "4d4d494449445800 00"  # MMIDIDX\0\0
    "0100000000000000 08"  # version 1, dtype code 8
    "0300000000000000 0400000000000000"  # 3 sequences, 3 documents + 1
    "02000000 00000000 03000000"  # lengths
    "0000000000000000 0400000000000000 0400000000000000"  # byte offsets
    "0000000000000000 0100000000000000 0200000000000000 0300000000000000"  # document boundaries
)


def write_documents(prefix: Path, documents: list[list[int]], dtype: np.dtype[Any]) -> IndexedDatasetWriter:
    with IndexedDatasetWriter(prefix, dtype) as pair:
        for document in documents:
            pair.write(np.array([len(document)]), np.array(document, np.int64))
    return pair


def test_the_index_is_the_golden_bytes() -> None:
    assert encode_index([2, 0, 3], U16) == GOLDEN_INDEX


def test_two_tokens_are_four_bytes(tmp_path: Path) -> None:
    write_documents(tmp_path / "shard", [[1, 258]], U16)
    assert (tmp_path / "shard.bin").read_bytes().hex(" ") == "01 00 02 01"


def test_a_negative_free_four_byte_token_is_little_endian(tmp_path: Path) -> None:
    write_documents(tmp_path / "shard", [[65536]], np.dtype("<i4"))
    assert (tmp_path / "shard.bin").read_bytes().hex(" ") == "00 00 01 00"


@pytest.mark.parametrize("size", range(len(GOLDEN_INDEX)))
def test_an_index_cut_short_is_refused(size: int) -> None:
    with pytest.raises(DamagedFileError, match="header"):
        decode_index(GOLDEN_INDEX[:size])


@pytest.mark.parametrize("at", range(len(GOLDEN_INDEX)))
def test_no_flipped_bit_of_an_index_goes_unseen(at: int) -> None:
    for bit in range(8):
        damaged = bytearray(GOLDEN_INDEX)
        damaged[at] ^= 1 << bit
        try:
            index = decode_index(bytes(damaged), "x.idx")
        except DamagedFileError as error:
            assert "x.idx" in str(error)
        else:  # the dtype, or the last document's length, on which no other field depends: the size of .bin shows it
            changes_bin_size = index.dtype.itemsize != 2 or index.lengths[-1] != 3
            assert changes_bin_size


def test_a_huge_count_is_refused_before_memory_is_asked_for() -> None:
    damaged = bytearray(GOLDEN_INDEX)
    damaged[18:34] = (2**60).to_bytes(8, "little") + (2**60 + 1).to_bytes(8, "little")
    with pytest.raises(DamagedFileError, match="implies"):
        decode_index(bytes(damaged))


@given(st.lists(st.integers(0, 2**31 - 1)), st.sampled_from(list(DTYPES.values())))
def test_lengths_come_back_as_written(lengths: list[int], dtype: np.dtype[Any]) -> None:
    index = decode_index(encode_index(lengths, dtype))
    assert (index.lengths.tolist(), index.dtype) == (lengths, dtype)
    assert len(encode_index(lengths, dtype)) == index_size(len(lengths)) == 42 + 20 * len(lengths)


def test_offsets_beyond_four_gigabytes_are_exact() -> None:
    index = decode_index(encode_index([2**31 - 1] * 5, np.dtype("<i8")))
    assert index.offsets[-1] == 5 * (2**31 - 1)
    pointers = np.frombuffer(encode_index([2**31 - 1] * 5, np.dtype("<i8")), "<i8", 5, 34 + 20)
    assert pointers.tolist() == [n * 8 * (2**31 - 1) for n in range(5)]


@pytest.mark.parametrize("length", [2**31, -1])
def test_a_length_that_int32_cannot_hold_is_refused(length: int) -> None:
    with pytest.raises(TokenRangeError, match=str(length)):
        encode_index([1, length], U16)


@st.composite
def typed_documents(draw: st.DrawFn) -> tuple[np.dtype[Any], list[list[int]]]:
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    ids = st.integers(0, int(np.iinfo(dtype).max))
    return dtype, draw(st.lists(st.lists(ids, max_size=30), max_size=20))


@given(typed_documents())
def test_tokens_come_back_as_written_through_our_reader_and_an_independent_one(
    tmp_path_factory: pytest.TempPathFactory, typed: tuple[np.dtype[Any], list[list[int]]]
) -> None:
    dtype, documents = typed
    prefix = tmp_path_factory.mktemp("pair") / "shard_0_0"
    pair = write_documents(prefix, documents, dtype)
    dataset = IndexedDataset(prefix)
    assert [document.tolist() for document in dataset] == documents
    assert [document.tolist() for document in read_pair(prefix)] == documents
    assert all(document.dtype == dtype for document in dataset)
    assert (pair.written.documents, pair.written.tokens) == (len(documents), sum(map(len, documents)))


def test_a_very_long_document_comes_back(tmp_path: Path) -> None:
    ids = np.arange(5_000_000) % 60_000
    with IndexedDatasetWriter(tmp_path / "shard", U16) as pair:
        pair.write(np.array([0, len(ids), 0]), ids)
    dataset = IndexedDataset(tmp_path / "shard")
    assert [len(document) for document in dataset] == [0, len(ids), 0]
    assert np.array_equal(dataset[1], ids)
    assert isinstance(dataset[1], np.memmap) and dataset[-2].base is not None


@pytest.mark.parametrize(("dtype", "token"), [("<u2", 65536), ("<u2", -1), ("<i2", 32768), ("u1", 256)])
def test_a_token_is_never_narrowed(tmp_path: Path, dtype: str, token: int) -> None:
    with pytest.raises(TokenRangeError, match=str(token)):
        write_documents(tmp_path / "shard", [[1, token]], np.dtype(dtype))


def test_a_bin_of_another_size_is_refused(tmp_path: Path) -> None:
    write_documents(tmp_path / "shard", [[1, 2], [3]], U16)
    with (tmp_path / "shard.bin").open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(DamagedFileError, match=r"shard\.bin: 7 bytes; its index implies 6"):
        IndexedDataset(tmp_path / "shard")


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_half_a_pair_is_refused(tmp_path: Path, suffix: str) -> None:
    write_documents(tmp_path / "shard", [[1]], U16)
    (tmp_path / f"shard.{suffix}").unlink()
    with pytest.raises(DamagedFileError, match=f"shard.{suffix}: missing"):
        IndexedDataset(tmp_path / "shard")


@pytest.mark.parametrize(("largest", "code"), [(0, 8), (65_535, 8), (65_536, 4), (200_000, 4)])
def test_the_dtype_holds_the_largest_id(largest: int, code: int) -> None:
    assert CODES[token_dtype(largest)] == code
