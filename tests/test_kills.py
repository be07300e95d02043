"""`kill -9` of a whole process group at random moments of a refresh, while a reader looks on."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from prep_assets.recipe import EXAMPLE, Recipe, load_recipe
from tests.pipeline import WORDS, bytes_of_version, make_recipe, plan_of, published, refresh, write_jsonl

SEED = int(os.environ.get("PREP_ASSETS_SEED", "7"))


def write_source(folder: Path, edition: int) -> None:
    """A source of 4,000 documents; each edition has other texts in two of its files."""
    for number in range(8):
        changed = edition if number in (edition % 8, (edition + 3) % 8) else 0
        texts = [f"{WORDS[at % 8]} {number} {at} {changed} " * 20 for at in range(500)]
        write_jsonl(folder / f"source/{number}.jsonl", texts)


@contextmanager
def reader(output: Path) -> Iterator[list[str]]:
    """Reads the version that `latest` leads to, again and again; the list says what was wrong with one."""
    faults: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            if (output / "latest").exists():
                try:
                    assert published((output / "latest").resolve())
                except Exception as error:  # whatever a reader may meet
                    faults.append(repr(error))
            stop.wait(0.02)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield faults
    finally:
        stop.set()
        thread.join()


def kill_after(seconds: float, start: Callable[[], int]) -> bool:
    """Kills the process group that start begins; False if it had ended by itself."""
    group = start()
    time.sleep(seconds)
    ended, _ = os.waitpid(group, os.WNOHANG)
    if ended:
        return False
    os.killpg(group, signal.SIGKILL)
    os.waitpid(group, 0)
    return True


def forked(recipe: Recipe) -> Callable[[], int]:
    def start() -> int:
        if child := os.fork():
            os.setpgid(child, child)  # here too: the kill may come before the child has run at all
            return child
        os.setpgid(0, 0)
        try:
            refresh(recipe)
        finally:
            os._exit(0)

    return start


def test_killed_at_random_moments_a_refresh_is_finished_by_the_same_command(tmp_path: Path) -> None:
    recipe = make_recipe(EXAMPLE.parent, output_path=str(tmp_path / "out"), shards=4)
    recipe = recipe.model_copy(
        update={"dataset": recipe.dataset.model_copy(update={"name_or_path": str(tmp_path / "source")})}
    )
    generator = random.Random(SEED)
    write_source(tmp_path, 0)
    begin = time.monotonic()
    refresh(recipe)
    whole = time.monotonic() - begin
    kills = 0
    with reader(tmp_path / "out") as faults:
        for edition in range(1, 29):
            write_source(tmp_path, edition)
            kills += kill_after(generator.uniform(0, whole), forked(recipe))
            if edition % 5 == 0:
                refresh(recipe)
                assert plan_of(recipe).is_fresh
    refresh(recipe)
    scratch = recipe.model_copy(update={"output_path": str(tmp_path / "scratch")})
    refresh(scratch)
    assert bytes_of_version(tmp_path / "out") == bytes_of_version(tmp_path / "scratch")
    assert not list((tmp_path / "out").rglob("*.unfinished"))
    assert faults == []
    assert kills >= 5


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_killed_at_some_moment_prepare_is_finished_by_the_same_command(tmp_path: Path, share: float) -> None:
    write_source(tmp_path, 0)
    recipe = {
        "output_path": "out",
        "shards": 3,
        "dataset": {"name_or_path": "source"},
        "tokenizer": {"path": str(EXAMPLE.parent / "tokenizer.json")},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "prep_assets.cli", "prepare", "--config", str(path)]

    def start() -> int:
        return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL).pid

    kill_after(random.Random(SEED).uniform(0.9, 1.1) * share * 8, start)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scratch = load_recipe(path).model_copy(update={"output_path": "scratch"})
    refresh(scratch)
    assert bytes_of_version(tmp_path / "out") == bytes_of_version(tmp_path / "scratch")
