"""The slow files begin first: with `--dist loadfile`, a worker that began one of them last would be waited for."""

from pathlib import Path

import pytest

from tests.pipeline import save_word_tokenizer

SLOWEST = ["test_cli", "test_refresh_dagster", "test_kills", "test_pipeline", "test_dagster_behaviour", "test_graph"]


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # pytest-xdist would begin with the files of the most tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: [*SLOWEST, Path(item.path).stem].index(Path(item.path).stem))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test's recipe stands, with the tokenizer of readable ids."""
    save_word_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path
