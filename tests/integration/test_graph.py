"""The whole graph on a real Dagster instance: what runs, what it reports, and which bytes it leaves."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.loader import LoadingContextForTest

import prep_assets
from prep_assets.definitions import build_definitions
from prep_assets.receipt import Receipt
from prep_assets.recipe import load_recipe
from tests.pipeline import WORDS, all_documents, bytes_of_version, published, save_word_tokenizer, write_jsonl

STAGES = ("raw_dataset", "tokenized_partitions", "memmap_shards")
MANIFEST = "dataset_manifest"
TEXTS = [f"{first} {second}" for first, second in product(WORDS, WORDS)]
RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")

Events = Counter[tuple[str, str | None]]  # (asset, partition), the manifest's partition being None


def shard_of(text: str, shards: int) -> int:
    """By hand, from DESIGN.md."""
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest()[:8], "big") % shards


def ids_of(text: str) -> list[int]:
    return [21 + WORDS.index(word) for word in text.split()] + [29]


def keys(shards: int) -> list[str]:
    return [f"{shard:05}" for shard in range(shards)]


@dataclass(frozen=True)
class Project:
    """A recipe with its source, and Dagster's history of its runs."""

    folder: Path
    instance: dg.DagsterInstance
    shards: int
    name: str | None = None

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def write(self, texts: Iterable[str | None], **changes: object) -> None:
        """Writes source, tokenizer and recipe."""
        save_word_tokenizer(self.folder / "tokenizer.json")
        write_jsonl(self.folder / "source/x.jsonl", texts)
        recipe = {
            "output_path": "out",
            "shards": self.shards,
            "dataset": {"name_or_path": "source"},
            "tokenizer": {"path": "tokenizer.json", "add_eos": True, "eos_token": "<fin>", **changes},
        } | ({"name": self.name} if self.name else {})
        self.recipe.write_text(yaml.safe_dump(recipe))

    def key(self, asset: str) -> dg.AssetKey:
        return dg.AssetKey([self.name, asset] if self.name else [asset])

    def run(self, *assets: str, partition: str | None = None, **tags: str) -> dg.DagsterRun:
        """Runs the job `refresh` in this process: over one partition, or over all; all its assets, or these."""
        job = build_definitions(load_recipe(self.recipe)).resolve_job_def("refresh").as_ephemeral_job({}, {})
        whole = dict(zip(RANGE, (keys(self.shards)[0], keys(self.shards)[-1]), strict=True))
        run = self.instance.create_run_for_job(
            job_def=job,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            tags={"dagster/partition": partition} if partition else {**whole, **tags},
            asset_selection={self.key(asset) for asset in assets} or None,
        )
        execute_run(InMemoryJob(job), run, self.instance, raise_on_error=False)
        done = self.instance.get_run_by_id(run.run_id)
        assert done is not None
        return done

    def events(self) -> Events:
        """How many events each partition of each asset has."""
        return Counter(
            (asset, record.partition_key)
            for asset in (*STAGES, MANIFEST)
            for record in self.instance.fetch_materializations(self.key(asset), limit=1000).records
        )

    def latest(self, asset: str, partition: str | None) -> dg.AssetMaterialization:
        record = self.instance.get_latest_data_version_record(self.key(asset), False, partition)
        assert record is not None and record.asset_materialization is not None
        return record.asset_materialization

    def versions(self) -> dict[tuple[str, str | None], str]:
        """The data version of each partition of each asset."""
        made = everything(self.shards)
        return {(asset, key): self.latest(asset, key).tags["dagster/data_version"] for asset, key in made}

    def not_fresh(self) -> Set[tuple[str, str | None]]:
        """What the UI marks as stale or missing."""
        graph = build_definitions(load_recipe(self.recipe)).resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        made = everything(self.shards)
        return {(asset, key) for asset, key in made if resolver.get_status(self.key(asset), key).value != "FRESH"}

    def receipt(self, stage: str, partition: str) -> Receipt:
        [path] = (self.output / ".prep_assets" / stage / partition).glob("*/receipt.json")
        return Receipt.model_validate_json(path.read_bytes())

    def headlines(self, run: dg.DagsterRun) -> list[str | None]:
        """What the UI shows first of each failed step."""
        failed = self.instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
        data = [record.event_log_entry.get_dagster_event().step_failure_data for record in failed]
        return [it.user_failure_data.description if it.user_failure_data else it.error_display_string for it in data]


