"""What we rely on in Dagster and its documentation does not promise: an upgrade that breaks it is to fail here."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.loader import LoadingContextForTest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value

from prep_assets.errors import DamagedFileError
from prep_assets.orchestration import events
from tests import dagster_stub as stub

ROOT = Path(__file__).parents[1]
SOURCE = {key: f"Text {key}" for key in stub.KEYS}
RAW, TOKENS, MEMMAP = (asset.key for asset in stub.STAGES)
SOURCE_KEY, MANIFEST = stub.source_documents.key, stub.dataset_manifest.key
ALL = [*((key, shard) for key in (RAW, TOKENS, MEMMAP) for shard in stub.KEYS), (MANIFEST, None)]


def between(begin: str, last: str, **tags: str) -> dict[str, str]:
    return {"dagster/asset_partition_range_start": begin, "dagster/asset_partition_range_end": last, **tags}


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SOURCE", str(tmp_path / "source.json"))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """In memory: in files, an event costs 15 ms."""
    with dg.DagsterInstance.ephemeral() as instance:
        observe(instance, SOURCE)
        yield instance


@pytest.fixture
def shared_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """In files, for several processes."""
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster/dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    with dg.DagsterInstance.get() as instance:
        observe(instance, SOURCE)
        yield instance


def observe(instance: dg.DagsterInstance, source: Mapping[str, str]) -> None:
    """Writes the source and observes it."""
    Path(os.environ["STUB_SOURCE"]).write_text(json.dumps(source))
    for key, version in source.items():
        tags = {"dagster/data_version": version}
        instance.report_runless_asset_event(dg.AssetObservation(SOURCE_KEY, partition=key, tags=tags))


def run_in_process(
    instance: dg.DagsterInstance, tags: Mapping[str, str], assets: Set[dg.AssetKey] | None = None
) -> dg.DagsterRun:
    """As `prep-assets prepare` does: a silent run in this process, for which the UI knows the job."""
    job = stub.defs.resolve_job_def("refresh").as_ephemeral_job({}, {})
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("stub"), "__repository__")
    run = instance.create_run_for_job(
        job_def=job,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        tags=tags,
        asset_selection=assets,
        remote_job_origin=RemoteJobOrigin(repository, job.name),
    )
    execute_run(InMemoryJob(job), run, instance, raise_on_error=True)
    return run


def dagster(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "dagster", *arguments, "-m", "tests.dagster_stub"]
    home = os.environ["DAGSTER_HOME"]  # also the working directory: a `.env` in that beats the environment
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120)


def materialized(instance: dg.DagsterInstance) -> Counter[tuple[dg.AssetKey, str | None]]:
    """How many events each partition of each asset has."""
    return Counter(
        (key, record.partition_key)
        for key in (RAW, TOKENS, MEMMAP, MANIFEST)
        for record in instance.fetch_materializations(key, limit=1000).records
    )


def latest(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> dg.AssetMaterialization:
    record = instance.get_latest_data_version_record(key, False, partition)
    assert record is not None and record.asset_materialization is not None
    return record.asset_materialization


def not_fresh(instance: dg.DagsterInstance) -> set[tuple[dg.AssetKey, str | None]]:
    """What the UI marks as stale or missing."""
    loading = LoadingContextForTest(instance)
    resolver = CachingStaleStatusResolver(instance, stub.defs.resolve_asset_graph(), loading)
    return {(key, shard) for key, shard in ALL if resolver.get_status(key, shard).value != "FRESH"}


def evaluated(instance: dg.DagsterInstance) -> Counter[str | None]:
    """How many evaluations of the check each partition has."""
    history = instance.event_log_storage.get_asset_check_execution_history(stub.round_trip.check_key, limit=1000)
    return Counter(record.partition for record in history if record.status.value == "SUCCEEDED")


def test_each_shard_has_one_event_and_only_changed_shards_are_stale(shared_instance):
    """Multiprocess, from the command line: everything; then in this process two shards of a covering range."""
    instance = shared_instance
    done = dagster("asset", "materialize", "--select", "*", "--partition-range", f"{stub.KEYS[0]}...{stub.KEYS[-1]}")
    assert done.returncode == 0, done.stderr
    assert materialized(instance) == Counter(ALL)
    assert evaluated(instance) == Counter(stub.KEYS)
    assert not_fresh(instance) == set()
    [run] = instance.get_runs()
    planned = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    assert Counter((r.asset_key, r.partition_key) for r in planned.records) == Counter(ALL)
    assert run.tags[stub.INDEX_TAG] == "pinned"
    assert events.DEFER_TAG is not None and events.DEFER_TAG not in run.tags

    processes = set()
    for key, version in ((RAW, str), (TOKENS, str.lower), (MEMMAP, str.lower)):
        for shard in stub.KEYS:
            event = latest(instance, key, shard)
            assert event.tags["dagster/data_version"] == version(SOURCE[shard])
            assert event.metadata["shard"].value == shard
            assert key == RAW or event.metadata["index"].value == "pinned"
            processes.add(event.metadata["process"].value)
    assert len(processes) == 3
    assert latest(instance, RAW, "00003").tags["dagster/input_data_version/source_documents"] == SOURCE["00003"]
    assert latest(instance, MANIFEST, None).tags["dagster/data_version"] == " ".join(SOURCE.values()).lower()
    assert latest(instance, MANIFEST, None).metadata["dagster/row_count"].value > 0

    observe(instance, SOURCE)
    assert not_fresh(instance) == set()
    observe(instance, {**SOURCE, "00001": "Edited", "00006": "Edited too"})
    assert not_fresh(instance) == {(RAW, "00001"), (RAW, "00006")}
    run_in_process(instance, between("00001", "00006", **{events.SHARDS_TAG: "00001,00006"}))
    again = [(key, shard) for key in (RAW, TOKENS, MEMMAP) for shard in ("00001", "00006")]
    assert materialized(instance) == Counter([*ALL, *again, (MANIFEST, None)])
    assert not_fresh(instance) == set()


def test_a_failure_leaves_the_shards_before_it_materialized(instance, monkeypatch, capfd):
    """In process: the caller gets the very exception, nothing is printed, the next run finishes."""
    everything = between(stub.KEYS[0], stub.KEYS[-1])
    monkeypatch.setenv("STUB_FAILS", "memmap_shards/00005")
    with pytest.raises(DamagedFileError, match="shard 00005 is damaged"):
        run_in_process(instance, everything)
    made = {shard for key, shard in materialized(instance) if key == MEMMAP}
    assert made == set(stub.KEYS[:5])
    assert (MANIFEST, None) not in materialized(instance)
    status = get_and_update_asset_status_cache_value(instance, MEMMAP, stub.SHARDS)
    assert status is not None
    assert status.deserialize_failed_partition_subsets(stub.SHARDS).get_partition_keys() == set(stub.KEYS[5:])
    of_job = dg.RunsFilter(job_name="refresh", tags={".dagster/repository": "__repository__@stub"})  # the UI's list
    [run] = instance.get_runs(of_job)
    assert run.status == dg.DagsterRunStatus.FAILURE

    monkeypatch.delenv("STUB_FAILS")
    run_in_process(instance, everything)
    assert not_fresh(instance) == set()
    assert "".join(capfd.readouterr()) == ""


def test_a_shard_made_again_to_the_same_content_leaves_what_follows_fresh(instance):
    """One partition, part of the graph: tokens do not depend on the case of the text."""
    run_in_process(instance, between(stub.KEYS[0], stub.KEYS[-1]))
    observe(instance, {**SOURCE, "00003": SOURCE["00003"].upper()})
    run_in_process(instance, {"dagster/partition": "00003"}, {RAW})
    assert not_fresh(instance) == {(TOKENS, "00003")}
    run_in_process(instance, {"dagster/partition": "00003"}, {TOKENS})
    assert not_fresh(instance) == set()
    assert materialized(instance) == Counter([*ALL, (RAW, "00003"), (TOKENS, "00003")])

    observe(instance, {**SOURCE, "00003": "New"})
    run_in_process(instance, {"dagster/partition": "00003"}, {RAW, TOKENS, MEMMAP})
    assert not_fresh(instance) == {(MANIFEST, None)}
    run_in_process(instance, {"dagster/partition": "00003"})  # the manifest, though it has no partition, too
    assert not_fresh(instance) == set()
    assert evaluated(instance) == Counter([*stub.KEYS, "00003", "00003"])  # with its asset, in each of three runs


def test_without_the_undocumented_tag_versions_are_still_exact(instance, monkeypatch):
    """Then Dagster's events come too, for the whole range; ours are the later ones."""
    monkeypatch.setattr(events, "DEFER_TAG", None)
    run_in_process(instance, between(stub.KEYS[0], stub.KEYS[-1]))
    assert materialized(instance)[RAW, "00003"] == 2
    assert latest(instance, RAW, "00003").tags["dagster/data_version"] == SOURCE["00003"]
    observe(instance, {**SOURCE, "00001": "Edited"})
    assert not_fresh(instance) == {(RAW, "00001")}
    run_in_process(instance, between("00001", "00006", **{events.SHARDS_TAG: "00001,00006"}))
    assert latest(instance, RAW, "00003").tags["dagster/data_version"] == SOURCE["00003"]
    assert not_fresh(instance) == set()
