"""Sensor, schedule, observation and checks on a real Dagster instance: a change is followed by its shards, alone."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.loader import LoadingContextForTest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from prep_assets import scan as scan_module
from prep_assets.definitions import build_definitions
from prep_assets.formats.indexed_dataset import IndexedDataset
from prep_assets.orchestration import refresh as refresh_module
from prep_assets.orchestration.prepare import materialize
from prep_assets.payload import lock
from prep_assets.plan import make_plan
from prep_assets.recipe import Recipe, load_recipe
from prep_assets.sources import files as files_module
from prep_assets.versions import pin, unpin
from tests.hub_server import serve
from tests.pipeline import (
    WORDS,
    bytes_of_version,
    layout_of,
    make_recipe,
    open_build,
    refresh,
    save_word_tokenizer,
    write_jsonl,
)

ROOT = Path(__file__).parents[2]
STAGES = ("raw_dataset", "tokenized_partitions", "memmap_shards")
MANIFEST = ("dataset_manifest", None)
REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("prep_assets"), "__repository__")
TEXTS = [f"{first} {second}" for first, second in product(WORDS, WORDS)]
Made = tuple[str, str | None]  # asset, partition


def shard_of(text: str, shards: int = 8) -> str:
    """By hand, from DESIGN.md."""
    return f"{int.from_bytes(blake2b(text.encode(), digest_size=16).digest()[:8], 'big') % shards:05}"


def made_of(partitions: Set[str]) -> Counter[Made]:
    """The events that a refresh of these shards makes."""
    return Counter([*product(STAGES, sorted(partitions)), MANIFEST])


class Project:
    """A recipe with its source, the definitions as they were loaded last, and Dagster's history.

    is_shared: the history is in files, for other processes and for a restart; in memory an event costs 15 ms less.
    """

    def __init__(self, folder: Path, shards: int = 8, is_shared: bool = False, **tokenizer: object) -> None:
        self.folder, self.home, self.shards, self.tokenizer = folder, folder / "home", shards, tokenizer
        if is_shared:
            self.home.mkdir()
            (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        save_word_tokenizer(folder / "tokenizer.json")
        self.write_recipe()
        self.instance = dg.DagsterInstance.ephemeral()
        if is_shared:
            self.restart()
        self.load()

    def write_recipe(self, **changes: object) -> None:
        recipe = {
            "output_path": "out",
            "shards": self.shards,
            "dataset": {"name_or_path": "source"},
            "tokenizer": {"path": "tokenizer.json", "add_eos": True, "eos_token": "<fin>", **self.tokenizer},
        }
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | changes))

    @property
    def recipe(self) -> Recipe:
        return load_recipe(self.folder / "recipe.yaml")

    def load(self) -> None:
        """What reloading the code location does."""
        self.definitions = build_definitions(self.recipe, reload=lambda: self.recipe)

    def restart(self) -> None:
        """What a daemon that was killed and started again knows."""
        self.instance = dg.DagsterInstance.from_config(str(self.home))

    def write(self, texts: Sequence[str | None]) -> None:
        """Writes the source: of its two files those that change."""
        for name, part in (("a", texts[:6]), ("b", texts[6:])):
            path, new = self.folder / f"source/{name}.jsonl", self.folder / "new"
            write_jsonl(new, part)
            if not path.exists() or path.read_bytes() != new.read_bytes():
                path.parent.mkdir(exist_ok=True)
                new.replace(path)

    def tick(self) -> Any:
        resources = {"dataset": (self.definitions.resources or {})["dataset"]}
        context = dg.build_sensor_context(instance=self.instance, resources=resources)
        return self.definitions.resolve_sensor_def("refresh_sensor")(context)

    def skipped(self) -> str:
        answer = self.tick()
        assert isinstance(answer, dg.SkipReason), answer
        return answer.skip_message or ""

    def create(
        self, request: dg.RunRequest, status: dg.DagsterRunStatus | None = None
    ) -> tuple[dg.JobDefinition, dg.DagsterRun]:
        """A run as the daemon makes it of a request, which has the job's tags too."""
        job = self.definitions.resolve_job_def(request.job_name or "refresh").as_ephemeral_job({}, {})
        run = self.instance.create_run_for_job(
            job_def=job,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            tags={**job.run_tags, **request.tags},
            asset_selection=set(request.asset_selection or ()) or None,
            status=status,
            remote_job_origin=RemoteJobOrigin(REPOSITORY, job.name),
        )
        return job, run

    def execute(self, request: dg.RunRequest) -> dg.DagsterRun:
        assert isinstance(request, dg.RunRequest), request
        job, run = self.create(request)
        execute_run(InMemoryJob(job), run, self.instance, raise_on_error=False)
        done = self.instance.get_run_by_id(run.run_id)
        assert done is not None
        return done

    def headline(self, run: dg.DagsterRun) -> str:
        """What the UI shows first of the step that failed."""
        [record] = self.instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
        failure = record.event_log_entry.get_dagster_event().step_failure_data.user_failure_data
        return str(failure and failure.description)

    def settle(self) -> list[str]:
        """Executes what ticks request until one requests nothing; the jobs that ran."""
        ran: list[str] = []
        while isinstance(request := self.tick(), dg.RunRequest):
            assert self.execute(request).is_success
            ran.append(request.job_name or "")
            assert len(ran) < 5
        return ran

    def events(self) -> Counter[Made]:
        return Counter(
            (asset, record.partition_key)
            for asset in (*STAGES, "dataset_manifest")
            for record in self.instance.fetch_materializations(dg.AssetKey(asset), limit=5000).records
        )

    def metadata(self, asset: str, partition: str | None = None) -> dict[str, Any]:
        record = self.instance.get_latest_data_version_record(dg.AssetKey(asset), False, partition)
        assert record is not None and record.asset_materialization is not None
        return {name: it.value for name, it in record.asset_materialization.metadata.items()}

    def not_fresh(self) -> set[Made]:
        """What the UI marks as stale or missing."""
        graph = self.definitions.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        partitions = [f"{shard:05}" for shard in range(self.shards)]
        everything: list[Made] = [*product(STAGES, partitions), MANIFEST]
        return {(a, p) for a, p in everything if resolver.get_status(dg.AssetKey(a), p).value != "FRESH"}

    def checks(self) -> dict[tuple[str, str | None], bool]:
        """Whether the newest evaluation of each check passed."""
        found = {}
        for asset, name in (
            ("memmap_shards", "round_trip"),
            *product(["dataset_manifest"], ["rows_left_out", "end_tokens", "up_to_date"]),
        ):
            key = dg.AssetCheckKey(dg.AssetKey(asset), name)
            history = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=5000)
            for record in reversed(history):
                found[name, record.partition] = record.status.value == "SUCCEEDED"
        return found

    def failed_checks(self) -> set[tuple[str, str | None]]:
        return {check for check, passed in self.checks().items() if not passed}

    def evaluation(self, name: str, partition: str | None = None) -> dg.AssetCheckEvaluation:
        asset = "memmap_shards" if name == "round_trip" else "dataset_manifest"
        key = dg.AssetCheckKey(dg.AssetKey(asset), name)
        history = self.instance.event_log_storage.get_asset_check_execution_history(key, limit=1000)
        record = next(record for record in history if record.partition == partition)
        assert record.event is not None and record.event.dagster_event is not None
        return record.event.dagster_event.asset_check_evaluation_data

    def bytes_from_scratch(self) -> Any:
        recipe = self.recipe.model_dump(exclude={"output_path"})
        changes = {"shards": recipe["shards"]} | {f"tokenizer__{k}": v for k, v in recipe["tokenizer"].items()}
        scratch = make_recipe(self.folder, output_path="scratch", **changes)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        refresh(scratch)
        return bytes_of_version(self.folder / "scratch")


