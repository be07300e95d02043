"""JSON Lines and plain text: where a line ends, what is text, what is wrong with a line."""

import bz2
import gzip
import json
import lzma
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep_assets.errors import SourceError, StorageError
from prep_assets.sources import compression
from prep_assets.sources.read import read_documents

from .reading import listed, make, rows, skipping, texts

UNICODE = st.text(st.characters(exclude_categories=["Cs"]))  # NUL, U+2028 and all but lone surrogates
HOSTILE = ["", "\0", "\u2028", "\x85", "\r", "a\r", "\ufeff", "\U0001f3b7", "\n", "é\n\n"]


def test_escaped_surrogate_pairs_are_one_character(tmp_path):
    file = make(tmp_path, "x.jsonl", b'{"text": "\\ud83c\\udfb7 on"}\n{"text": "\\u00e9\\u0000"}\n')
    assert texts(file) == ["\U0001f3b7 on", "\u00e9\0"]


def test_a_byte_that_is_not_utf8_names_file_line_and_offset(tmp_path):
    file = make(tmp_path, "mixed.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n{"text": "fine too"}\n')
    with pytest.raises(SourceError, match=r"mixed\.jsonl: line 2: not UTF-8: byte 0xe9 at byte offset 13"):
        texts(file)
    assert skipping(file) == ([(0, "fine"), (2, "fine too")], [(1, "line 2", "not UTF-8: byte 0xe9 at byte offset 13")])


def test_a_torn_line_names_file_line_and_position(tmp_path):
    file = make(tmp_path, "torn.jsonl", '{"text": "cello"}\n{"text": "oboe"}\n{"text": "har\n{"text": "tuba"}\n')
    with pytest.raises(
        SourceError, match=r"torn\.jsonl: line 3: not valid JSON: .* at character 9; .*on_bad_row: skip"
    ):
        texts(file)
    found, bad = skipping(file)
    assert found == [(0, "cello"), (1, "oboe"), (3, "tuba")]
    assert [(row, where) for row, where, _ in bad] == [(2, "line 3")]


def test_a_missing_field_names_those_that_exist(tmp_path):
    file = make(tmp_path, "x.jsonl", '{"content": "violin", "id": 1}\n')
    with pytest.raises(SourceError, match=r"x\.jsonl: line 1: no column 'text'; it has 'content', 'id'"):
        texts(file)


@pytest.mark.parametrize(("value", "name"), [(["a"], "list"), (1, "int"), (1.5, "float"), (True, "bool"), ({}, "dict")])
def test_a_text_that_is_none_names_its_type(tmp_path, value, name):
    file = make(tmp_path, "y.jsonl", '{"text": "cello"}\n' + json.dumps({"text": value}))
    with pytest.raises(SourceError, match=rf"y\.jsonl: line 2: column 'text' is not text but {name}"):
        texts(file)


@pytest.mark.parametrize("line", ["[1]", '"text"', "3", "null", "true", '["text"]'])
def test_a_line_that_is_no_object_is_bad(tmp_path, line):
    found, bad = skipping(make(tmp_path, "x.jsonl", line + '\n{"text": "a"}'))
    assert found == [(1, "a")]
    assert bad[0][2].startswith("a JSON ") and "expected an object" in bad[0][2]


def test_what_other_columns_hold_does_not_matter(tmp_path):
    lines = [
        b'{"text": "a", "lang": null}',
        b'{"text": "b", "lang": "fr", "x": NaN, "y": -Infinity, "z": 1e999}',
        b'{"text": "c", "n": ' + b"9" * 10_000 + b"}",
        b'{"text": "d", "s": "\\ud800"}',
        b'{"text": "e", "s": "caf\xe9"}',
        b'{"text": "f", "lang": {"deep": [1, [2]]}}',
    ]
    assert texts(make(tmp_path, "x.jsonl", b"\n".join(lines))) == list("abcdef")


def test_null_stays_null_but_a_missing_key_is_an_error(tmp_path):
    found, bad = skipping(make(tmp_path, "x.jsonl", '{"text": null}\n{}\n{"text": ""}\n'))
    assert found == [(0, None), (2, "")]
    assert bad == [(1, "line 2", "no column 'text'; it has no columns")]


@pytest.mark.parametrize("text", ["\\ud83c", "a\\udfb7", "\\udfb7\\ud83c"])
def test_a_lone_surrogate_is_not_unicode(tmp_path, text):
    found, bad = skipping(make(tmp_path, "x.jsonl", f'{{"text": "{text}"}}\n{{"text": "b"}}'))
    assert found == [(1, "b")]
    assert "'text' is not Unicode: a lone surrogate U+D" in bad[0][2]


def test_very_deep_nesting_is_a_bad_row(tmp_path):
    deep = '{"text": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    found, bad = skipping(make(tmp_path, "x.jsonl", deep + '\n{"text": "b"}'))
    assert (found, bad) == ([(1, "b")], [(0, "line 1", "not valid JSON for any reader here: nested too deep")])


def test_blank_lines_are_no_rows_but_count(tmp_path):
    file = make(tmp_path, "x.jsonl", b'\n{"text": "a"}\r\n  \r\n\n{"text": "b"}\n\n')
    assert rows(file) == [(1, "a"), (4, "b")]


def test_a_byte_order_mark_at_the_start_is_not_text(tmp_path):
    assert texts(make(tmp_path, "x.jsonl", b'\xef\xbb\xbf{"text": "a"}\n{"text": "\\ufeffb"}')) == ["a", "\ufeffb"]


def test_a_file_without_rows_has_no_batches(tmp_path):
    for data in (b"", b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n\n"):
        assert rows(make(tmp_path, "x.jsonl", data)) == []


@given(st.lists(st.one_of(UNICODE, st.sampled_from(HOSTILE), st.none())), st.booleans(), st.booleans(), st.booleans())
def test_any_text_comes_back_from_json_lines(values, ascii_only, crlf, last_newline):
    end = "\r\n" if crlf else "\n"
    data = end.join(json.dumps({"id": 1, "text": value}, ensure_ascii=ascii_only) for value in values)
    with tempfile.TemporaryDirectory() as folder:
        file = make(Path(folder), "x.jsonl", data + (end if last_newline else ""))
        assert rows(file) == list(enumerate(values))


@given(st.lists(st.one_of(UNICODE, st.sampled_from(HOSTILE)).map(lambda it: it.replace("\n", " ").rstrip("\r"))))
def test_any_line_comes_back_from_plain_text(lines):
    with tempfile.TemporaryDirectory() as folder:
        file = make(Path(folder), "x.txt", b"\xef\xbb\xbf" + "".join(line + "\r\n" for line in lines).encode())
        assert rows(file) == list(enumerate(lines))


@given(st.binary())
def test_any_bytes_are_rows_or_bad_rows(data):
    with tempfile.TemporaryDirectory() as folder:
        skipping(make(Path(folder), "x.jsonl", data))
        found, bad = skipping(make(Path(folder), "x.txt", data))
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        assert len(found) + len(bad) == len(lines) - (not lines[-1])


def test_text_with_mark_carriage_returns_an_empty_line_and_no_final_newline(tmp_path):
    file = make(tmp_path, "x.txt", b"\xef\xbb\xbfup\r\ndown\r\n\r\nleft\r\nright")
    assert texts(file) == ["up", "down", "", "left", "right"]


def test_after_a_final_newline_is_no_line_of_text(tmp_path):
    assert texts(make(tmp_path, "a.txt", b"a\n")) == ["a"]
    assert texts(make(tmp_path, "b.txt", b"a\n\n")) == ["a", ""]
    assert texts(make(tmp_path, "c.txt", b"")) == texts(make(tmp_path, "d.txt", b"\xef\xbb\xbf")) == []


def test_a_line_of_text_that_is_not_utf8_is_bad(tmp_path):
    found, bad = skipping(make(tmp_path, "x.txt", b"fine\ncaf\xe9\nfine"), keep=["lang"])
    assert (found, bad) == (
        [(0, "fine", None), (2, "fine", None)],
        [(1, "line 2", "not UTF-8: byte 0xe9 at byte offset 3")],
    )
    with pytest.raises(SourceError, match=r"x\.txt: line 2: not UTF-8"):
        texts(listed(tmp_path / "x.txt"))


# Columns


def test_a_dotted_path_leads_into_objects_and_an_exact_name_goes_first(tmp_path):
    lines = ['{"meta": {"text": "a"}}', '{"meta.text": "b", "meta": {"text": "c"}}', '{"meta": null}']
    lines += ['{"meta": {}}', '{"meta": "x"}', "{}"]
    found, bad = skipping(make(tmp_path, "x.jsonl", "\n".join(lines)), "meta.text")
    assert found == [(0, "a"), (1, "b"), (2, None)]
    assert [row for row, _, _ in bad] == [3, 4, 5]
    assert all(cause.startswith("no column 'meta.text'") for _, _, cause in bad)


def test_kept_columns_are_text(tmp_path):
    lines = [
        '{"text": "a", "k": "url", "m": {"n": 1}}',
        '{"text": "b", "k": null}',
        '{"text": "c", "k": 7, "m": {"n": "é"}}',
        '{"text": "d", "k": 1.5}',
        '{"text": "e", "k": [1, {"a": "é"}]}',
        '{"text": "f", "k": true}',
    ]
    expected = ["url", None, "7", "1.5", '[1,{"a":"é"}]', "true"]
    file = make(tmp_path, "x.jsonl", "\n".join(lines))
    assert [row[2] for row in rows(file, keep=["k"])] == expected
    assert [row[2:] for row in rows(file, keep=["m.n", "text"])][:3] == [("1", "a"), (None, "b"), ("é", "c")]


def test_kept_values_that_only_the_slow_way_reads_stay_what_they_are(tmp_path):
    lines = ['{"text": "a", "k": NaN}', '{"text": "b", "k": {"x": [123456789012345678901234567890, "\\ud800"]}}']
    found = rows(make(tmp_path, "x.jsonl", "\n".join(lines)), keep=["k"])
    assert found == [(0, "a", "NaN"), (1, "b", '{"x":[123456789012345678901234567890,"\\ud800"]}')]


@pytest.mark.parametrize("value", ["{}", '{{"x":[{}]}}'])
def test_a_long_integer_is_kept_exactly(tmp_path, value):
    value = value.format(123456789012345678901234567890)
    file = make(tmp_path, "x.jsonl", f'{{"text": "a", "k": {value}}}')
    assert rows(file, keep=["k"]) == [(0, "a", value)]


def test_a_kept_value_nested_too_deep_is_a_bad_row(tmp_path):
    for depth in (200, 500, 985, 1000, 1020, 5000):
        deep = f'{{"text": "a", "k": {"[" * depth}{"]" * depth}}}'
        found, bad = skipping(make(tmp_path, "x.jsonl", deep + '\n{"text": "b"}'), keep=["k"])
        assert (len(found) + len(bad), found[-1]) == (2, (1, "b", None))


def test_a_kept_text_that_is_not_unicode_is_a_bad_row(tmp_path):
    _, bad = skipping(make(tmp_path, "x.jsonl", '{"text": "a", "k": "\\ud800"}'), keep=["k"])
    assert "column 'k' is not Unicode" in bad[0][2]


# Batches


def test_batches_are_bounded_and_a_long_line_is_one_of_its_own(tmp_path):
    long = "x" * (20 << 20)
    values = ["a"] * 20_000 + [long, "b"] + ["y" * 100_000] * 100
    file = make(tmp_path, "x.jsonl", "\n".join(json.dumps({"text": value}) for value in values))
    batches = list(read_documents(file, "text"))
    assert [value for batch in batches for value in batch.column(1).to_pylist()] == values
    assert [len(batch) for batch in batches if batch.column(1).nbytes > 17 << 20] == [1]


def test_rows_count_on_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "CHUNK", 7)
    data = "".join(f'{{"text": "{i}"}}\n' for i in range(100)) + "oops\n"
    found, bad = skipping(make(tmp_path, "x.jsonl", data))
    assert found == [(i, str(i)) for i in range(100)]
    assert [(row, where) for row, where, _ in bad] == [(100, "line 101")]


@given(st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"\n")), st.integers(1, 9))
def test_lines_do_not_depend_on_how_much_is_read_at_once(data, size):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        file = make(Path(folder), "x.txt", data)
        whole = list(compression.line_blocks(file))
        patch.setattr(compression, "CHUNK", size)
        lines = [line for _, block in compression.line_blocks(file) for line in block]
        assert lines == [line for _, block in whole for line in block]
        assert [first for first, _ in compression.line_blocks(file)][:1] in ([], [0])


