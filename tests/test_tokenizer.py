import json
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from prep_assets.engines.battery import BATTERY
from prep_assets.errors import TokenizerError
from prep_assets.recipe import EXAMPLE
from prep_assets.tokenizer import Tokenizer, locate_tokenizer

BOS, EOS = 30, 29
WORDS = {"<none>": 20, "violin": 21, "cello": 22, "oboe": 23, "gong": 28, "<fin>": EOS, "<top>": BOS}


def word_tokenizer(**extra: int) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({**WORDS, **extra}, unk_token="<none>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<top>", "<fin>"])
    return tokenizer


def template(single: str) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=[("<top>", BOS), ("<fin>", EOS)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tokenizer = word_tokenizer()
    tokenizer.post_processor = template("<top> $A")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def ids(tokenizer: Tokenizer, *texts: str) -> list[list[int]]:
    tokens = tokenizer.encode(pa.array(texts, pa.large_string()))
    ends = tokens.lengths.cumsum()
    return [tokens.ids[end - length : end].tolist() for end, length in zip(ends, tokens.lengths, strict=True)]


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "plain", "with_ends_in_text"),
    [
        (None, None, [30, 22], [30, 30, 28, 29]),
        (None, True, [30, 22, 29], [30, 30, 28, 29]),
        (None, False, [30, 22], [30, 30, 28, 29]),
        (True, None, [30, 22], [30, 28, 29]),
        (True, True, [30, 22, 29], [30, 28, 29]),
        (True, False, [30, 22], [30, 28, 29]),
        (False, None, [22], [30, 28, 29]),
        (False, True, [22, 29], [30, 28, 29]),
        (False, False, [22], [30, 28, 29]),
    ],
)
def test_bos_and_eos_are_as_asked_and_never_doubled_by_us(
    path: Path, add_bos: bool | None, add_eos: bool | None, plain: list[int], with_ends_in_text: list[int]
) -> None:
    tokenizer = Tokenizer(path, add_bos=add_bos, add_eos=add_eos, bos_token="<top>", eos_token="<fin>")
    assert ids(tokenizer, "cello", "", "<top> gong <fin>") == [plain, [], with_ends_in_text]


def test_a_text_of_special_tokens_alone_keeps_them(path: Path) -> None:
    tokenizer = Tokenizer(path, add_bos=True, add_eos=True, bos_token="<top>", eos_token="<fin>")
    assert ids(tokenizer, "<fin>", "<top>", "<top><fin>") == [[30, 29], [30, 29], [30, 29]]


@pytest.mark.parametrize("single", ["$A", "<top> $A", "$A <fin>", "<top> $A <fin>", "<top> <top> $A <fin> <fin>"])
@given(texts=st.lists(st.text(st.sampled_from("violn celo<top>fin ")) | st.text(), max_size=8))
def test_without_options_ids_are_those_of_encode_for_each_text_alone(single: str, texts: list[str]) -> None:
    reference = word_tokenizer()
    reference.post_processor = template(single)
    path = Path(f"/tmp/prep_assets_test_{abs(hash(single))}.json")
    reference.save(str(path))
    expected = [
        reference.encode(text).ids if reference.encode(text, add_special_tokens=False).ids else [] for text in texts
    ]
    assert ids(Tokenizer(path), *texts) == expected


def test_a_real_tokenizer_gives_encodes_ids_for_the_battery_whatever_the_batch() -> None:
    path = EXAMPLE.parent / "tokenizer.json"
    reference = tokenizers.Tokenizer.from_file(str(path))
    expected = [reference.encode(text).ids for text in BATTERY]
    assert ids(Tokenizer(path), *BATTERY) == expected
    assert [ids(Tokenizer(path), text)[0] for text in reversed(BATTERY)] == expected[::-1]


def test_saved_truncation_and_padding_are_off(tmp_path: Path) -> None:
    reference = word_tokenizer()
    reference.enable_truncation(3, direction="left")
    reference.enable_padding(direction="left", pad_id=28, pad_token="gong", length=6)
    reference.save(str(tmp_path / "tokenizer.json"))
    texts = ["violin cello oboe violin cello", "gong", "oboe " * 9 + "gong"]
    expected = [[21, 22, 23, 21, 22], [28], [23] * 9 + [28]]
    assert ids(Tokenizer(tmp_path / "tokenizer.json"), *texts) == expected


