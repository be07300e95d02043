"""`prepare`: one run of the refresh job in this process, for the shards that the plan found stale."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from sqlalchemy.exc import SQLAlchemyError

from prep_assets.build import Build
from prep_assets.errors import StorageError
from prep_assets.orchestration.requests import due_shards, run_tags
from prep_assets.orchestration.resources import Dataset
from prep_assets.payload import make_folder, write_file
from prep_assets.plan import Plan

# What makes a run show under its job in the UI, as one that was launched there: workspace.yaml's names.
_REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("prep_assets"), "__repository__")
HOME = b"telemetry: {enabled: false}\nnux: {enabled: false}\n"


def dagster_home(build_home: Path) -> Path:
    """The Dagster home to use: DAGSTER_HOME, or one of our own; made where missing."""
    named = os.environ.get("DAGSTER_HOME")
    home = Path(named).absolute() if named else build_home
    if not (home if named else home / "dagster.yaml").exists():
        make_folder(home)
        write_file(home / "dagster.yaml", HOME)
    return home


def materialize(definitions: dg.Definitions, build: Build, plan: Plan) -> None:
    """Runs the refresh job for the stale shards of a plan, with its events kept in the home's history.

    Raises what a stage raised.
    """
    dataset = Dataset(build.recipe, build.layout)
    job = definitions.resolve_job_def("refresh").as_ephemeral_job({}, {})  # in this process
    home = dagster_home(build.layout.dagster_home)
    with _own_errors(home), _instance(home) as instance:
        shards = due_shards(instance, dataset, build, plan)
        tags = run_tags(dataset, build, plan, shards)
        run = instance.create_run_for_job(
            job_def=job,
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            # The job's page in the UI filters its runs by the last of these tags.
            tags={**tags, ".dagster/repository": "__repository__@prep_assets"},
            asset_selection=None if shards else {dataset.key("dataset_manifest")},
            remote_job_origin=RemoteJobOrigin(_REPOSITORY, job.name),
        )
        execute_run(InMemoryJob(job), run, instance, raise_on_error=True)


def check_home(home: Path) -> None:
    """Raises StorageError for a home that Dagster cannot open."""
    with _instance(home):
        pass


def _instance(home: Path) -> dg.DagsterInstance:
    try:
        return dg.DagsterInstance.from_config(str(home))
    except Exception as error:  # whatever configuration, file system or database makes of it
        raise StorageError(f"{home}: Dagster cannot open this home: {_reason(error)}") from error


@contextmanager
def _own_errors(home: Path) -> Iterator[None]:
    """Raises what a stage raised, not what Dagster made of it; a history that cannot be written is a StorageError."""
    try:
        yield
    except dg.Failure as failure:
        raise (failure.__cause__ or failure) from None
    except SQLAlchemyError as error:
        raise StorageError(f"{home}: Dagster's history cannot be written: {_reason(error)}") from error
    except DagsterExecutionInterruptedError as error:
        raise KeyboardInterrupt from error


def _reason(error: BaseException) -> str:
    """What the operating system said, where it was at the bottom of an error, or its first line."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return below.strerror
        below = below.__cause__ or below.__context__
    return str(error).partition("\n")[0]
