"""CSV and TSV."""

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep_assets.errors import SourceError

from .reading import make, rows, skipping, texts

FIELD = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["", "\0", "\u2028", '"', '""', "a\nb", "a\r\nb", "\r", ",", "\t", "\ufeff", " a "]),
)


def test_quoted_fields_hold_newlines_quotes_and_separators(tmp_path):
    file = make(tmp_path, "x.csv", b'\xef\xbb\xbfid,text\r\n1,"a\r\nb, ""c"""\r\n2,\r\n\r\n3,"d\ne"')
    assert rows(file) == [(0, 'a\r\nb, "c"'), (1, ""), (2, "d\ne")]


def test_tsv_is_separated_by_tabs(tmp_path):
    assert rows(make(tmp_path, "x.tsv", 'id\ttext\n1\ta, b\n2\t"c\td"\n')) == [(0, "a, b"), (1, "c\td")]


def test_short_and_long_rows_are_bad_and_named_by_their_first_line(tmp_path):
    file = make(tmp_path, "x.csv", 'id,text\n1,"a\nb"\n2\n3,c,d\n4,e\n')
    with pytest.raises(SourceError, match=r"x\.csv: line 4: 1 fields; the header has 2"):
        texts(file)
    found, bad = skipping(file)
    assert found == [(0, "a\nb"), (3, "e")]
    assert bad == [(1, "line 4", "1 fields; the header has 2"), (2, "line 5", "3 fields; the header has 2")]


def test_a_quote_in_the_wrong_place_is_a_bad_row(tmp_path):
    found, bad = skipping(make(tmp_path, "x.csv", 'id,text\n1,"a"b\n2,c\n'))
    assert found == [(1, "c")]
    assert bad[0][:2] == (0, "line 2") and "not valid CSV" in bad[0][2]


def test_a_quote_that_never_closes_is_an_error_of_the_file(tmp_path):
    file = make(tmp_path, "x.csv", 'id,text\n1,a\n2,"b\n3,c\n')
    with pytest.raises(SourceError, match=r"x\.csv: line 3: a quote never closes"):
        skipping(file)


def test_a_missing_column_is_an_error_of_the_file(tmp_path):
    with pytest.raises(SourceError, match=r"x\.csv: no column 'text'; it has 'id', 'content'"):
        skipping(make(tmp_path, "x.csv", "id,content\n1,a\n"))


def test_a_column_that_is_there_twice_is_an_error_of_the_file(tmp_path):
    with pytest.raises(SourceError, match="2 columns 'text'"):
        skipping(make(tmp_path, "x.csv", "text,text\na,b\n"))


def test_bytes_that_are_not_utf8_matter_where_they_are_read(tmp_path):
    file = make(tmp_path, "x.csv", b"id,text\n\xe9,fine\n2,caf\xe9\n3,fine\n")
    with pytest.raises(
        SourceError,
        match=r"x\.csv: line 3: column 'text' is not Unicode: not UTF-8: byte 0xe9.* at character 3, byte offset 3",
    ):
        texts(file)
    found, bad = skipping(file)
    assert ([row for row, _ in found], bad[0][:2]) == ([0, 2], (1, "line 3"))
    assert [row for row, _, _ in skipping(file, keep=["id"])[1]] == [0, 1]


def test_kept_columns_are_as_they_are(tmp_path):
    file = make(tmp_path, "x.csv", "id,text,lang\n01,a,\n")
    assert rows(file, keep=["lang", "id", "absent", "text"]) == [(0, "a", "", "01", None, "a")]


def test_a_file_without_rows_has_no_batches(tmp_path):
    for data in ("", "text\n", "\n", "text"):
        assert rows(make(tmp_path, "x.csv", data)) == []


def test_no_row_is_too_long(tmp_path):
    long = "x, \n" * 500_000
    assert texts(make(tmp_path, "x.csv", f'text\n"{long}"\nb\n')) == [long, "b"]


@given(st.lists(st.tuples(FIELD, FIELD)), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["csv", "tsv"]))
def test_any_text_comes_back(values, end, kind):
    out = io.StringIO(newline="")
    writer = csv.writer(out, "excel-tab" if kind == "tsv" else "excel", lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "text"), *values])
    with tempfile.TemporaryDirectory() as folder:
        file = make(Path(folder), f"x.{kind}", out.getvalue())
        assert rows(file, keep=["a"]) == [(i, text, a) for i, (a, text) in enumerate(values)]


@given(st.binary())
def test_any_bytes_are_rows_bad_rows_or_an_error_of_the_source(data):
    with tempfile.TemporaryDirectory() as folder:
        try:
            skipping(make(Path(folder), "x.csv", b"text,a\n" + data))
        except SourceError as error:
            assert "a quote never closes" in str(error)
