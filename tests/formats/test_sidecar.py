from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prep_assets.digest import SIZE
from prep_assets.errors import DamagedFileError
from prep_assets.formats.sidecar import ROW_GROUP, Sidecar, SidecarWriter, read_sidecar

ROWS = 2 * ROW_GROUP + 3


def documents(rows: int, columns: int) -> Sidecar:
    numbers = np.arange(rows * SIZE, dtype=np.uint32).astype(np.uint8).reshape(-1, SIZE)
    kept = [pa.array([f"{at} {row}" if row % 7 else None for row in range(rows)]) for at in range(columns)]
    lengths = np.arange(rows, dtype=np.int32)
    return Sidecar(numbers, lengths, lengths.astype(np.int64) * 5, [column.cast(pa.large_string()) for column in kept])


def write(path: Path, part: Sidecar, keep_columns: list[str], batch: int = 10_000) -> str:
    with SidecarWriter(path, keep_columns) as sidecar:
        for begin in range(0, len(part.tokens), batch):
            columns: list[Any] = [column[begin : begin + batch] for column in part[:3]]
            sidecar.write(Sidecar(*columns, [column[begin : begin + batch] for column in part.kept]))
    return sidecar.digest


@pytest.mark.parametrize("keep_columns", [[], ["url", "title"]])
@pytest.mark.parametrize("rows", [0, 1, ROW_GROUP, ROWS])
def test_a_sidecar_comes_back_with_its_digest_whatever_its_batches(
    tmp_path: Path, rows: int, keep_columns: list[str]
) -> None:
    part, path = documents(rows, len(keep_columns)), tmp_path / "shard_0_0.docs.parquet"
    digest = write(path, part, keep_columns)
    found = read_sidecar(path, keep_columns, digest)
    for name in ("digests", "tokens", "characters"):
        assert np.array_equal(getattr(found, name), getattr(part, name))
        assert getattr(found, name).dtype == getattr(part, name).dtype
    assert write(tmp_path / "other.docs.parquet", part, keep_columns, batch=7_777) == digest


def test_kept_columns_count_in_the_digest(tmp_path: Path) -> None:
    part, path = documents(10, 1), tmp_path / "shard_0_0.docs.parquet"
    other = write(path, part._replace(kept=[part.kept[0].fill_null("")]), ["url"])
    digest = write(tmp_path / "other.docs.parquet", part, ["url"])
    with pytest.raises(DamagedFileError, match=f"{other}; expected {digest}"):
        read_sidecar(path, ["url"], digest)


def test_no_two_columns_share_a_name_and_ordinary_ones_keep_theirs(tmp_path: Path) -> None:
    keep_columns = ["position", "column.position", "column.column.position", "url", "tokens"]
    path = tmp_path / "shard_0_0.docs.parquet"
    digest = write(path, documents(3, len(keep_columns)), keep_columns)
    names = pq.read_schema(path).names
    assert len(set(names)) == len(names) == 9 and "url" in names
    assert len(read_sidecar(path, keep_columns, digest).tokens) == 3


def test_a_sidecar_that_is_missing_cut_or_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard_0_0.docs.parquet"
    with pytest.raises(DamagedFileError, match="missing"):
        read_sidecar(path, [])
    write(path, documents(ROWS, 0), [])
    with pytest.raises(DamagedFileError, match="columns"):
        read_sidecar(path, ["url"])
    content = bytearray(path.read_bytes())
    path.chmod(0o644)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedFileError, match="damaged"):
        read_sidecar(path, [])