@pytest.fixture
def new_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Project]:
    # In these tests no file is written twice in one tick of the clock: its time stamp can be trusted at once.
    monkeypatch.setattr(files_module, "SETTLING", 0)
    return lambda **options: Project(tmp_path, **options)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The source files whose content is read from now on."""
    read: list[str] = []
    original = scan_module.read_documents
    monkeypatch.setattr(
        scan_module, "read_documents", lambda file, *rest: read.append(file.name) or original(file, *rest)
    )
    return read


def test_an_edit_is_scanned_and_then_makes_its_shards_and_the_manifest(
    new_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = new_project(is_shared=True)
    project.write(TEXTS)
    assert project.settle() == ["scan", "refresh"]
    partitions = {f"{shard:05}" for shard in range(8)}
    assert project.events() == made_of(partitions)
    assert project.not_fresh() == set()
    assert project.failed_checks() == set()
    assert set(project.checks()) == {*product(["round_trip"], partitions), *product(
        ["rows_left_out", "end_tokens", "up_to_date"], [None])}  # fmt: skip

    read = spied(monkeypatch)
    assert "all fresh: 8 shards" in project.skipped()
    assert read == []

    new = "gong gong tuba"
    touched = {shard_of(TEXTS[40]), shard_of(new)}
    project.write([*TEXTS[:40], new, *TEXTS[41:]])
    request = project.tick()
    assert read == []
    assert request.job_name == "scan" and request.tags["prep_assets/why"] == "changed: b.jsonl"
    project.restart()
    assert project.tick().tags == request.tags  # a tick that was lost is made again
    assert project.execute(request).is_success
    assert read == ["b.jsonl"]
    assert project.not_fresh() == {("raw_dataset", partition) for partition in touched}

    request = project.tick()
    assert request.job_name == "refresh"
    assert request.tags["prep_assets/shards"] == ",".join(sorted(touched))
    assert request.tags["prep_assets/why"].startswith("source changed: 1 document (")
    assert project.execute(request).is_success
    assert project.events() == made_of(partitions) + made_of(touched)
    assert project.not_fresh() == set()
    assert project.failed_checks() == set()
    assert bytes_of_version(project.folder / "out") == project.bytes_from_scratch()
    metadata = project.metadata("tokenized_partitions", shard_of(new))
    assert metadata["why"] == "documents changed"
    assert metadata["documents tokenized"] == 1
    assert metadata["documents copied"] == metadata["dagster/partition_row_count"] - 1
    assert project.metadata("raw_dataset", shard_of(new))["why"] == "source changed: 1 document"
    assert "reused" not in metadata
    assert "all fresh" in project.skipped()


def test_a_run_that_dagster_was_told_nothing_of_is_reported(new_project: Callable[..., Project]) -> None:
    """Made without Dagster: the history lacks events, and ticks see that too; putting a source back is the same."""
    project = new_project(shards=3)
    project.write(TEXTS[:12])
    refresh(project.recipe)
    request = project.tick()
    assert request.tags["prep_assets/why"] == "the history lacks events"
    assert project.execute(request).is_success
    assert project.metadata("raw_dataset", "00001")["reused"] is True
    assert "seconds" not in project.metadata("raw_dataset", "00001")
    assert project.not_fresh() == set()

    project.write([*TEXTS[:12], "gong gong gong"])
    assert project.settle() == ["scan", "refresh"]
    project.write(TEXTS[:12])
    before = project.events()
    assert project.settle() == ["scan", "refresh"]
    assert project.events() - before == made_of({shard_of("gong gong gong", 3)})
    assert project.metadata("memmap_shards", shard_of("gong gong gong", 3))["reused"] is True
    assert project.not_fresh() == set()


def test_a_request_that_fails_waits_longer_each_time_unless_something_changed(
    new_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = new_project(shards=2, is_shared=True)
    project.write(WORDS)
    (project.folder / "source/b.jsonl").write_text("nonsense\n")
    now, ahead = time.time, 0.0
    monkeypatch.setattr(refresh_module, "time", lambda: now() + ahead)
    for failures, wait in ((1, 120), (2, 240), (3, 480)):
        request, ahead = project.tick(), 0.0
        assert project.execute(request).is_failure
        project.restart()
        assert f"{failures} runs for this failed" in project.skipped()
        ahead += wait - 15
        assert "waiting until" in project.skipped()
        ahead += 30
    project.write(WORDS)  # whoever mends it does not wait
    ahead = 0.0
    assert project.settle() == ["scan", "refresh"]
    assert project.not_fresh() == set()


def test_what_is_in_flight_is_not_requested_again(
    new_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = new_project(shards=2)
    project.write(WORDS)
    request = project.tick()
    _, run = project.create(request, dg.DagsterRunStatus.QUEUED)
    assert project.skipped().startswith(f"in flight: run {run.run_id[:8]} of scan, QUEUED: changed: a.jsonl, b.jsonl")
    project.instance.delete_run(run.run_id)

    _, run = project.create(request, dg.DagsterRunStatus.STARTED)
    assert "in flight" in project.skipped()
    now = time.time
    monkeypatch.setattr(refresh_module, "time", lambda: now() + 3600)  # it never says that it was killed
    with lock(layout_of(project.recipe).lock("run"), shared=True):
        assert "in flight" in project.skipped()
    assert project.tick().job_name == "scan"
    project.instance.delete_run(run.run_id)

    run = project.instance.create_run_for_job(  # from an asset's page: no tag of ours
        job_def=project.definitions.resolve_job_def("refresh"),
        asset_selection={dg.AssetKey("raw_dataset")},
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(REPOSITORY, "refresh"),
    )
    assert project.skipped() == f"in flight: run {run.run_id[:8]} of refresh, QUEUED: started by hand"


def test_a_change_in_the_middle_of_a_run_is_made_by_the_next(new_project: Callable[..., Project]) -> None:
    project = new_project(shards=4)
    project.write(TEXTS)
    assert project.execute(project.tick()).is_success
    request = project.tick()
    project.write([*TEXTS, "gong gong gong"])
    failed = project.execute(request)
    assert failed.is_failure
    assert project.events() == Counter()
    assert project.settle() == ["scan", "refresh"]
    assert project.not_fresh() == set()

    project.write([*TEXTS, "tuba tuba tuba"])
    assert project.execute(project.tick()).is_success
    request = project.tick()
    project.write([*TEXTS, "drum drum drum"])
    open_build(project.recipe)  # somebody scans: the run is not to overtake
    assert project.execute(request).is_failure
    assert len(project.settle()) in (1, 2)
    assert project.not_fresh() == set()
    assert bytes_of_version(project.folder / "out") == project.bytes_from_scratch()


def test_another_number_of_shards_asks_for_a_reload(new_project: Callable[..., Project]) -> None:
    project = new_project(shards=3)
    project.write(TEXTS)
    assert project.settle() == ["scan", "refresh"]
    planned = dg.RunRequest(job_name="refresh", tags=project.create(dg.RunRequest(job_name="refresh"))[1].tags)
    project.instance.delete_run(next(iter(project.instance.get_runs())).run_id)
    project.shards = 4
    project.write_recipe()
    assert "the recipe says 4 shards now, and said 3 shards" in project.skipped()
    assert "reload the code location" in project.skipped()
    loaded = project.definitions
    project.load()  # as a step's process does by itself, for a run that was planned before
    assert "reload the code location" in project.headline(project.execute(planned))
    project.definitions = loaded
    assert "reload" in project.skipped()
    project.load()
    tokens = dg.RunRequest(job_name="refresh", asset_selection=[dg.AssetKey("tokenized_partitions")])
    assert "the source was scanned for 3 shards" in project.headline(project.execute(tokens))
    assert project.settle() == ["scan", "refresh"]
    assert project.not_fresh() == set()
    assert bytes_of_version(project.folder / "out") == project.bytes_from_scratch()


def test_other_options_are_followed_without_a_reload(new_project: Callable[..., Project]) -> None:
    project = new_project(shards=2)
    project.write(WORDS)
    assert project.settle() == ["scan", "refresh"]
    project.write_recipe(tokens_per_shard=3)
    request = project.tick()
    assert request.tags["prep_assets/why"] == "tokens_per_shard changed (00000, 00001)"
    project.write_recipe(dataset={"name_or_path": "source", "keep_columns": ["text"]})
    assert project.tick().job_name == "scan"


def test_a_pinned_version_is_left_alone(new_project: Callable[..., Project]) -> None:
    project = new_project(shards=2, is_shared=True)
    project.write(WORDS)
    project.settle()
    layout = layout_of(project.recipe)
    version = (project.folder / "out/latest").readlink().name
    pin(layout, version)
    project.write(WORDS[:5])
    assert f"version {version} is pinned" in project.skipped()
    resources = {"dataset": (project.definitions.resources or {})["dataset"]}
    schedule = project.definitions.resolve_schedule_def("refresh_schedule")
    answer = schedule(dg.build_schedule_context(instance=project.instance, resources=resources))
    assert isinstance(answer, dg.SkipReason)
    unpin(layout)
    assert project.settle() == ["scan", "refresh"]
    assert isinstance(
        schedule(dg.build_schedule_context(instance=project.instance, resources=resources)), dg.RunRequest
    )


@pytest.mark.parametrize(("refresh", "expected"), [
    ({}, ("STOPPED", "STOPPED", "0 3 * * *")),
    ({"sensor": True}, ("RUNNING", "STOPPED", "0 3 * * *")),
    ({"cron": "15 4 * * 1"}, ("STOPPED", "RUNNING", "15 4 * * 1")),
])  # fmt: skip
def test_the_recipe_says_what_is_on(tmp_path: Path, refresh: dict[str, object], expected: tuple[str, ...]) -> None:
    save_word_tokenizer(tmp_path / "tokenizer.json")
    definitions = build_definitions(make_recipe(tmp_path, refresh=refresh))
    sensor = definitions.resolve_sensor_def("refresh_sensor")
    schedule = definitions.resolve_schedule_def("refresh_schedule")
    assert (sensor.default_status.value, schedule.default_status.value, schedule.cron_schedule) == expected


def test_prepare_observes_what_it_scanned(new_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    project = new_project(shards=4, is_shared=True)
    monkeypatch.setenv("DAGSTER_HOME", str(project.home))
    for texts in (TEXTS, [*TEXTS[1:], "gong gong gong"]):
        project.write(texts)
        build = open_build(project.recipe)
        materialize(project.definitions, build, make_plan(build))
        assert project.not_fresh() == set()
    touched = {shard_of(text, 4) for text in (TEXTS[0], "gong gong gong")}
    records = project.instance.fetch_observations(dg.AssetKey("source_documents"), limit=100).records
    assert Counter(record.partition_key for record in records) == Counter(
        [f"{shard:05}" for shard in range(4)]
    ) + Counter(touched)
    assert "all fresh" in project.skipped()


def test_the_job_by_command_does_what_prepare_does(new_project: Callable[..., Project]) -> None:
    """Each step in a process of its own: it scans, makes everything, and then only what changed."""
    project = new_project(shards=4, is_shared=True)
    project.write(TEXTS)
    assert project.settle() == ["scan", "refresh"]
    new = "gong gong gong"
    project.write([*TEXTS, new])
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "job", "execute", "-m", "prep_assets.definitions", "-j", "refresh"],
        cwd=project.home, env=environment(project), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    partitions = {f"{shard:05}" for shard in range(4)}
    assert project.events() == made_of(partitions) + made_of(partitions)
    reused = {stage: {it for it in partitions if project.metadata(stage, it).get("reused")} for stage in STAGES}
    assert reused == dict.fromkeys(STAGES, partitions - {shard_of(new, 4)})
    assert project.metadata("dataset_manifest")["why"] == f"changed: {shard_of(new, 4)}"
    assert project.not_fresh() == set()
    assert project.failed_checks() == set()


def test_101_shards_have_their_own_provenance_and_the_manifest_check_is_right(
    new_project: Callable[..., Project],
) -> None:
    project = new_project(shards=101)
    texts = [f"{text} {word}" for text, word in product(TEXTS, WORDS)]
    project.write(texts)
    assert project.settle() == ["scan", "refresh"]
    assert project.not_fresh() == set()
    assert project.failed_checks() == set()
    new = "gong gong gong gong"
    touched = {shard_of(texts[3], 101), shard_of(new, 101)}
    project.write([*texts[:3], new, *texts[4:]])
    assert project.execute(project.tick()).is_success
    assert project.not_fresh() == {("raw_dataset", partition) for partition in touched}
    shards_alone = [dg.AssetKey(stage) for stage in STAGES]
    assert project.execute(project.tick().with_replaced_attrs(asset_selection=shards_alone)).is_success
    assert project.not_fresh() == set()  # what Dagster says of the manifest past 99 shards, wrongly
    key = dg.AssetCheckKey(dg.AssetKey("dataset_manifest"), "up_to_date")
    check = project.definitions.resolve_job_def("refresh").get_subset(
        asset_selection=frozenset(), asset_check_selection=frozenset([key])
    )
    assert check.execute_in_process(instance=project.instance).success
    assert project.failed_checks() == {("up_to_date", None)}
    assert project.evaluation("up_to_date").metadata["why"].value == "not published (manifest)"
    before = project.events()
    assert project.settle() == ["refresh"]
    assert project.events() - before == Counter([MANIFEST])
    assert project.not_fresh() == set()
    assert project.failed_checks() == set()


def test_checks_warn_of_rows_left_out_and_of_documents_without_an_end(new_project: Callable[..., Project]) -> None:
    project = new_project(shards=2, add_eos=False)
    project.write([None, *WORDS, " "])
    assert project.settle() == ["scan", "refresh"]
    assert project.failed_checks() == {("rows_left_out", None), ("end_tokens", None)}
    left_out = project.evaluation("rows_left_out")
    assert left_out.severity == dg.AssetCheckSeverity.WARN
    assert {name: it.value for name, it in left_out.metadata.items()} == {"null": 1, "no tokens": 1}


def test_a_round_trip_fails_where_ids_are_not_those_of_the_text(new_project: Callable[..., Project]) -> None:
    project = new_project(shards=2)
    project.write([*WORDS, "kazoo"])  # an unknown word: what its id decodes to is no fault of ours
    assert project.settle() == ["scan", "refresh"]
    assert project.failed_checks() == set()
    found = project.evaluation("round_trip", shard_of("kazoo", 2))
    assert found.metadata["lossless"].value == found.metadata["compared"].value - 1

    build = open_build(project.recipe)
    payload = build.made(0)["memmap_shards"].payload
    assert payload is not None
    path = payload / "shard_0_0.bin"
    path.chmod(0o644)
    tokens = IndexedDataset(payload / "shard_0_0").tokens
    path.write_bytes((tokens[::-1] if len(set(tokens.tolist())) > 1 else tokens + 1).tobytes())
    run = project.execute(dg.RunRequest(job_name="refresh"))
    assert run.is_success
    assert project.failed_checks() == {("round_trip", "00000")}
    assert "are not those of its text" in (project.evaluation("round_trip", "00000").description or "")


def test_without_texts_sizes_and_ids_are_still_checked(new_project: Callable[..., Project]) -> None:
    project = new_project(shards=2)
    project.write_recipe(keep="none")
    project.load()
    project.write(WORDS)
    assert project.settle() == ["scan", "refresh"]
    project.execute(dg.RunRequest(job_name="refresh"))
    assert project.failed_checks() == set()
    metadata = project.evaluation("round_trip", "00000").metadata
    assert metadata["sampled"].value > 0 and metadata["compared"].value == 0


HUB = """
import sys
from pathlib import Path
from prep_assets.scan import list_source, list_what_is_here, scan, scanned
from tests.pipeline import layout_of, make_recipe, save_word_tokenizer
folder = Path(sys.argv[1])
save_word_tokenizer(folder / "tokenizer.json")
recipe = make_recipe(folder, dataset__name_or_path="owner/texts")
for line in sys.stdin:
    source = list_what_is_here(recipe, layout_of(recipe))
    print(source is not None and scanned(recipe, layout_of(recipe), source) is not None, flush=True)
    if line == "scan\\n":
        scan(recipe, layout_of(recipe), list_source(recipe, layout_of(recipe)))
        print("scanned", flush=True)
