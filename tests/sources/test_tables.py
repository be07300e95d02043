"""Parquet and Arrow files."""

import datetime as dt
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep_assets.errors import SourceError
from prep_assets.sources.read import read_documents

from .reading import listed, make, rows, skipping, texts

KINDS = ["parquet", "file", "stream"]  # Arrow has two formats under one name
INVALID = pa.array([b"ok", b"caf\xe9", None, b"\xc3", b"\xa9", b""], pa.binary()).view(pa.string())
INVALID_LARGE = INVALID.view(pa.binary()).cast(pa.large_binary()).view(pa.large_string())


def write(folder, kind, table, name="x", size=None):
    path = folder / f"{name}.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=size)
        return listed(path)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as out, new(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=size)
    return listed(path)


@pytest.mark.parametrize("kind", KINDS)
def test_nulls_and_empty_texts_stay_what_they_are(tmp_path, kind):
    table = pa.table({"n": range(6), "text": pa.array(["", "", None, "tuba", "", "lute drum"])})
    assert rows(write(tmp_path, kind, table, size=3)) == list(enumerate(["", "", None, "tuba", "", "lute drum"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
    ids=str,
)
def test_every_type_of_text_is_read(tmp_path, kind, type_):
    values = ["violin", "a long text that is no inline view", None, "", "violin", "\0\u2028\U0001f3b7"]
    array = (
        pa.array(values).dictionary_encode().cast(type_) if pa.types.is_dictionary(type_) else pa.array(values, type_)
    )
    assert texts(write(tmp_path, kind, pa.table({"text": array}), size=4)) == values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("array", "name"),
    [
        (pa.array([b"a"]), "binary"),
        (pa.array([["a"]]), "list<"),
        (pa.array([1]), "int64"),
        (pa.array([{"a": 1}]), "struct"),
    ],
    ids=["binary", "list", "int64", "struct"],
)
def test_another_type_is_an_error_of_the_file_that_names_it(tmp_path, kind, array, name):
    file = write(tmp_path, kind, pa.table({"text": array}))
    with pytest.raises(SourceError, match=rf"x\.(parquet|arrow): column 'text' is not text but {name}"):
        skipping(file)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_is_an_error_of_the_file_that_names_those_that_exist(tmp_path, kind):
    file = write(tmp_path, kind, pa.table({"content": ["a"], "id": [1]}))
    with pytest.raises(SourceError, match=r"no column 'text'; it has 'content', 'id'; correct `dataset\.field`"):
        skipping(file)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_without_a_type_is_all_null(tmp_path, kind):
    assert texts(write(tmp_path, kind, pa.table({"text": pa.nulls(2)}))) == [None, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_rows_has_no_batches(tmp_path, kind):
    assert rows(write(tmp_path, kind, pa.table({"text": pa.array([], pa.string())}))) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("array", [INVALID, INVALID_LARGE], ids=["string", "large_string"])
def test_text_that_is_not_utf8_names_its_row(tmp_path, kind, array):
    file = write(tmp_path, kind, pa.table({"text": array}), size=4)
    with pytest.raises(SourceError, match=r"row 1: column 'text': not UTF-8: byte 0xe9 at byte offset 3"):
        texts(file)
    found, bad = skipping(file)
    assert found == [(0, "ok"), (2, None), (5, "")]
    assert [(row, where) for row, where, _ in bad] == [(1, "row 1"), (3, "row 3"), (4, "row 4")]


def test_a_dictionary_that_is_not_utf8_names_the_rows_that_use_it(tmp_path):
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0, 1], pa.int32()), INVALID.slice(0, 2))
    found, bad = skipping(write(tmp_path, "file", pa.table({"text": array})))
    assert found == [(0, "ok"), (2, None), (3, "ok")]
    assert [row for row, _, _ in bad] == [1, 4]


def test_a_dictionary_with_impossible_indices_is_damage(tmp_path):
    buffers = [None, pa.py_buffer(np.array([0, 99], np.int32))]
    wrong = pa.DictionaryArray.from_buffers(pa.dictionary(pa.int32(), pa.string()), 2, buffers, pa.array(["a"]))
    with pytest.raises(SourceError, match="damaged or cut short"):
        skipping(write(tmp_path, "file", pa.table({"text": wrong})))


def test_impossible_offsets_are_damage(tmp_path):
    offsets = pa.py_buffer(np.array([0, 1 << 20, 1], np.int32))
    wrong = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a"))
    with pytest.raises(SourceError, match="damaged or cut short"):
        skipping(write(tmp_path, "file", pa.table({"text": wrong})))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dotted_path_leads_into_structs_and_an_exact_name_goes_first(tmp_path, kind):
    meta = pa.array([{"text": "a", "deep": {"er": "x"}}, None, {"text": None, "deep": None}])
    file = write(tmp_path, kind, pa.table({"meta": meta, "n": [1, 2, 3]}))
    assert texts(file, "meta.text") == ["a", None, None]
    assert rows(file, "meta.deep.er", ["meta.text", "n"]) == [
        (0, "x", "a", "1"),
        (1, None, None, "2"),
        (2, None, None, "3"),
    ]
    for name in ("meta.none", "n.text", "meta.text.more", "meta.deep."):
        with pytest.raises(SourceError, match=f"no column '{name}'"):
            texts(file, name)
    both = pa.table({"meta": meta, "meta.text": ["b", "c", "d"]})
    assert texts(write(tmp_path, kind, both, "both"), "meta.text") == ["b", "c", "d"]


