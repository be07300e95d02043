"""JSON files: an array, lines, or objects printed over several lines."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep_assets.errors import SourceError
from prep_assets.sources import compression

from .reading import make, rows, skipping, texts

TEXT = st.one_of(
    st.none(), st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(['"', "]", "\\", "\0", "\u2028"])
)


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_the_objects_of_an_array_are_rows(tmp_path, indent):
    records = [{"text": "a", "id": 1}, {"id": 2, "text": None}, {"text": "c", "meta": {"x": [1, "]"]}}]
    assert rows(make(tmp_path, "x.json", json.dumps(records, indent=indent))) == [(0, "a"), (1, None), (2, "c")]


def test_json_lines_may_be_called_json(tmp_path):
    file = make(tmp_path, "x.json", '\n{"text": "a"}\n{"text": 1}\n{"text": "b"}\n')
    assert skipping(file) == ([(1, "a"), (3, "b")], [(2, "line 3", "column 'text' is not text but int")])


def test_a_wrong_first_line_of_json_lines_is_a_bad_row(tmp_path):
    found, bad = skipping(make(tmp_path, "x.json", '{"text": "har\n{"text": "a"}\n'))
    assert (found, bad[0][1]) == ([(1, "a")], "line 1")


def test_one_object_over_several_lines_is_one_row(tmp_path):
    assert rows(make(tmp_path, "x.json", json.dumps({"text": "a", "b": [1, 2]}, indent=4))) == [(0, "a")]


def test_objects_over_several_lines_may_follow_each_other(tmp_path):
    data = "\n".join(json.dumps({"text": text}, indent=2) for text in "abc")
    assert rows(make(tmp_path, "x.json", data)) == [(0, "a"), (1, "b"), (2, "c")]


def test_empty_arrays_and_files_have_no_rows(tmp_path):
    for data in ("[]", " [ ] \n", "", "\n", "\ufeff[]"):
        assert rows(make(tmp_path, "x.json", data)) == []


def test_bad_elements_are_named_by_their_row(tmp_path):
    data = '\ufeff[{"text": "a"}, {"content": "b"}, 3, {"text": ["c"]}, {"text": "\\ud800"}, {"text": "d", "x": NaN}]'
    file = make(tmp_path, "x.json", data)
    with pytest.raises(SourceError, match=r"x\.json: row 1: no column 'text'; it has 'content'"):
        texts(file)
    found, bad = skipping(file)
    assert found == [(0, "a"), (5, "d")]
    assert [where for _, where, _ in bad] == ["row 1", "row 2", "row 3", "row 4"]


def test_bytes_that_are_not_utf8_matter_where_they_are_read(tmp_path):
    found, bad = skipping(make(tmp_path, "x.json", b'[{"text": "a", "x": "\xe9"}, {"text": "caf\xe9"}]'))
    assert found == [(0, "a")]
    assert "not UTF-8" in bad[0][2]


@pytest.mark.parametrize(
    "data", ['[{"text": "a"} {"text": "b"}]', '[{"text": "a"},]', '[{"text": "a"}, {"text" "b"}]', '[{"text": "a"}] x']
)
def test_an_array_that_is_not_json_is_an_error_of_the_file(tmp_path, data):
    with pytest.raises(SourceError, match=r"x\.json: row 1: .*not valid JSON"):
        skipping(make(tmp_path, "x.json", data))


def test_an_array_cut_anywhere_is_refused(tmp_path):
    whole = '[{"text": "a", "x": [1, true, "\\u00e9"]}, {"text": "b"}]'
    for size in range(1, len(whole)):
        with pytest.raises(SourceError, match="damaged or cut short, not valid JSON"):
            skipping(make(tmp_path, "x.json", whole[:size]))


def test_very_deep_nesting_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="nested too deep"):
        skipping(make(tmp_path, "x.json", "[" * 100_000 + "]" * 100_000))


def test_a_wrong_array_is_not_read_to_its_end(tmp_path, monkeypatch):
    read = []
    chunks = compression.chunks
    monkeypatch.setattr(compression, "CHUNK", 100)
    monkeypatch.setattr(
        "prep_assets.sources.json_values.chunks", lambda file: (read.append(it) or it for it in chunks(file))
    )
    with pytest.raises(SourceError, match="row 1"):
        skipping(make(tmp_path, "x.json", '[{"text": "a"}, {"text": oops}' + ', {"text": "b"}' * 10_000 + "]"))
    assert len(read) < 10


@given(st.lists(TEXT), st.sampled_from([None, 1]), st.booleans(), st.integers(1, 50))
def test_any_text_comes_back_from_arrays_however_much_is_read_at_once(values, indent, ascii_only, size):
    data = json.dumps([{"n": 12, "text": value} for value in values], indent=indent, ensure_ascii=ascii_only)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "CHUNK", size)
        assert rows(make(Path(folder), "x.json", data)) == list(enumerate(values))


@given(st.lists(st.integers(), min_size=1), st.integers(1, 9))
def test_a_number_is_read_to_its_last_digit(numbers, size):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "CHUNK", size)
        found, bad = skipping(make(Path(folder), "x.json", json.dumps(numbers)))
        assert (found, len(bad)) == ([], len(numbers))