"""


def test_a_new_commit_of_a_hub_source_is_seen_without_a_download(tmp_path: Path) -> None:
    with serve() as hub:
        repository = hub.dataset("owner/texts", {"train.jsonl": '{"text": "violin"}\n'})
        settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, "-c", HUB, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | settings, cwd=tmp_path,
        ) as process:  # fmt: skip
            assert process.stdin and process.stdout

            def ask(what: str) -> str:
                print(what, file=process.stdin, flush=True)
                return process.stdout.readline().strip()

            assert ask("look") == "False"
            assert hub.count("GET .*/resolve/.*jsonl") == 0
            assert ask("scan") == "False" and process.stdout.readline() == "scanned\n"
            assert ask("look") == "True"
            repository.commit({"train.jsonl": '{"text": "cello"}\n'})
            downloads = hub.count("GET .*/resolve/.*jsonl")
            assert ask("look") == "False"
            assert hub.count("GET .*/resolve/.*jsonl") == downloads == 1
            process.stdin.close()


def environment(project: Project) -> dict[str, str]:
    ours = {"DAGSTER_HOME": project.home, "PREP_ASSETS_RECIPE": project.folder / "recipe.yaml", "PYTHONPATH": ROOT}
    return os.environ | {name: str(value) for name, value in ours.items()}


@pytest.mark.daemon
def test_a_daemon_publishes_an_edit_by_itself(new_project: Callable[..., Project]) -> None:
    project = new_project(is_shared=True)
    project.write_recipe(refresh={"sensor": True})
    project.write(TEXTS)
    port = "3917"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "dagster", "dev", "-m", "prep_assets.definitions", "--port", port],
        cwd=project.home, env=environment(project), stdout=(project.home / "log").open("wb"), stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        partitions = {f"{shard:05}" for shard in range(8)}
        until(lambda: project.events() == made_of(partitions), 400)
        new = "gong gong gong"
        project.write([*TEXTS[1:], new])
        touched = {shard_of(TEXTS[0]), shard_of(new)}
        until(lambda: project.events()[MANIFEST] == 2, 400)
        until(lambda: not project.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])), 60)
        assert project.events() == made_of(partitions) + made_of(touched)
        assert project.not_fresh() == set()
        assert project.failed_checks() == set()
        assert bytes_of_version(project.folder / "out") == project.bytes_from_scratch()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def until(is_so: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(1)