# Compression

COMPRESS = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
NOISE = b"".join(json.dumps({"text": str(i * 7919 % 65521)}).encode() + b"\n" for i in range(2000))


def test_all_members_of_gzip_and_frames_of_zstandard_are_read(tmp_path):
    parts = [
        json.dumps({"text": word}).encode() + b"\n" for word in ("violin", "cello", "oboe", "harp", "tuba", "lute")
    ]
    gz = make(tmp_path, "m.jsonl.gz", b"".join(map(COMPRESS["gz"], parts[:3])))
    zst = make(tmp_path, "n.jsonl.zst", b"".join(map(COMPRESS["zst"], parts[3:])))
    assert texts(gz) + texts(zst) == ["violin", "cello", "oboe", "harp", "tuba", "lute"]


@pytest.mark.parametrize("kind", COMPRESS)
def test_members_may_end_within_a_line_and_be_empty(tmp_path, kind):
    compress = COMPRESS[kind]
    data = compress(b'{"text": "vi') + compress(b"") + compress(b'olin"}\n') + compress(NOISE)
    assert texts(make(tmp_path, f"x.jsonl.{kind}", data))[:2] == ["violin", "0"]


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_compressed_file_cut_anywhere_is_refused(tmp_path, kind):
    whole = COMPRESS[kind](NOISE) + COMPRESS[kind](b'{"text": "last"}\n')
    boundary = len(COMPRESS[kind](NOISE))
    cuts = [0, 1, 5, 100, boundary - 5, boundary - 1, boundary + 1, boundary + 3, len(whole) - 9, len(whole) - 1]
    for size in cuts:
        file = make(tmp_path, f"x.jsonl.{kind}", whole[:size])
        with pytest.raises(SourceError, match=rf"x\.jsonl\.{kind}: damaged or cut short"):
            skipping(file)


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("tail", [b"garbage", b"x"])
def test_bytes_after_the_last_member_are_damage(tmp_path, kind, tail):
    file = make(tmp_path, f"x.jsonl.{kind}", COMPRESS[kind](NOISE) + tail)
    with pytest.raises(SourceError, match="damaged or cut short"):
        skipping(file)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_flipped_bit_is_damage(tmp_path, kind):
    data = bytearray(COMPRESS[kind](NOISE))
    data[len(data) // 2] ^= 1
    with pytest.raises(SourceError, match="damaged or cut short"):
        skipping(make(tmp_path, f"x.jsonl.{kind}", bytes(data)))


def test_xz_padding_between_streams_is_no_damage(tmp_path):
    data = lzma.compress(b'{"text": "a"}\n') + b"\0" * 8 + lzma.compress(b'{"text": "b"}\n') + b"\0" * 4
    assert texts(make(tmp_path, "x.jsonl.xz", data)) == ["a", "b"]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.parquet", "x.arrow", "x.csv", "x.txt", "x.json"])
def test_a_file_that_is_gone_since_it_was_listed_is_an_error(tmp_path, name):
    file = make(tmp_path, name, b"")
    file.path.unlink()
    with pytest.raises(SourceError, match="missing; it was there when the source was listed"):
        rows(file)


def test_a_disk_that_fails_is_not_the_sources_fault(tmp_path):
    file = make(tmp_path, "x.jsonl", b"")
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(StorageError, match=r"x\.jsonl: .*cannot be read"):
        rows(file)


def test_an_error_of_who_notes_bad_rows_is_not_the_files(tmp_path):
    def full(_):
        raise OSError("no space")

    for name, data in (("x.jsonl", b"oops"), ("x.txt", b"\xff")):
        with pytest.raises(OSError, match="no space"):
            list(read_documents(make(tmp_path, name, data), "text", (), full))