def everything(shards: int) -> list[tuple[str, str | None]]:
    return [*product(STAGES, keys(shards)), (MANIFEST, None)]


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Project]]:
    """Makes a project in a folder of its own; its history is in memory (in files, an event costs 15 ms), or shared."""
    instances: list[dg.DagsterInstance] = []

    def make(shards: int = 8, is_shared: bool = False) -> Project:
        folder = tmp_path_factory.mktemp("project")
        if is_shared:
            (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
            instances.append(dg.DagsterInstance.from_config(str(folder)))
        else:
            instances.append(dg.DagsterInstance.ephemeral())
        return Project(folder, instances[-1], shards)

    yield make
    for instance in instances:
        instance.dispose()


@pytest.fixture(scope="module")
def by_command(new_project: Callable[..., Project]) -> Project:
    """All of it, once, by `dagster asset materialize`: a process for each step."""
    project = new_project(is_shared=True)
    project.write(TEXTS)
    arguments = ["asset", "materialize", "-m", "prep_assets.definitions", "--select", "*"]
    done = subprocess.run(
        [sys.executable, "-m", "dagster", *arguments, "--partition-range", "00000...00007"],
        cwd=project.folder,  # not the repository: the .env there would choose the home
        env=os.environ
        | {
            "DAGSTER_HOME": str(project.folder),
            "PREP_ASSETS_RECIPE": str(project.recipe),
            "PYTHONPATH": str(Path(prep_assets.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return project


@pytest.fixture(scope="module")
def in_process(new_project: Callable[..., Project]) -> Project:
    """The same in one process."""
    project = new_project()
    project.write(TEXTS)
    assert project.run().is_success
    return project


def test_the_command_leaves_eight_pairs_with_each_document_in_its_shard(by_command: Project) -> None:
    assert published(by_command.output) == {
        f"shard_{shard}_0": [ids_of(text) for text in TEXTS if shard_of(text, 8) == shard] for shard in range(8)
    }


def test_the_command_reports_each_partition_once_and_the_manifest_once(by_command: Project) -> None:
    assert by_command.events() == Counter(everything(8))
    [run] = by_command.instance.get_runs()
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    planned = by_command.instance.get_records_for_run(run.run_id, of_type=kind).records
    assert Counter((it.asset_key.to_user_string(), it.partition_key) for it in planned) == Counter(everything(8))


def test_everything_is_fresh_after_the_command(by_command: Project) -> None:
    assert by_command.not_fresh() == set()


def test_each_version_is_the_content_of_its_receipt(by_command: Project) -> None:
    versions = by_command.versions()
    for stage, key in product(STAGES, keys(8)):
        assert versions[stage, key] == by_command.receipt(stage, key).content
    assert versions[MANIFEST, None] == (by_command.output / "latest").readlink().name
    assert len(set(versions.values())) > 8  # each shard's own, not its run's


def test_each_event_says_what_its_shard_holds(by_command: Project) -> None:
    for shard, key in enumerate(keys(8)):
        texts = [text for text in TEXTS if shard_of(text, 8) == shard]
        for stage in STAGES:
            metadata = {name: it.value for name, it in by_command.latest(stage, key).metadata.items()}
            assert metadata["dagster/partition_row_count"] == len(texts)
            assert metadata["bytes"] > 0 and metadata["seconds"] >= 0
            if stage != "raw_dataset":
                assert metadata["tokens"] == metadata["with end token"] * 3 == len(texts) * 3
    metadata = {name: it.value for name, it in by_command.latest(MANIFEST, None).metadata.items()}
    assert (metadata["dagster/row_count"], metadata["tokens"]) == (64, 192)
    assert Path(str(metadata["manifest"])).read_bytes() == (by_command.output / "fast_llm_dataset.json").read_bytes()


def test_a_process_for_each_step_and_one_for_all_give_the_same_bytes_and_versions(
    by_command: Project, in_process: Project
) -> None:
    assert bytes_of_version(in_process.output) == bytes_of_version(by_command.output)
    assert in_process.versions() == by_command.versions()
    assert in_process.events() == by_command.events()
    assert in_process.not_fresh() == set()


def test_one_run_for_each_shard_gives_the_same_bytes_and_versions(
    in_process: Project, new_project: Callable[..., Project]
) -> None:
    project = new_project()
    project.write(TEXTS)
    for key in reversed(keys(8)):
        assert project.run(*STAGES, partition=key).is_success
    assert project.run(MANIFEST).is_success
    assert bytes_of_version(project.output) == bytes_of_version(in_process.output)
    assert project.versions() == in_process.versions()
    assert project.events() == Counter(everything(8))
    assert project.not_fresh() == set()


def test_one_partition_of_one_asset_is_one_event(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.write(TEXTS)
    assert project.run("raw_dataset", partition="00003").is_success
    assert project.events() == Counter([("raw_dataset", "00003")])
    assert project.run("tokenized_partitions", partition="00003").is_success
    assert project.events() == Counter([("raw_dataset", "00003"), ("tokenized_partitions", "00003")])
    assert [path.name for path in (project.output / ".prep_assets/tokenized_partitions").iterdir()] == ["00003"]


def test_a_stage_whose_upstream_was_not_made_names_what_to_make(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.write(TEXTS)
    assert project.run("raw_dataset", partition="00003").is_success
    run = project.run("memmap_shards", partition="00003")
    assert run.is_failure
    [headline] = project.headlines(run)
    assert headline is not None and headline.startswith("tokenized_partitions, shard 00003: not made")


def test_a_failure_leaves_the_shards_before_it_materialized_and_says_what_is_wrong(
    new_project: Callable[..., Project],
) -> None:
    project = new_project()
    wrong = next(text for text in (f"{word} <fin> {word}" for word in WORDS) if shard_of(text, 8) in range(3, 7))
    at = shard_of(wrong, 8)
    project.write([*TEXTS, wrong], special_tokens_in_text="error")
    run = project.run()
    assert run.is_failure
    made = [*product(["raw_dataset"], keys(8)), *product(["tokenized_partitions"], keys(at))]
    assert project.events() == Counter(made)
    [headline] = project.headlines(run)
    assert headline is not None and "holds '<fin>', a special token" in headline
    assert "x.jsonl" in headline and str(len(TEXTS)) in headline
    assert "Traceback" not in headline and "\n" not in headline
    assert not (project.output / "latest").exists()

    project.write(TEXTS, special_tokens_in_text="error")
    assert project.run().is_success
    assert project.not_fresh() == set()
    assert sorted(all_documents(project.output)) == sorted(map(ids_of, TEXTS))


def test_the_manifest_waits_for_every_shard_and_for_no_other(new_project: Callable[..., Project]) -> None:
    """Case G24: while a shard is missing, with all of them, with fewer of them, and with one made again."""
    project = new_project(shards=3)
    texts = WORDS[:6]
    missing = keys(3)[shard_of(texts[0], 3)]
    project.write(texts)
    for key in keys(3):
        if key != missing:
            assert project.run(*STAGES, partition=key).is_success
    run = project.run(MANIFEST)
    assert run.is_failure
    [headline] = project.headlines(run)
    assert headline is not None and f"in 1 of 3 shards: {missing};" in headline
    assert not (project.output / "fast_llm_dataset.json").exists()

    assert project.run(*STAGES, partition=missing).is_success
    assert project.run(MANIFEST).is_success
    assert len(published(project.output)) == len({shard_of(text, 3) for text in texts})
    assert sorted(all_documents(project.output)) == sorted(map(ids_of, texts))
    assert project.not_fresh() == set()

    before, events = project.versions(), project.events()
    assert project.run(*STAGES, partition=missing).is_success
    assert project.versions() == before
    assert project.events() == events + Counter((stage, missing) for stage in STAGES)
    assert project.not_fresh() == set()

    fewer = Project(project.folder, project.instance, shards=2)
    fewer.write(texts)
    assert fewer.run().is_success
    assert set(published(fewer.output)) == {f"shard_{shard_of(text, 2)}_0" for text in texts}
    assert sorted(all_documents(fewer.output)) == sorted(map(ids_of, texts))
    assert fewer.not_fresh() == set()


def test_a_run_that_names_its_shards_reports_just_those(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.write(TEXTS)
    assert project.run().is_success
    before = project.versions()
    triples = [" ".join(words) for words in product(WORDS, WORDS, WORDS)]
    added = [next(text for text in triples if shard_of(text, 8) == shard) for shard in (1, 6)]
    project.write([*TEXTS, *added])
    named = {RANGE[0]: "00001", RANGE[1]: "00006", "prep_assets/shards": "00001,00006"}
    assert project.run(**named).is_success
    again = [*product(STAGES, ["00001", "00006"]), (MANIFEST, None)]
    assert project.events() == Counter(everything(8)) + Counter(again)
    after = project.versions()
    assert {made for made in after if after[made] != before[made]} == set(again)
    assert project.not_fresh() == set()
    assert sorted(all_documents(project.output)) == sorted(map(ids_of, [*TEXTS, *added]))


def test_two_named_recipes_in_one_home_do_not_mix(new_project: Callable[..., Project]) -> None:
    shared = new_project(shards=2)
    books, news = (Project(shared.folder / name, shared.instance, shards=2, name=name) for name in ("books", "news"))
    for project, texts in ((books, WORDS[:4]), (news, WORDS[2:])):
        project.folder.mkdir()
        project.write(texts)
        assert project.run().is_success
    known = {key.to_user_string() for key in shared.instance.all_asset_keys()}
    assert known >= {f"{name}/{asset}" for name in ("books", "news") for asset in (*STAGES, MANIFEST)}
    assert not known & {*STAGES, MANIFEST}
    before = books.versions()
    news.write(WORDS)
    assert news.run().is_success
    assert books.events() == Counter(everything(2))
    assert news.events() == Counter(everything(2) * 2)
    assert books.versions() == before
    assert books.not_fresh() == news.not_fresh() == set()
    assert sorted(all_documents(books.output)) == sorted(map(ids_of, WORDS[:4]))
    assert sorted(all_documents(news.output)) == sorted(map(ids_of, WORDS))
