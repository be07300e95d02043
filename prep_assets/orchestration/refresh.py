"""Observation, sensor and schedule: ask the plan, request the stale shards and then the manifest.

Nothing is remembered from one tick to the next: each looks at the disk and at Dagster's list of runs, so nothing is
lost where a tick, a run or the machine dies.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import takewhile
from time import time

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from prep_assets.errors import BusyError, NotReadyError
from prep_assets.formats.publications import read_pin
from prep_assets.orchestration.events import some
from prep_assets.orchestration.requests import WHY_TAG, due_shards, run_tags
from prep_assets.orchestration.resources import DATASET_TAG, Dataset
from prep_assets.payload import lock
from prep_assets.plan import make_plan
from prep_assets.receipt import STAGES, fingerprint
from prep_assets.recipe import Refresh
from prep_assets.scan import list_what_is_here, scanned, unread_files

REQUEST_TAG = "prep_assets/request"  # of a run that the sensor asked for: a digest of what it was to bring about
INTERVAL = 60  # seconds between two ticks
LONGEST_WAIT = 3600  # seconds until a request that failed is made again, at most
DEAD_AFTER = 300  # seconds without a sign of life after which an unfinished run is taken for killed

Answer = dg.RunRequest | dg.SkipReason
Job = UnresolvedAssetJobDefinition


def build_sensor(refresh: Refresh, jobs: Sequence[Job]) -> dg.SensorDefinition:
    """Refreshes what changed by itself: running or stopped as the recipe says. jobs: refresh and scan."""
    status = dg.DefaultSensorStatus.RUNNING if refresh.sensor else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(jobs=jobs, minimum_interval_seconds=INTERVAL, default_status=status)
    def refresh_sensor(context: dg.SensorEvaluationContext, dataset: dg.ResourceParam[Dataset]) -> Answer:
        """Lists the source, asks the plan, and requests the stale shards. Reads no file's content."""
        try:
            ready = _ready(context.instance, dataset)
        except NotReadyError as error:
            return dg.SkipReason(str(error))
        return _request(context.instance, ready)

    return refresh_sensor


def build_schedule(refresh: Refresh, job: Job) -> dg.ScheduleDefinition:
    """What `prepare` does, at the recipe's times; without any, a stopped one that can be started in the UI."""
    status = dg.DefaultScheduleStatus.RUNNING if refresh.cron else dg.DefaultScheduleStatus.STOPPED

    @dg.schedule(job=job, cron_schedule=refresh.cron or "0 3 * * *", default_status=status)
    def refresh_schedule(context: dg.ScheduleEvaluationContext, dataset: dg.ResourceParam[Dataset]) -> Answer:
        """Requests all shards: the run itself scans the source, and only stale shards do work."""
        try:
            _ready(context.instance, dataset)
        except NotReadyError as error:
            return dg.SkipReason(str(error))
        return dg.RunRequest(tags={WHY_TAG: "the schedule's time has come"})

    return refresh_schedule


def _ready(instance: dg.DagsterInstance, loaded: Dataset) -> Dataset:
    """The dataset as the recipe is now. Raises NotReadyError, saying why, where nothing may be requested."""
    dataset = loaded.now()
    if pinned := read_pin(dataset.layout.pin):
        raise NotReadyError(f"version {pinned} is pinned: nothing is refreshed until prep-assets unpin")
    ours = {dataset.key(asset) for asset in ("source_documents", *STAGES, "dataset_manifest")}
    finished = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
    unfinished = dg.RunsFilter(statuses=[status for status in dg.DagsterRunStatus if status not in finished])
    for record in instance.get_run_records(unfinished):
        run = record.dagster_run
        is_ours = run.tags.get(DATASET_TAG) == dataset.tags[DATASET_TAG] or ours & (run.asset_selection or set())
        if is_ours and _lives(instance, dataset, record):
            why = run.tags.get(WHY_TAG, "started by hand")
            raise NotReadyError(f"in flight: run {run.run_id[:8]} of {run.job_name}, {run.status.value}: {why}")
    return dataset


def _lives(instance: dg.DagsterInstance, dataset: Dataset, record: dg.RunRecord) -> bool:
    """Whether an unfinished run is still to be waited for: a killed one never says that it has ended."""
    if record.dagster_run.status == dg.DagsterRunStatus.QUEUED:
        return True
    events = instance.get_records_for_run(record.dagster_run.run_id, limit=1, ascending=False).records
    signs = [record.update_timestamp.timestamp(), *(event.event_log_entry.timestamp for event in events)]
    if time() - max(signs) < DEAD_AFTER:
        return True
    try:
        with lock(dataset.layout.lock("run"), wait=False):
            return False
    except BusyError:
        return True


def _request(instance: dg.DagsterInstance, dataset: Dataset) -> Answer:
    """The run that is due, or why there is none."""
    recipe, layout = dataset.recipe, dataset.layout
    source = list_what_is_here(recipe, layout)
    index = scanned(recipe, layout, source) if source else None
    if index is None:
        unread = [file.name for file in unread_files(recipe, layout, source)] if source else ["a new commit"]
        identities = [[file.name, file.identity] for file in source.files] if source else None
        tags = dataset.tags | {WHY_TAG: f"changed: {some(unread) or 'which files there are, or the recipe'}"}
        return _unless_it_failed(instance, dataset, dg.RunRequest(job_name="scan", tags=tags), identities)
    build = dataset.build(index.id)
    plan = make_plan(build)
    shards = due_shards(instance, dataset, build, plan)
    if plan.is_fresh and not shards:
        return dg.SkipReason(f"all fresh: {build.num_shards} shards of source index {index.id[:8]} are published")
    request = dg.RunRequest(
        job_name="refresh",
        tags=run_tags(dataset, build, plan, shards),
        asset_selection=None if shards else [dataset.key("dataset_manifest")],
    )
    return _unless_it_failed(instance, dataset, request, [index.id, build.facts.identity])


def _unless_it_failed(instance: dg.DagsterInstance, dataset: Dataset, request: dg.RunRequest, of: object) -> Answer:
    """The request, or while it failed lately, until when it waits: twice as long each time, if nothing changed."""
    digest = fingerprint(job=request.job_name, recipe=dataset.recipe.model_dump(mode="json"), of=of)
    before = instance.get_run_records(dg.RunsFilter(tags={REQUEST_TAG: digest}), limit=10)
    failed = list(takewhile(lambda it: it.dagster_run.status != dg.DagsterRunStatus.SUCCESS, before))
    if failed:
        ended = failed[0].end_time or failed[0].update_timestamp.timestamp()
        until = ended + min(INTERVAL * 2 ** len(failed), LONGEST_WAIT)
        if time() < until:
            return dg.SkipReason(
                f"waiting until {datetime.fromtimestamp(until, UTC):%H:%M:%S} UTC: {len(failed)} runs for this failed,"
                f" the last was {failed[0].dagster_run.run_id[:8]} ({request.tags[WHY_TAG]}); a changed source or"
                " recipe, or a run by hand, is tried at once"
            )
    return request.with_replaced_attrs(tags={**request.tags, REQUEST_TAG: digest})
