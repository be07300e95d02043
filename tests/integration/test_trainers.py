"""Published pairs, read by the trainers' own code: `pytest -m trainers`; each test that finds no trainer is skipped.

PREP_ASSETS_MEGATRON_PYTHON            an interpreter that has megatron-core
PREP_ASSETS_MEGATRON                   optional: a checkout of Megatron-LM to read with instead, its helpers_cpp built
PREP_ASSETS_FAST_LLM_PYTHON            an interpreter (3.11 will do) that has torch, datasets and transformers
PREP_ASSETS_FAST_LLM                   a checkout of Fast-LLM at 2905d38c, its first with a prepare command
PREP_ASSETS_FAST_LLM_CURRENT_PYTHON    an interpreter (3.12 or newer) that has torch, numpy, pyyaml and requests
PREP_ASSETS_FAST_LLM_CURRENT           a checkout of Fast-LLM as it is now

Each reader runs in its trainer's interpreter and prints, as JSON, digests of what it read.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from tests.reader import read_pair

pytestmark = pytest.mark.trainers

EXAMPLE = Path(__file__).resolve().parents[2] / "prep_assets" / "example"
SAMPLE_LENGTH = 64  # tokens of one training sample
NUM_SAMPLES = 50

COMMON = '''
import hashlib, json, sys
import numpy as np


def digest(tokens):
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i8")).hexdigest()


def summary(documents):
    """documents: arrays of tokens."""
    lengths = [len(document) for document in documents]
    tokens = np.concatenate([np.asarray(document, dtype=np.int64) for document in documents])
    return {"num_documents": len(lengths), "lengths": digest(lengths), "tokens": digest(tokens)}
'''

MEGATRON = (
    COMMON
    + """
import tempfile, types, typing, typing_extensions

if not hasattr(typing, "override"):  # newer commits are written for Python 3.12
    typing.override = typing_extensions.override

import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import get_blend_from_list

data_args, length, num_samples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(data_args) as stream:
    prefixes, weights = blend = get_blend_from_list(stream.read().split())
pairs = {}
for prefix in prefixes:
    dataset = IndexedDataset(prefix)
    documents = [dataset[index] for index in range(len(dataset))]
    assert all(document.dtype == dataset.index.dtype for document in documents)
    assert dataset.document_indices.tolist() == list(range(len(dataset) + 1))
    pairs[prefix] = summary(documents) | {"dtype": np.dtype(dataset.index.dtype).name}

with tempfile.TemporaryDirectory() as folder:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    tokenizer = types.SimpleNamespace(eod=1, pad=-1, vocab_size=8192, unique_identifiers={"name": "example"})
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=length, blend=blend, split="1,0,0", tokenizer=tokenizer,
        path_to_cache=folder if len(sys.argv) == 4 else None,  # None: beside the pair, as without --data-cache-path
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    )
    train = BlendedMegatronDatasetBuilder(GPTDataset, [num_samples, 0, 0], lambda: True, config).build()[0]
    streams = {}
    for dataset in getattr(train, "datasets", [train]):
        place = {int(sample): position for position, sample in enumerate(dataset.shuffle_index)}
        in_order = [dataset[place[sample]]["tokens"].numpy() for sample in range(min(len(place), num_samples))]
        streams[dataset.dataset_path] = {
            "documents": np.asarray(dataset.document_index).tolist(), "num_samples": len(in_order),
            "tokens": digest(np.concatenate(in_order)),
        }
    print(json.dumps({"prefixes": prefixes, "weights": weights, "pairs": pairs, "streams": streams}))
"""
)

FAST_LLM = (
    COMMON
    + """
import pathlib
from fast_llm.data.gpt.memmap import GPTMemmapDataset

pairs = {}
for prefix in sys.argv[1:]:
    dataset = GPTMemmapDataset("published", pathlib.Path(prefix))
    documents = [dataset.get(index) for index in range(dataset.num_documents)]
    assert dataset.num_tokens == sum(map(len, documents))
    assert dataset.get_document_sizes().tolist() == [len(document) for document in documents]
    pairs[prefix] = summary(documents) | {"dtype": documents[0].dtype.name}
print(json.dumps(pairs))
"""
)

FAST_LLM_CURRENT = (
    COMMON
    + """
import pathlib
import fast_llm.data.auto
import torch
from fast_llm.data.dataset.config import BlendedDatasetConfig
from fast_llm.data.dataset.gpt.config import GPTDatasetFromFileConfig, GPTSamplingConfig
from fast_llm.data.dataset.memmap.config import MemmapDatasetConfig

path, length, num_samples = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = GPTDatasetFromFileConfig.from_dict({"type": "file", "path": path})
file.validate()
config = file._load_config()
config.validate()
configs, weights = (config.datasets, config.weights) if isinstance(config, BlendedDatasetConfig) else ([config], [1.0])
assert all(type(dataset) is MemmapDatasetConfig for dataset in configs)