@pytest.mark.parametrize(
    ("extra", "added", "largest", "dtype"),
    [({}, [], 30, "uint16"), ({"zither": 98_304}, [], 98_304, "int32"), ({"n": 65_535}, ["<new>"], 65_535, "uint16")],
)
def test_the_largest_id_counts_holes_and_added_tokens(
    tmp_path: Path, extra: dict[str, int], added: list[str], largest: int, dtype: str
) -> None:
    reference = word_tokenizer(**extra)
    reference.add_tokens(added)
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.largest_id, str(tokenizer.dtype)) == (largest, dtype)


def test_a_base_vocabulary_below_the_edge_with_added_tokens_above_it(tmp_path: Path) -> None:
    reference = tokenizers.Tokenizer(models.WordLevel({f"n{i}": i for i in range(65_490)}, unk_token="n0"))
    reference.add_tokens([f"[[r{i}]]" for i in range(60)])
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.largest_id == 65_549
    assert ids(tokenizer, "[[r45]] [[r46]] [[r59]]")[0][-1] == 65_549


def test_an_id_of_the_post_processor_above_the_vocabulary_counts(tmp_path: Path) -> None:
    reference = word_tokenizer()
    reference.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 70_000)])
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.largest_id, str(tokenizer.dtype)) == (70_000, "int32")
    assert ids(tokenizer, "gong") == [[28, 70_000]]
    assert Tokenizer(tmp_path / "tokenizer.json", add_eos=False).largest_id == BOS


@pytest.mark.parametrize("option", ["bos", "eos"])
def test_a_missing_special_token_is_refused_by_name(path: Path, option: str) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json.*none is named"):
        Tokenizer(path, **{f"add_{option}": True})  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match=r"<\|done\|>.*vocabulary"):
        Tokenizer(path, **{f"{option}_token": "<|done|>"})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["<fin>", {"content": "<fin>", "lstrip": False}])
def test_the_end_token_comes_from_the_configuration_beside(path: Path, value: object) -> None:
    path.with_name("tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
    assert ids(Tokenizer(path, add_eos=True), "gong") == [[30, 28, 29]]


def test_special_text_is_parsed_counted_or_plain(path: Path) -> None:
    texts = pa.array(["cello <fin> gong", "gong"], pa.large_string())
    parsed, plain = Tokenizer(path), Tokenizer(path, special_text="text")
    assert parsed.encode(texts).ids.tolist() == [30, 22, 29, 28, 30, 28]
    assert plain.encode(texts).ids.tolist() == [30, 22, 29, 28, 30, 28]  # a word of this vocabulary either way
    assert parsed.holds_special_text(texts).tolist() == plain.holds_special_text(texts).tolist() == [True, False]
    example = EXAMPLE.parent / "tokenizer.json"
    token = next(iter(Tokenizer(example).special_tokens.values()))
    text = pa.array([f"a{token}b"], pa.large_string())
    assert Tokenizer(example).encode(text).lengths.tolist() == [3]
    assert Tokenizer(example, special_text="text").encode(text).lengths[0] > 5


def test_the_identity_is_the_files_meaning(path: Path, tmp_path: Path) -> None:
    identity = Tokenizer(path).identity
    meaning = json.loads(path.read_text())
    same = {key: meaning[key] for key in sorted(meaning, reverse=True)}
    same["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "same.json").write_text(json.dumps(same, indent=7))
    assert Tokenizer(tmp_path / "same.json").identity == identity
    meaning["model"]["vocab"]["new"] = 31
    (tmp_path / "other.json").write_text(json.dumps(meaning))
    assert Tokenizer(tmp_path / "other.json").identity != identity


def test_each_option_that_changes_ids_changes_the_identity(path: Path) -> None:
    options = [
        {"add_bos": add_bos, "add_eos": add_eos, "special_text": special}
        for add_bos, add_eos, special in product((None, True, False), (None, True, False), ("parse", "text"))
    ]
    found = {Tokenizer(path, bos_token="<top>", eos_token="<fin>", **option).identity for option in options}  # type: ignore[arg-type]
    assert len(found) == len(options)
    assert Tokenizer(path, threads=2).identity == Tokenizer(path).identity


@pytest.mark.parametrize("content", ["", "{}", "[]", "{", '{"model": 3}', "\ud800"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="missing"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_is_a_file_or_a_folder(path: Path) -> None:
    assert locate_tokenizer(path.name, path.parent, Path("/none")) == path
    assert locate_tokenizer(str(path.parent), Path("/none"), Path("/none")) == path
    assert (
        locate_tokenizer("missing/tokenizer.json", path.parent, Path("/none")) == path.parent / "missing/tokenizer.json"
    )
