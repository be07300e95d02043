from pathlib import Path
from typing import Any

import pytest

from prep_assets.errors import RecipeError
from prep_assets.recipe import EXAMPLE, keys_with_descriptions, load_recipe, parse_recipe

SEVEN_KEYS = """
output_path: /tmp/foo
loading_workers: 4
tokenize_workers: 4
saving_workers: 4
dataset:
  name_or_path: stas/openwebtext-10k
tokenizer:
  path: /tmp/SmolLM-135M/tokenizer.json
"""


def recipe_with(**changes: Any) -> dict[str, Any]:
    return {"output_path": "out", "dataset": {"name_or_path": "texts"}, "tokenizer": {"path": "tok.json"}, **changes}


def faults(data: object) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(data, "foo.yaml", Path("/base"))
    return str(caught.value).splitlines()


def test_the_seven_keys_are_enough(tmp_path: Path) -> None:
    (tmp_path / "foo.yaml").write_text(SEVEN_KEYS)
    recipe = load_recipe(tmp_path / "foo.yaml")
    assert (recipe.output, recipe.work) == (Path("/tmp/foo"), Path("/tmp/foo/.prep_assets"))
    assert (recipe.shards, recipe.tokens_per_shard, recipe.dataset.field) == (1, 1_000_000_000, "text")
    assert recipe.dataset.split is None and recipe.tokenizer.add_eos is None


def test_paths_are_relative_to_the_recipe() -> None:
    recipe = parse_recipe(recipe_with(work_path="../work"), "foo.yaml", Path("/base/recipes"))
    assert (recipe.output, recipe.work) == (Path("/base/recipes/out"), Path("/base/work"))


def test_the_example_writes_where_its_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe(EXAMPLE).output == tmp_path / "output" / "example"


def test_the_environment_overrides_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_ASSETS_OUTPUT", "/elsewhere")
    recipe = parse_recipe(recipe_with(), "foo.yaml", Path("/base"))
    assert (recipe.output, recipe.work) == (Path("/elsewhere"), Path("/elsewhere/.prep_assets"))


def test_all_faults_are_told_at_once_each_with_key_value_and_what_is_allowed() -> None:
    data = recipe_with(shards="8", keep_versions=1, keep="some")
    data["dataset"] = {"name_or_path": "texts", "shard_by": "row", "data_files": 3}
    del data["tokenizer"]
    assert sorted(faults(data)) == [
        "foo.yaml: dataset.data_files: found 3; expected a valid string or a valid list",
        "foo.yaml: dataset.shard_by: found 'row'; expected 'document' or 'file'",
        "foo.yaml: keep: found 'some'; expected 'all', 'tokens' or 'none'",
        "foo.yaml: keep_versions: found 1; expected greater than or equal to 2",
        "foo.yaml: shards: found '8'; expected a valid integer or 'auto'",
        "foo.yaml: tokenizer: missing; expected: Which tokenizer, and which special tokens stand at a document's ends",
    ]


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("shardz", "did you mean shards?"),
        ("token_per_shard", "did you mean tokens_per_shard?"),
        ("add_eos", "did you mean tokenizer.add_eos?"),
        ("name_or_path", "did you mean dataset.name_or_path?"),
        ("--append-eod", "tokenizer.add_eos: true"),
        ("json_keys", "dataset.field"),
        ("output-prefix", "output_path"),
        ("workers", "tokenize_workers"),
        ("documents_per_shard", "shards"),
        ("splits", "dataset.split"),
        ("distributed", "Dagster's partitions"),
    ],
)
def test_a_misspelt_or_a_foreign_key_is_answered_with_ours(key: str, answer: str) -> None:
    [line] = faults(recipe_with(**{key: True}))
    assert line.startswith(f"foo.yaml: {key}:") and answer in line


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("path", "dataset.name_or_path"),
        ("load_from_disk", "save_to_disk"),
        ("data_directory", "dataset.data_files"),
        ("source_schema", "dataset.field"),
        ("fild", "did you mean dataset.field?"),
        ("trust_remote_code", "never run"),
    ],
)
def test_a_key_of_fast_llms_dataset_section_is_answered(key: str, answer: str) -> None:
    [line] = faults(recipe_with(dataset={"name_or_path": "texts", key: "x"}))
    assert f"dataset.{key}" in line and answer in line


def test_fast_llms_remove_downloads_is_understood() -> None:
    assert parse_recipe(recipe_with(remove_downloads=True), "r", Path("/base")).keep == "none"
    assert parse_recipe(recipe_with(remove_downloads=False), "r", Path("/base")).keep == "all"
    assert faults(recipe_with(remove_downloads="yes"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("output_path: a\noutput_path: b\n", "twice"),
        ("a: [1", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("- a\n- b\n", "expected keys"),
        ("", "expected keys"),
        ("a: \xff", "not YAML"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "foo.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecipeError, match=message):
        load_recipe(tmp_path / "foo.yaml")


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"nowhere\.yaml"):
        load_recipe(tmp_path / "nowhere.yaml")


def test_a_recipe_cannot_be_changed() -> None:
    recipe = parse_recipe(recipe_with(), "r", Path("/base"))
    with pytest.raises(ValueError, match="frozen"):
        recipe.shards = 3  # type: ignore[misc]


def test_every_key_has_a_description() -> None:
    assert all(keys_with_descriptions().values())


@pytest.mark.parametrize("path", ["~nosuchuser/x", "a\0b"])
def test_a_path_that_cannot_be_one_is_a_fault_of_the_recipe(path: str) -> None:
    data = recipe_with(output_path=path, work_path=path, tokenizer={"path": path}, dataset={"name_or_path": path})
    assert len(faults(data)) == 4


def test_a_column_is_kept_once() -> None:
    data = recipe_with(dataset={"name_or_path": "texts", "keep_columns": ["url", "title", "url"]})
    assert faults(data) == [
        "foo.yaml: dataset.keep_columns: found ['url', 'title', 'url']; expected each column once, not url twice"
    ]


def test_a_column_to_exclude_by_needs_a_list() -> None:
    data = recipe_with(dataset={"name_or_path": "texts", "exclude_column": "url"})
    assert faults(data) == [
        "foo.yaml: dataset.exclude_column: found 'url'; expected dataset.exclude too, the file that lists its values"
    ]
    data["dataset"]["exclude"] = 3
    assert [line.partition(":")[2].partition(":")[0] for line in faults(data)] == [" dataset.exclude"]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [(None, None), ("lists/gone", "/base/lists/gone"), ("~/gone", "/home/me/gone"), ("/lists/gone", "/lists/gone")],
)
def test_the_list_of_excluded_documents_is_relative_to_the_recipe(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, expected: str | None
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    recipe = parse_recipe(recipe_with(dataset={"name_or_path": "texts", "exclude": listed}), "r", Path("/base"))
    assert recipe.exclude_path == (expected and Path(expected))