def samples(config):
    sampling = {"gpu": False, "micro_batch_size": length, "shuffle": "disabled", "preprocessing": {}}
    sampled = config.build_and_sample(GPTSamplingConfig.from_dict(sampling), num_samples, 1)
    return [torch.cat([document.tokens for document in sampled[index]]).numpy() for index in range(num_samples)]


pairs = {}
for dataset_config in configs:
    dataset = dataset_config.build()
    documents = [dataset.get_document(index).tokens.numpy() for index in range(len(dataset))]
    assert dataset.num_tokens == sum(map(len, documents))
    pairs[str(dataset_config.path)] = summary(documents) | {
        "samples": digest(np.concatenate([sample[:length] for sample in samples(dataset_config)])),
        "overlap": all(len(sample) == length + 1 for sample in samples(dataset_config)),
    }
lengths = [len(sample) for sample in samples(file)]
print(json.dumps({"type": config.to_dict()["type"], "weights": weights, "pairs": pairs, "samples": lengths}))
"""
)


@dataclass(frozen=True)
class Published:
    output: Path
    version: Path  # latest, resolved
    dtype: str

    @property
    def prefixes(self) -> list[str]:
        datasets = json.loads((self.version / "fast_llm_dataset.json").read_text())["datasets"]
        return [dataset["prefix"] for dataset in datasets]

    def documents(self) -> dict[str, list[np.ndarray]]:
        return {prefix: read_pair(self.version / prefix) for prefix in self.prefixes}


def digest(values: Iterable[int]) -> str:
    return hashlib.sha256(np.ascontiguousarray(list(values), dtype="<i8")).hexdigest()


def summary(documents: list[np.ndarray]) -> dict[str, Any]:
    lengths = [len(document) for document in documents]
    return {"num_documents": len(lengths), "lengths": digest(lengths), "tokens": digest(np.concatenate(documents))}


def texts() -> list[str]:
    """Short ones, long ones, one of one token, none empty, many scripts."""
    generator = np.random.default_rng(20240229)
    words = ["whale", "sea", "Génesis", "漢字", "naïve", "ש", "👩‍👩‍👧", "the", "of", "\n", "0", "<|end_of_text|"]
    sizes = [1, 1, 2, 5000, *generator.integers(1, 400, 400).tolist()]
    return [" ".join(generator.choice(words, size)) + f" {number}" for number, size in enumerate(sizes)] + ["a"]


def prepare(folder: Path, options: dict[str, Any]) -> Published:
    """Publishes what folder/recipe.yaml describes."""
    tokenizer = {"path": str(EXAMPLE / "tokenizer.json"), "add_eos": True}
    recipe = {"output_path": "output", "tokenizer": tokenizer, **options}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    command = [sys.executable, "-m", "prep_assets.cli", "prepare", "--config", str(folder / "recipe.yaml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    data_type = options["dataset"].get("data_type", "auto")
    output = folder / "output"
    return Published(output, (output / "latest").resolve(), "uint16" if data_type == "auto" else data_type)


@pytest.fixture(
    scope="module", params=[(1, "auto"), (8, "auto"), (8, "int32")], ids=lambda case: f"{case[0]}-{case[1]}"
)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """What `prepare` publishes of a small source, and that it holds the right tokens."""
    shards, data_type = request.param
    folder = tmp_path_factory.mktemp("trainers")
    source = folder / "source"
    source.mkdir()
    rows = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts()]
    for part in range(3):
        (source / f"part_{part}.jsonl").write_text("".join(rows[part::3]), encoding="utf-8")
    made = prepare(folder, {"shards": shards, "dataset": {"name_or_path": str(source), "data_type": data_type}})
    found = made.documents()
    assert len(found) == shards
    tokenizer = Tokenizer.from_file(str(EXAMPLE / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end_of_text|>")
    expected = sorted([*encoding.ids, end] for encoding in tokenizer.encode_batch(texts()))
    assert sorted(document.tolist() for pair in found.values() for document in pair) == expected
    return made


def test_megatrons_samples_of_a_version_survive_a_refresh_and_the_next_version_gets_its_own(tmp_path):
    python, checkout = setting("PREP_ASSETS_MEGATRON_PYTHON"), os.environ.get("PREP_ASSETS_MEGATRON")
    (tmp_path / "source").mkdir()

    def prepared(rows: list[str]) -> Published:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in rows)
        (tmp_path / "source/x.jsonl").write_text(lines, encoding="utf-8")
        return prepare(tmp_path, {"dataset": {"name_or_path": "source"}})

    def read(version: Published) -> Any:
        data_args = version.version / "megatron_data_args.txt"
        return run(python, checkout, MEGATRON, data_args, SAMPLE_LENGTH, NUM_SAMPLES, "cache beside the pair")

    first = prepared(texts())
    before = read(first)
    assert list(first.version.rglob("cache/*"))  # Megatron keeps its sample index here, under the path alone
    edited = texts()
    edited[10], edited[20] = edited[20] + " sea", "whale"
    second = prepared(edited)
    assert second.version != first.version
    assert read(first) == before
    assert_streams_are_the_documents(first, before)
    assert_streams_are_the_documents(second, read(second))


def setting(name: str) -> str:
    if not (value := os.environ.get(name)):
        pytest.skip(f"{name} is not set; this file's first lines say what it should name")
    return value


def run(python: str, checkout: str | None, script: str, *arguments: str | int) -> Any:
    """What a reader prints, as JSON; it runs in the trainer's interpreter, the checkout first on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if checkout:
        environment["PYTHONPATH"] = checkout
    command = [python, "-W", "ignore", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def shares(published: Published) -> list[float]:
    sizes = [sum(map(len, documents)) for documents in published.documents().values()]
    return [size / sum(sizes) for size in sizes]


@pytest.fixture(scope="module")
def megatron(published: Published) -> Any:
    python = setting("PREP_ASSETS_MEGATRON_PYTHON")
    data_args = published.version / "megatron_data_args.txt"
    return run(python, os.environ.get("PREP_ASSETS_MEGATRON"), MEGATRON, data_args, SAMPLE_LENGTH, NUM_SAMPLES)


def test_megatron_reads_every_document_equal(published, megatron):
    expected = {
        str(published.version / prefix): summary(documents) | {"dtype": published.dtype}
        for prefix, documents in published.documents().items()
    }
    assert megatron["pairs"] == expected


def test_megatron_weighs_the_pairs_by_their_tokens(published, megatron):
    assert megatron["prefixes"] == [str(published.version / prefix) for prefix in published.prefixes]
    assert megatron["weights"] == pytest.approx(shares(published), abs=1e-12)


def test_megatron_trains_on_the_documents_as_they_are(published, megatron):
    assert_streams_are_the_documents(published, megatron)


def assert_streams_are_the_documents(published: Published, megatron: Any) -> None:
    documents = published.documents()
    assert len(megatron["streams"]) == len(documents)
    for prefix, stream in megatron["streams"].items():
        tokens = np.concatenate([documents[Path(prefix).name][index] for index in stream["documents"]])
        assert stream["num_samples"] > 0
        assert stream["tokens"] == digest(tokens[: stream["num_samples"] * SAMPLE_LENGTH])


def test_the_first_fast_llm_reads_every_document_equal(published):
    python, checkout = setting("PREP_ASSETS_FAST_LLM_PYTHON"), setting("PREP_ASSETS_FAST_LLM")
    prefixes = [published.version / prefix for prefix in published.prefixes]
    expected = {
        str(published.version / prefix): summary(documents) | {"dtype": published.dtype}
        for prefix, documents in published.documents().items()
    }
    assert run(python, checkout, FAST_LLM, *prefixes) == expected


@pytest.mark.parametrize("below", ["version", "latest", "output"])
def test_the_current_fast_llm_loads_and_samples_the_configuration(published, below):
    python = setting("PREP_ASSETS_FAST_LLM_CURRENT_PYTHON")
    checkout = setting("PREP_ASSETS_FAST_LLM_CURRENT")
    folders = {"version": published.version, "latest": published.output / "latest", "output": published.output}
    folder = folders[below]
    found = run(python, checkout, FAST_LLM_CURRENT, folder / "fast_llm_config.yaml", SAMPLE_LENGTH, NUM_SAMPLES)

    documents = published.documents()
    assert found["type"] == ("memmap" if len(documents) == 1 else "blended")
    assert found["weights"] == pytest.approx(shares(published), abs=1e-12)
    assert found["samples"] == [SAMPLE_LENGTH + 1] * NUM_SAMPLES
    for prefix, pair in documents.items():
        tokens = np.concatenate(pair)[: SAMPLE_LENGTH * NUM_SAMPLES]
        expected = summary(pair) | {"samples": digest(tokens), "overlap": True}
        assert found["pairs"].pop(str(folder / prefix)) == expected
    assert not found["pairs"]


def test_the_configuration_is_what_fast_llms_own_prepare_writes(published):
    config = yaml.safe_load((published.version / "fast_llm_config.yaml").read_text())
    assert set(config) <= {"config", "metadata"}
    datasets = [{"type": "memmap", "path": prefix} for prefix in published.prefixes]
    if len(datasets) == 1:
        assert config["config"] == datasets[0]
    else:
        assert {key: config["config"][key] for key in ("type", "datasets")} == {"type": "blended", "datasets": datasets}
        assert set(config["config"]) == {"type", "datasets", "weights"}