@pytest.mark.parametrize("kind", KINDS)
def test_files_stand_on_their_own(tmp_path, kind):
    one = write(tmp_path, kind, pa.table({"text": ["a"], "lang": pa.nulls(1)}), "1")
    two = write(tmp_path, kind, pa.table({"lang": [["fr"]], "text": pa.array(["b"], pa.large_string())}), "2")
    assert texts(one) + texts(two) == ["a", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_kept_columns_are_text(tmp_path, kind):
    moment = dt.datetime(2024, 5, 6, 7, 8, 9)
    columns = {
        "s": (pa.array(["u", None]), ["u", None]),
        "i": (pa.array([1, None]), ["1", None]),
        "f": (pa.array([0.5, float("nan")]), ["0.5", "NaN"]),
        "b": (pa.array([True, False]), ["true", "false"]),
        "t": (pa.array([moment, None], pa.timestamp("us")), ["2024-05-06T07:08:09", None]),
        "ns": (pa.array([1, None], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", None]),
        "d": (pa.array([moment.date(), None]), ["2024-05-06", None]),
        "l": (pa.array([["a", "é"], []]), ['["a","é"]', "[]"]),
        "m": (pa.array([{"a": 1, "b": None}, None]), ['{"a":1,"b":null}', None]),
        "lt": (pa.array([[moment], None], pa.list_(pa.timestamp("us"))), ['["2024-05-06T07:08:09"]', None]),
        "y": (pa.array([b"\xff\0", b""]), ["/wA=", ""]),
    }
    table = pa.table({"text": ["a", "b"], **{name: array for name, (array, _) in columns.items()}})
    found = rows(write(tmp_path, kind, table), keep=[*columns, "absent", "text"])
    expected = [values for _, values in columns.values()]
    assert [list(column) for column in zip(*found, strict=True)][2:] == [*expected, [None, None], ["a", "b"]]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_bounded_and_a_long_text_is_one_of_its_own(tmp_path, kind):
    values = ["a"] * 9000 + ["x" * (20 << 20), "b"] + [f"{i}" + "y" * (1 << 20) for i in range(40)]
    file = write(tmp_path, kind, pa.table({"text": values, "n": range(len(values))}))
    batches = list(read_documents(file, "text", ["n"]))
    assert [value for batch in batches for value in batch.column(1).to_pylist()] == values
    assert [int(n) for batch in batches for n in batch.column(2).to_pylist()] == list(range(len(values)))
    assert max(len(batch) for batch in batches) <= 8192
    sizes = [sum(map(len, batch.column(1).to_pylist())) for batch in batches]
    assert [len(batch) for batch, size in zip(batches, sizes, strict=True) if size > 16 << 20] == [1]


def test_long_texts_in_a_dictionary_are_cut_into_bounded_batches(tmp_path):
    values = ["x" * 900_000] * 300  # one page of less than a megabyte tells of 270 MB
    batches = read_documents(write(tmp_path, "parquet", pa.table({"text": values}), size=100), "text")
    sizes = [sum(map(len, batch.column(1).to_pylist())) for batch in batches]
    assert sum(sizes) == 270_000_000 and max(sizes) <= 16 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_short_is_refused(tmp_path, kind):
    file = write(tmp_path, kind, pa.table({"text": ["violin"] * 5000, "n": range(5000)}), size=1000)
    whole = file.path.read_bytes()
    for size in (0, 1, 7, 200, len(whole) // 2, len(whole) - 9, len(whole) - 8, len(whole) - 1):
        with pytest.raises(SourceError, match=r"x\.(parquet|arrow): damaged or cut short"):
            skipping(make(tmp_path, file.name, whole[:size]))


@pytest.mark.parametrize("only", [["text"], ["n", "text"]])
def test_a_stream_cut_at_the_end_of_a_batch_is_refused(tmp_path, only):
    table = pa.table({"text": ["violin"] * 20, "n": range(20)}).select(only)
    whole = write(tmp_path, "stream", table, size=10).path.read_bytes()
    assert whole.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    with pytest.raises(SourceError, match="damaged or cut short: no end mark"):
        skipping(make(tmp_path, "x.arrow", whole[:-8]))


@pytest.mark.parametrize("more", [b"x", b"\0" * 64, None])
def test_bytes_after_a_streams_end_are_refused(tmp_path, more):
    file = write(tmp_path, "stream", pa.table({"text": ["violin"], "n": [1]}))
    whole = file.path.read_bytes()
    with pytest.raises(SourceError, match="after its end mark; is it several streams in one"):
        skipping(make(tmp_path, "x.arrow", whole + (whole if more is None else more)))


def test_a_flipped_bit_in_a_checked_page_is_damage(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["violin " * 100]}), path, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(b"violin violin") + 3] ^= 1
    with pytest.raises(SourceError, match="damaged or cut short"):
        skipping(make(tmp_path, "x.parquet", bytes(data)))


def test_only_the_wanted_columns_are_read(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"text": ["violin"] * 10, "other": ["damaged " * 10] * 10})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[data.index(b"damaged damaged") + 3] ^= 1
    assert texts(make(tmp_path, "x.parquet", bytes(data))) == ["violin"] * 10


@given(
    st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))),
    st.sampled_from(KINDS),
    st.integers(1, 9),
)
def test_any_text_comes_back_at_any_batch_size(values, kind, size):
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder), kind, pa.table({"text": pa.array(values, pa.string())}), size=size)
        assert rows(file) == list(enumerate(values))
