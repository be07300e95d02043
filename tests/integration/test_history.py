"""The law of refreshes once through Dagster: any history of edits gives the bytes of a build from scratch."""

import tempfile
from pathlib import Path

import dagster as dg
from hypothesis import HealthCheck, given, settings

from prep_assets.definitions import build_definitions
from tests.pipeline import bytes_of_version, make_recipe, plan_of, refresh, save_word_tokenizer
from tests.test_refresh import Files, has_tokens, histories, write_source


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
def test_the_refresh_job_gives_the_bytes_of_a_build_from_scratch(history: list[Files]) -> None:
    with tempfile.TemporaryDirectory() as name, dg.DagsterInstance.ephemeral() as instance:
        folder = Path(name)
        save_word_tokenizer(folder / "tokenizer.json")
        recipe = make_recipe(folder, shards=2)
        for number, files in enumerate(history):
            if not has_tokens(files):
                continue
            write_source(folder, files)
            job = build_definitions(recipe).resolve_job_def("refresh")
            run_config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            assert job.execute_in_process(instance=instance, run_config=run_config).success
            refresh(make_recipe(folder, shards=2, output_path=f"scratch-{number}"))
            assert bytes_of_version(folder / "out") == bytes_of_version(folder / f"scratch-{number}")
            assert plan_of(recipe).is_fresh
