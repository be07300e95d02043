"""Which files a name means, and their order."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep_assets.errors import SourceError
from prep_assets.sources.files import is_local, list_files, natural_key, source_of

from .reading import texts


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b'{"text": "violin"}\n')


def names(root, name_or_path=".", data_files=None, split=None):
    return [file.name for file in list_files(name_or_path, root, data_files, split).files]


def notices(root, name_or_path=".", data_files=None, split=None):
    return list_files(name_or_path, root, data_files, split).notices


def test_numbers_of_unequal_width_are_in_order_of_value(tmp_path):
    touch(tmp_path, "shard_10.jsonl", "shard_003.jsonl", "shard_1.jsonl", "shard_02.jsonl")
    assert names(tmp_path) == ["shard_1.jsonl", "shard_02.jsonl", "shard_003.jsonl", "shard_10.jsonl"]


def test_a_number_stands_where_its_character_0_would():
    ordered = ["a-", "a1", "a02", "a2", "a10", "a:", "aa"]
    shuffled = ["aa", "a10", "a2", "a1", "a:", "a02", "a-"]
    assert sorted(shuffled, key=natural_key) == ordered


def test_names_of_equal_value_are_in_order_of_their_characters():
    assert sorted(["a1", "a01", "a001"], key=natural_key) == ["a001", "a01", "a1"]


def test_the_compression_suffix_does_not_move_a_file():
    assert sorted(["a.jsonl.zst", "a.jsonl-b", "a.jsonl"], key=natural_key) == ["a.jsonl", "a.jsonl.zst", "a.jsonl-b"]


def test_digits_of_other_scripts_are_characters():
    assert sorted(["٣", "2", "10"], key=natural_key) == ["2", "10", "٣"]


@given(st.lists(st.integers(0, 10**9)))
def test_numbered_files_are_in_numeric_order_at_any_padding(numbers):
    padded = [f"part-{'0' * (n % 4)}{n}.jsonl" for n in set(numbers)]
    assert [int(name[5:-6]) for name in sorted(padded, key=natural_key)] == sorted(set(numbers))


@given(st.text("aA0129٣./_-é", max_size=8), st.text("aA0129٣./_-é", max_size=8))
def test_two_names_are_equal_in_order_only_if_they_are_the_same(one, other):
    assert (natural_key(one) == natural_key(other)) == (one == other)


@given(st.lists(st.text("ab10", min_size=1, max_size=5), unique=True))
def test_adding_a_compression_suffix_to_all_keeps_the_order(some):
    ordered = sorted((f"{name}.csv" for name in some), key=natural_key)
    assert sorted((f"{name}.gz" for name in ordered), key=natural_key) == [f"{name}.gz" for name in ordered]


def test_a_number_of_ten_thousand_digits_is_compared():
    assert natural_key("9" * 10_000) < natural_key("1" + "0" * 10_000)


def test_brackets_in_a_folders_name_are_no_pattern_and_leftovers_are_no_data(tmp_path):
    root = tmp_path / "source [v1] (final)"
    touch(root, "one.jsonl", "two & three.jsonl", "deep er/four.jsonl.gz")
    touch(root, ".ipynb_checkpoints/one-checkpoint.jsonl", "_temporary/0/part.jsonl", "five.jsonl.part", "six.jsonl~")
    expected = ["deep er/four.jsonl.gz", "one.jsonl", "two & three.jsonl"]
    assert names(tmp_path, "source [v1] (final)") == expected
    assert names(tmp_path, "source [v1] (final)/*.jsonl") == ["one.jsonl", "two & three.jsonl"]
    assert names(tmp_path, "source [v1] (final)", ["**/*.jsonl*"]) == expected


def test_cards_and_markers_are_no_data(tmp_path):
    touch(tmp_path, "a.txt", "README.md", "readme.txt", "LICENSE", "LICENSE.txt", "_SUCCESS", "a.txt.tmp", "._a.txt")
    touch(tmp_path, "dataset_info.json", "dataset_infos.json")
    source = list_files(".", tmp_path, None, None)
    assert ([file.name for file in source.files], source.notices) == (["a.txt"], ())


def test_a_file_says_what_it_is(tmp_path):
    touch(tmp_path, "deep/A.JSONL.GZ")
    (file,) = list_files(str(tmp_path), tmp_path / "elsewhere", None, None).files
    stat = (tmp_path / "deep/A.JSONL.GZ").stat()
    assert (file.name, file.stem, file.format, file.compression) == ("deep/A.JSONL.GZ", "deep/A.JSONL", "jsonl", "gz")
    assert file.identity == f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"
    assert (file.size, file.path) == (19, tmp_path / "deep/A.JSONL.GZ")


@pytest.mark.parametrize(
    ("name", "known"),
    {
        "a.jsonl": "jsonl",
        "a.ndjson": "jsonl",
        "a.json": "json",
        "a.parquet": "parquet",
        "a.arrow": "arrow",
        "a.csv": "csv",
        "a.tsv": "tsv",
        "a.txt": "text",
        "a.text": "text",
        "a.json.xz": "json",
    }.items(),
)
def test_the_extension_tells_the_format(tmp_path, name, known):
    touch(tmp_path, name)
    assert [file.format for file in list_files(name, tmp_path, None, None).files] == [known]


def test_other_files_in_a_folder_are_left_out_and_told(tmp_path):
    touch(tmp_path, "a.jsonl", "notes.docx", "chapter.md")
    assert names(tmp_path) == ["a.jsonl"]
    (notice,) = notices(tmp_path)
    assert "2 files of other formats are not read: chapter.md, notes.docx" in notice


def test_a_folder_without_data_names_itself_the_formats_and_what_it_has(tmp_path):
    touch(tmp_path / "source", "notes.docx", "_SUCCESS")
    with pytest.raises(SourceError, match=r"source: no data files; looked for .*\.jsonl.*\.parquet.*found notes\.docx"):
        names(tmp_path, "source")


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="found nothing"):
        names(tmp_path)


@pytest.mark.parametrize("name", ["x.docx", "x.jsonl.zip", "x.md", "x"])
def test_a_named_file_of_an_unknown_format_is_told_what_is_allowed(tmp_path, name):
    touch(tmp_path, name)
    with pytest.raises(SourceError, match=rf"{name}: not a known format; allowed are .*\.jsonl"):
        names(tmp_path, name)
    with pytest.raises(SourceError, match=rf"{name}: not a known format"):
        names(tmp_path, ".", [name])


def test_a_missing_path_is_an_error_that_names_it(tmp_path):
    with pytest.raises(SourceError, match="nowhere: no such file or folder"):
        names(tmp_path, "./nowhere")


def test_formats_are_not_mixed(tmp_path):
    touch(tmp_path, "a.jsonl", "b.jsonl", "c.csv")
    with pytest.raises(SourceError, match=r"mixed: .*a\.jsonl \(jsonl\).*c\.csv \(csv\).*data_files"):
        names(tmp_path)
    assert names(tmp_path, ".", ["*.jsonl"]) == ["a.jsonl", "b.jsonl"]


def test_parquet_and_arrow_files_may_lie_together(tmp_path):
    touch(tmp_path, "x.parquet", "y.arrow")
    assert names(tmp_path) == ["x.parquet", "y.arrow"]


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.arrow.zst"])
def test_a_compressed_table_is_refused_with_what_to_do(tmp_path, name):
    touch(tmp_path, name)
    with pytest.raises(SourceError, match=r"compressed inside.*decompress"):
        names(tmp_path)


def test_a_file_beside_its_compressed_copy_is_told(tmp_path):
    touch(tmp_path, "a.jsonl", "a.jsonl.gz", "b.jsonl")
    assert names(tmp_path) == ["a.jsonl", "a.jsonl.gz", "b.jsonl"]
    assert "a.jsonl, a.jsonl.gz" in notices(tmp_path)[0]


def test_a_pattern_means_files_below_its_literal_part(tmp_path):
    touch(tmp_path, "data/x/1.jsonl", "data/y/2.jsonl", "data/y/3.csv", "other/4.jsonl", "data/y/.5.jsonl")
    assert names(tmp_path, "data/*/*.jsonl") == ["x/1.jsonl", "y/2.jsonl"]
    assert names(tmp_path, "data/**/[12].jsonl") == ["x/1.jsonl", "y/2.jsonl"]
    assert names(tmp_path, "data/x*") == ["x/1.jsonl"]


def test_a_pattern_without_a_match_is_an_error(tmp_path):
    touch(tmp_path, "a.jsonl")
    with pytest.raises(SourceError, match=r"\*\.csv: no such file"):
        names(tmp_path, "./*.csv")


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path):
    touch(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert names(tmp_path, "a[1].jsonl") == ["a[1].jsonl"]
    assert names(tmp_path, ".", ["a[1].jsonl"]) == ["a[1].jsonl"]


def test_data_files_are_names_and_patterns_below_the_folder(tmp_path):
    touch(tmp_path / "s", "a.jsonl", "b/c.jsonl", "b/d.jsonl", "_e/f.jsonl")
    assert names(tmp_path, "s", ["b/*.jsonl", "a.jsonl", "b/c.jsonl"]) == ["a.jsonl", "b/c.jsonl", "b/d.jsonl"]
    assert names(tmp_path, "s", ["b"]) == ["b/c.jsonl", "b/d.jsonl"]
    assert names(tmp_path, "s", ["_e/f.jsonl"]) == ["_e/f.jsonl"]


def test_a_data_files_pattern_without_a_match_names_it_and_what_there_is(tmp_path):
    touch(tmp_path, "a.jsonl")
    with pytest.raises(SourceError, match=r"'b\*'; it has a\.jsonl"):
        names(tmp_path, ".", ["a*", "b*"])


@pytest.mark.parametrize("pattern", ["../a.jsonl", "/etc/a.jsonl"])
def test_data_files_stay_below_the_folder(tmp_path, pattern):
    with pytest.raises(SourceError, match="leaves the folder"):
        names(tmp_path, ".", [pattern])


def test_data_files_of_a_file_are_refused(tmp_path):
    touch(tmp_path, "a.jsonl")
    with pytest.raises(SourceError, match="not a folder"):
        names(tmp_path, "a.jsonl", ["a.jsonl"])


def test_what_is_local(tmp_path):
    touch(tmp_path, "owner/data/a.jsonl", "d[x]/a.jsonl")
    local = ["owner/data", "owner/data/a.jsonl", "owner/*/a.jsonl", "./missing", "/missing", "~/missing", "d[x]"]
    assert [is_local(name, tmp_path) for name in local] == [True] * len(local)
    assert [is_local(name, tmp_path) for name in ("stas/openwebtext-10k", "owner/*.csv", "gpt2")] == [False] * 3


# Splits


def test_only_the_train_files_of_several_splits_are_read_and_the_others_told(tmp_path):
    touch(tmp_path, "train-0.jsonl", "train-1.jsonl", "test.jsonl", "data_dev.jsonl", "more.jsonl")
    assert names(tmp_path) == ["train-0.jsonl", "train-1.jsonl"]
    (notice,) = notices(tmp_path)
    assert "2 files of split 'train' are read" in notice
    assert all(part in notice for part in ("1 test", "1 validation", "1 unmarked"))


@pytest.mark.parametrize("word", ["validation", "valid", "val", "dev", "Dev"])
def test_a_split_has_several_names(tmp_path, word):
    touch(tmp_path, f"{word}/a.jsonl", "training/b.jsonl", "eval_set/c.jsonl")
    assert names(tmp_path, split="validation") == names(tmp_path, split="val") == [f"{word}/a.jsonl"]
    assert names(tmp_path, split="test") == ["eval_set/c.jsonl"]
    assert names(tmp_path, split="train") == ["training/b.jsonl"]


def test_a_split_is_a_word_of_its_own_and_digits_end_it(tmp_path):
    touch(tmp_path, "train1.jsonl", "latest.jsonl", "retraining.jsonl")
    assert names(tmp_path) == ["train1.jsonl"]


def test_a_files_own_name_tells_its_split_before_its_folders(tmp_path):
    touch(tmp_path, "train-test-split/train.jsonl", "train-test-split/test.jsonl")
    assert names(tmp_path) == ["train-test-split/train.jsonl"]


def test_words_above_the_source_tell_nothing(tmp_path):
    touch(tmp_path / "test", "a.jsonl")
    assert names(tmp_path, "test", split="train") == ["a.jsonl"]


def test_files_of_one_split_are_all_read(tmp_path):
    touch(tmp_path, "test-1.jsonl", "test-2.jsonl")
    assert (names(tmp_path), notices(tmp_path)) == (["test-1.jsonl", "test-2.jsonl"], ())
    with pytest.raises(SourceError, match=r"no file of split 'train'; there are 2 test files.*dataset\.split"):
        names(tmp_path, split="train")


def test_unmarked_files_are_read_whatever_the_split_and_that_is_told(tmp_path):
    touch(tmp_path, "a.jsonl")
    assert (names(tmp_path, split="validation"), notices(tmp_path)) == (["a.jsonl"], ())
    assert "no file's name tells a split" in notices(tmp_path, split="validation")[0]


def test_a_missing_split_is_an_error_that_lists_what_there_is(tmp_path):
    touch(tmp_path, "test.jsonl", "val.jsonl", "x.jsonl")
    with pytest.raises(SourceError, match="no file of split 'train'") as error:
        names(tmp_path)
    assert all(part in str(error.value) for part in ("1 test", "1 validation", "1 unmarked", "data_files"))


def test_who_names_files_gets_them_whatever_their_split(tmp_path):
    touch(tmp_path, "train.jsonl", "test.jsonl")
    assert names(tmp_path, ".", ["*.jsonl"]) == names(tmp_path, "*.jsonl") == ["test.jsonl", "train.jsonl"]
    assert names(tmp_path, "test.jsonl", split="train") == ["test.jsonl"]


def test_files_of_other_formats_count_for_no_split(tmp_path):
    touch(tmp_path, "a.jsonl", "test.docx")
    assert names(tmp_path) == ["a.jsonl"]


# What save_to_disk wrote


def test_a_saved_dataset_is_the_files_that_it_lists(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": ["a", "b", "c"]}).save_to_disk(tmp_path / "saved", num_shards=2)
    touch(tmp_path / "saved", "cache-0123.arrow")
    source = list_files("saved", tmp_path, None, None)
    assert [file.name for file in source.files] == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert [text for file in source.files for text in texts(file)] == ["a", "b", "c"]
    (tmp_path / "saved/data-00001-of-00002.arrow").unlink()
    with pytest.raises(SourceError, match=r"data-00001-of-00002\.arrow: missing"):
        names(tmp_path, "saved")


def test_a_saved_dict_has_a_folder_for_each_split(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    splits = {"train": ["a"], "test": ["b"], "extra": ["c"]}
    saved = datasets.DatasetDict({k: datasets.Dataset.from_dict({"text": v}) for k, v in splits.items()})
    saved.save_to_disk(tmp_path)
    assert names(tmp_path) == ["train/data-00000-of-00001.arrow"]
    assert "left out: test, extra" in notices(tmp_path)[0]
    assert names(tmp_path, split="extra") == ["extra/data-00000-of-00001.arrow"]
    with pytest.raises(SourceError, match=r"no split 'valid'.*one of: train, test, extra"):
        names(tmp_path, split="valid")


def test_the_only_split_of_a_saved_dict_is_read(tmp_path):
    touch(tmp_path, "extra/data.arrow")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["extra"]}')
    (tmp_path / "extra/state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    assert (names(tmp_path), notices(tmp_path)) == (["extra/data.arrow"], ())


def test_a_damaged_state_is_an_error(tmp_path):
    touch(tmp_path, "data.arrow")
    (tmp_path / "state.json").write_text('{"_data_')
    with pytest.raises(SourceError, match=r"state\.json: not valid JSON"):
        names(tmp_path)


# Links


def test_links_to_files_are_followed(tmp_path):
    touch(tmp_path, "blobs/0123")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/a.jsonl").symlink_to("../blobs/0123")
    assert names(tmp_path, "snapshot") == ["a.jsonl"]


def test_a_loop_of_links_ends(tmp_path):
    touch(tmp_path, "a/b/x.jsonl")
    (tmp_path / "a/b/up").symlink_to(tmp_path)
    assert names(tmp_path) == ["a/b/x.jsonl"]


def test_a_link_to_nothing_is_an_error(tmp_path):
    touch(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("gone")
    with pytest.raises(SourceError, match=r"b\.jsonl: missing, or a link to nothing"):
        names(tmp_path)


def test_a_name_that_is_not_utf8_is_an_error(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.jsonl"
    try:
        os.close(os.open(path, os.O_CREAT))
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(SourceError, match="not UTF-8; rename it"):
        names(tmp_path)


def test_the_hubs_files_keep_its_identities(tmp_path):
    touch(tmp_path, "b/10.jsonl", "b/9.jsonl")
    paths = [tmp_path / "b/10.jsonl", tmp_path / "b/9.jsonl"]
    source = source_of(tmp_path, paths, {"b/9.jsonl": "blob:9", "b/10.jsonl": "blob:10"}, ["told"], "c0ffee")
    assert [(file.name, file.identity) for file in source.files] == [("b/9.jsonl", "blob:9"), ("b/10.jsonl", "blob:10")]
    assert (source.notices, source.revision) == (("told",), "c0ffee")
