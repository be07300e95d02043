"""Drives the stages as the assets do, without Dagster, and reads what was published with an independent reader."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from prep_assets.build import Build
from prep_assets.cleanup import clean_up
from prep_assets.formats.publications import Publication
from prep_assets.layout import Layout
from prep_assets.plan import Plan, make_plan
from prep_assets.recipe import Recipe, parse_recipe
from prep_assets.scan import list_source, scan
from prep_assets.stages.dataset_manifest import publish
from prep_assets.stages.memmap_shards import make_memmap_shards
from prep_assets.stages.raw_dataset import make_raw_partitions
from prep_assets.stages.tokenized_partitions import make_token_partitions
from prep_assets.workspace import claim, running
from tests.reader import read_pair

WORDS = ["violin", "cello", "oboe", "harp", "tuba", "lute", "drum", "gong"]
VOCABULARY = {"<none>": 20, **{word: 21 + at for at, word in enumerate(WORDS)}, "<fin>": 29}


def save_word_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """A tokenizer whose ids can be read: violin is 21, cello 22 … gong 28, <fin> 29."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(VOCABULARY, unk_token="<none>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<fin>"])
    tokenizer.save(str(path))
    return tokenizer


def write_jsonl(path: Path, texts: Iterable[str | None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def make_recipe(folder: Path, **changes: Any) -> Recipe:
    """A recipe for folder/source and folder/tokenizer.json; dotted keys reach into its sections."""
    data: dict[str, Any] = {
        "output_path": "out",
        "dataset": {"name_or_path": "source"},
        "tokenizer": {"path": "tokenizer.json"},
    }
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (data[section] if section else data)[name] = value
    return parse_recipe(data, "recipe.yaml", folder)


def layout_of(recipe: Recipe) -> Layout:
    return Layout(recipe.output, recipe.work)


def open_build(recipe: Recipe) -> Build:
    """Scans the source."""
    layout = layout_of(recipe)
    claim(layout)
    return Build(recipe, layout, scan(recipe, layout, list_source(recipe, layout)))


def refresh(recipe: Recipe) -> Publication:
    """All four stages over all shards, each of which does only what is stale; then clean-up."""
    with running(layout_of(recipe)):
        build = open_build(recipe)
        shards = range(build.num_shards)
        list(make_raw_partitions(build, shards))
        list(make_token_partitions(build, shards))
        list(make_memmap_shards(build, shards))
        publication = publish(build)
    clean_up(build)
    return publication


def plan_of(recipe: Recipe) -> Plan:
    return make_plan(open_build(recipe))


def published(output: Path) -> dict[str, list[list[int]]]:
    """The documents of each pair that the manifest names, read by the independent reader."""
    manifest = json.loads((output / "fast_llm_dataset.json").read_text())["datasets"]
    found = {entry["prefix"]: [ids.tolist() for ids in read_pair(output / entry["prefix"])] for entry in manifest}
    for entry in manifest:
        assert entry["num_documents"] == len(found[entry["prefix"]])
        assert entry["num_tokens"] == sum(map(len, found[entry["prefix"]])) > 0
    assert abs(sum(entry["weight"] for entry in manifest) - 1) < 1e-9
    return found


def all_documents(output: Path) -> list[list[int]]:
    return [document for documents in published(output).values() for document in documents]


def bytes_of_version(output: Path) -> Mapping[str, bytes]:
    """Every file of the published version but Megatron's, which holds an absolute path."""
    folder = (output / "latest").resolve()
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".txt"}
