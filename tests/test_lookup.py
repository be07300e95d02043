from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep_assets.digest import NO_DIGESTS, SIZE, Digests, contains
from prep_assets.errors import DamagedFileError
from prep_assets.exclusion import Exclusion
from prep_assets.lookup import FILE, Lookup

# Few values, so that digests meet: as first bytes and as last.
DIGESTS = st.lists(st.binary(min_size=2, max_size=2).map(lambda ends: ends[:1] + bytes(14) + ends[1:]), max_size=40)


def array(digests: list[bytes]) -> Digests:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, SIZE)


@given(DIGESTS, DIGESTS)
def test_a_digest_is_contained_where_python_says_so(listed: list[bytes], wanted: list[bytes]) -> None:
    ordered = array(sorted(set(listed)))
    expected = [digest in listed for digest in wanted]
    assert contains(ordered, array(wanted)).tolist() == expected
    assert Exclusion(None, ordered).keeps(array(wanted), None).tolist() == [not found for found in expected]


@given(st.lists(st.binary(min_size=SIZE, max_size=SIZE), unique_by=lambda digest: digest[:8]))
def test_each_document_is_found_where_it_lies_and_no_other(digests: list[bytes]) -> None:
    lookup = Lookup.of(array(digests[::2]))
    places = lookup.find(array(digests))
    assert places.tolist() == [at // 2 if at % 2 == 0 else -1 for at in range(len(digests))]


def test_of_equal_digests_the_first_is_found(tmp_path: Path) -> None:
    digests = array([bytes([at % 3]) * SIZE for at in range(9)])
    Lookup.of(digests).write(tmp_path)
    assert Lookup.read(tmp_path, 9).find(digests).tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize("byte", range(3 * 24))
def test_whatever_damage_does_to_a_lookup_no_position_lies_outside(tmp_path: Path, byte: int) -> None:
    digests = array([bytes([at]) * SIZE for at in range(3)])
    Lookup.of(digests).write(tmp_path)
    path = tmp_path / FILE
    data = bytearray(path.read_bytes())
    data[byte] ^= 0x80
    path.chmod(0o644)
    path.write_bytes(data)
    places = Lookup.read(tmp_path, 3).find(digests)
    assert places.min() >= -1 and places.max() < 3


def test_a_lookup_that_is_missing_or_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="missing; expected 24 bytes"):
        Lookup.read(tmp_path, 1)
    Lookup.of(NO_DIGESTS).write(tmp_path)
    with pytest.raises(DamagedFileError, match="0 bytes; expected 24 bytes"):
        Lookup.read(tmp_path, 1)
    assert Lookup.read(tmp_path, 0).find(array([bytes(SIZE)])).tolist() == [-1]
