"""The packaged example: texts that can be read and a tokenizer that fits them."""

import gzip
import json
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer

EXAMPLE = Path(__file__).resolve().parents[1] / "prep_assets" / "example"
FILES = {
    "chinese_classics.jsonl.gz": 679,
    "factbook.jsonl.gz": 490,
    "moby_dick.jsonl.gz": 138,
    "reina_valera.jsonl.gz": 360,
    "state_of_the_union_1.jsonl.gz": 18,
    "state_of_the_union_2.jsonl.gz": 19,
    "world_english_bible.jsonl.gz": 360,
}


def documents(name: str) -> list[dict[str, str]]:
    lines = gzip.decompress((EXAMPLE / "source" / name).read_bytes()).decode().split("\n")
    assert lines.pop() == ""
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(EXAMPLE / "tokenizer.json"))


def test_the_source_holds_its_files_and_no_other():
    assert {path.name for path in (EXAMPLE / "source").iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_each_file_holds_documents_with_text(name):
    found = documents(name)
    assert len(found) == FILES[name]
    assert all(set(document) == {"id", "title", "text"} for document in found)
    assert all(document["text"].strip() and "\ufffd" not in document["text"] for document in found)


def test_no_document_is_there_twice():
    found = [document for name in FILES for document in documents(name)]
    assert len({document["id"] for document in found}) == len({document["text"] for document in found}) == len(found)


@pytest.mark.parametrize("name", FILES)
def test_the_compressed_files_hold_no_time_and_no_name(name):
    magic_method_flags, time = (
        (EXAMPLE / "source" / name).read_bytes()[:4],
        (EXAMPLE / "source" / name).read_bytes()[4:8],
    )
    assert (magic_method_flags, time) == (b"\x1f\x8b\x08\x00", bytes(4))


def test_the_ids_of_the_vocabulary_are_0_to_8191(tokenizer):
    assert sorted(tokenizer.get_vocab(with_added_tokens=True).values()) == list(range(8192))


def test_the_special_tokens_of_the_configuration_are_the_tokenizers(tokenizer):
    config = json.loads((EXAMPLE / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    assert special == {config["bos_token"], config["eos_token"]}


def test_no_special_token_is_added_or_stands_in_a_text(tokenizer):
    assert tokenizer.encode("").ids == []
    special = set(tokenizer.get_added_tokens_decoder())
    texts = [document["text"] for name in FILES for document in documents(name)]
    assert not any(special & set(encoding.ids) for encoding in tokenizer.encode_batch(texts))


@pytest.mark.parametrize("name", FILES)
def test_decoding_gives_every_text_back(name, tokenizer):
    texts = [document["text"] for document in documents(name)]
    assert tokenizer.decode_batch([encoding.ids for encoding in tokenizer.encode_batch(texts)]) == texts


@pytest.mark.parametrize("text", ["", " a  b\n\n\tc ", "naïve ﬁancé 漢字 👩‍👩‍👧 \u0085\u2028", "\x00\x7f"])
def test_text_that_it_never_saw_comes_back_too(text, tokenizer):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_recipe_prepares_this_source_with_this_tokenizer():
    recipe = yaml.safe_load((EXAMPLE / "recipe.yaml").read_text(encoding="utf-8"))
    assert (EXAMPLE / recipe["dataset"]["name_or_path"]).is_dir()
    assert (EXAMPLE / recipe["tokenizer"]["path"]).is_file()
    assert (recipe["output_path"], recipe["shards"], recipe["tokenizer"]["add_eos"]) == ("output/example", 8, True)


def test_the_notice_names_every_file():
    notice = (EXAMPLE / "NOTICE").read_text(encoding="utf-8")
    assert all(f"source/{name}" in notice for name in FILES)
