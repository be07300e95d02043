"""What stays, what goes, and which version `latest` leads to."""

import json
import os
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from prep_assets.cleanup import clean, clean_up
from prep_assets.errors import BusyError, NotReadyError, RecipeError
from prep_assets.formats.publications import read_publications
from prep_assets.layout import Layout
from prep_assets.plan import Plan, make_plan
from prep_assets.purge import Purged, purge
from prep_assets.recipe import Recipe
from prep_assets.verify import verify
from prep_assets.versions import list_versions, pin, unpin
from prep_assets.workspace import running, settle_shards
from tests.crash import every_crash
from tests.pipeline import (
    WORDS,
    all_documents,
    layout_of,
    make_recipe,
    open_build,
    plan_of,
    published,
    refresh,
    save_word_tokenizer,
    write_jsonl,
)

TEXTS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_word_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def reasons(plan: Plan) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for stale in plan.stale:
        found.setdefault(stale.stage, set()).add(stale.reason)
    return found


def test_the_plan_says_what_changed_and_what_it_costs(folder: Path) -> None:
    for number in range(4):
        write_jsonl(folder / f"source/{number}.jsonl", TEXTS[number::4])
    recipe = make_recipe(folder, shards=8)
    plan = plan_of(recipe)
    assert reasons(plan) == {
        "raw_dataset": {"not made yet"},
        "tokenized_partitions": {"upstream stale"},
        "memmap_shards": {"upstream stale"},
        "dataset_manifest": {"upstream stale"},
    }
    assert (plan.documents_to_tokenize, plan.files_to_read, plan.documents) == (512, 4, 512)
    refresh(recipe)
    assert plan_of(recipe).is_fresh and plan_of(recipe).size_to_write == 0
    write_jsonl(folder / "source/2.jsonl", [*TEXTS[2::4], "gong gong gong gong"])
    plan = plan_of(recipe)
    assert reasons(plan)["raw_dataset"] == {"source changed: 1 document"}
    assert (len(plan.shards), plan.documents_to_tokenize, plan.files_to_read) == (1, 1, 1)
    assert 0 < plan.size_to_write < 20_000 and plan.seconds is not None


def test_the_plan_as_json_has_the_promised_form(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    found = json.loads(json.dumps(plan_of(make_recipe(folder, shards=2)).as_json()))
    assert found["fresh"] is False
    assert found["stale"][0] == {"stage": "raw_dataset", "shard": "00000", "reason": "not made yet"}
    assert found["stale"][-1] == {"stage": "dataset_manifest", "shard": None, "reason": "upstream stale"}


@pytest.mark.parametrize(
    ("change", "stage", "reason"),
    [
        ({"tokenizer__special_tokens_in_text": "text"}, "tokenized_partitions", "tokenizer or its options changed"),
        ({"tokens_per_shard": 2}, "memmap_shards", "tokens_per_shard changed"),
        ({"dataset__data_type": "int32"}, "memmap_shards", "data type changed"),
        ({"dataset__keep_columns": ["url"]}, "raw_dataset", "kept columns changed, source changed"),
    ],
)
def test_the_plan_names_the_option_that_changed(folder: Path, change: dict[str, Any], stage: str, reason: str) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder))
    assert reasons(plan_of(make_recipe(folder, **change)))[stage] == {reason}


def test_dropped_files_that_are_needed_again_are_a_reason(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, keep="none"))
    assert plan_of(make_recipe(folder)).is_fresh
    assert reasons(plan_of(make_recipe(folder, tokens_per_shard=2))) == {
        "raw_dataset": {"files were dropped and are needed again"},
        "tokenized_partitions": {"files were dropped and are needed again"},
        "memmap_shards": {"tokens_per_shard changed"},
        "dataset_manifest": {"upstream stale"},
    }


def tokenized(recipe: Recipe) -> int:
    """Documents that the current token partitions had to encode."""
    build = open_build(recipe)
    made = [build.made(shard)["tokenized_partitions"].receipt for shard in range(build.num_shards)]
    return sum(receipt.tokenized for receipt in made if receipt)


def files_of(folder: Path, name: str) -> list[Path]:
    return list((folder / "out/.prep_assets").rglob(name))


@pytest.mark.parametrize(
    ("keep", "raw", "tokens"), [("all", True, True), ("tokens", False, True), ("none", False, False)]
)
def test_intermediates_go_as_the_recipe_says_and_a_rebuild_tokenizes_only_what_is_new(
    folder: Path, keep: str, raw: bool, tokens: bool
) -> None:
    write_jsonl(folder / "source/x.jsonl", TEXTS)
    recipe = make_recipe(folder, shards=4, keep=keep)
    refresh(recipe)
    assert (bool(files_of(folder, "documents.arrow")), bool(files_of(folder, "tokens.arrow"))) == (raw, tokens)
    assert plan_of(recipe).is_fresh
    retyped = make_recipe(folder, shards=4, keep=keep, dataset__data_type="int64")
    refresh(retyped)
    made = files_of(folder, "tokens.arrow")
    assert bool(made) == tokens
    build = open_build(retyped)
    for shard in range(4):
        receipt = build.made(shard)["tokenized_partitions"].receipt
        assert receipt is not None and (receipt.reused or receipt.tokenized) == receipt.documents
    write_jsonl(folder / "source/x.jsonl", [*TEXTS, "drum drum drum drum"])
    plan = plan_of(recipe)
    changed = plan.shards
    refresh(recipe)
    build = open_build(recipe)
    counts = [build.made(shard)["tokenized_partitions"].receipt for shard in changed]
    assert [receipt.tokenized for receipt in counts if receipt] == [1]
    assert plan.documents_to_tokenize == 1


def test_after_clean_an_edit_of_one_document_tokenizes_one(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", TEXTS)
    recipe = make_recipe(folder, shards=4)
    refresh(recipe)
    assert clean(layout_of(recipe), tokens=True) > 0
    assert not files_of(folder, "*.arrow") or {path.parent.name for path in files_of(folder, "*.arrow")} == {"files"}
    assert plan_of(recipe).is_fresh
    write_jsonl(folder / "source/x.jsonl", ["drum drum drum drum", *TEXTS[1:]])
    [*changed] = plan_of(recipe).shards
    refresh(recipe)
    build = open_build(recipe)
    receipts = [build.made(shard)["tokenized_partitions"].receipt for shard in changed]
    assert sum(receipt.tokenized for receipt in receipts if receipt) == 1
    assert sum(receipt.reused for receipt in receipts if receipt) > 100


def test_old_versions_go_with_what_they_alone_need(folder: Path) -> None:
    recipe = make_recipe(folder, shards=2, keep_versions=2)
    ids = []
    for count in (5, 6, 7, 8):
        write_jsonl(folder / "source/x.jsonl", WORDS[:count])
        ids.append(refresh(recipe).id)
    assert [version.id for version in read_publications(layout_of(recipe).publications).versions] == ids[2:]
    assert sorted(path.name for path in (folder / "out/versions").iterdir()) == sorted(ids[2:])
    for identifier in ids[2:]:
        assert list(verify(folder / "out/versions" / identifier)) == []
    pairs = {path.parent.name for path in files_of(folder, "receipt.json") if "memmap_shards" in path.parts}
    kept = read_publications(layout_of(recipe).publications).versions
    assert pairs == {names[-1] for version in kept for names in version.payloads}
    assert len(files_of(folder, "[0-9a-f]*.json")) == len({version.index for version in kept})


def test_leftovers_of_killed_processes_go_and_what_is_not_ours_stays(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    refresh(recipe)
    work = folder / "out/.prep_assets"
    ours = [
        work / ".x.1.aa.unfinished",
        work / "raw_dataset/00000/.y.1.aa.retired",
        folder / "out/.latest.1.a.unfinished",
    ]
    theirs = [folder / "out/cache", folder / "out/versions/.hidden", work / "notes.unfinished", folder / "out/README"]
    for path in [*ours, *theirs]:
        path.mkdir()
    with running(layout_of(recipe)):  # somebody is at work: their unfinished folders must not vanish
        clean_up(open_build(recipe))
        assert all(path.exists() for path in ours)
    clean_up(open_build(recipe))
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in theirs)


def test_a_pin_holds_latest_until_it_is_taken_off(folder: Path) -> None:
    recipe = make_recipe(folder, shards=2)
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(recipe)
    write_jsonl(folder / "source/x.jsonl", WORDS[:5])
    refresh(recipe)
    pin(layout_of(recipe), first.id[:6])
    assert len(all_documents(folder / "out")) == 8
    write_jsonl(folder / "source/x.jsonl", WORDS[:3])
    plan = plan_of(recipe)
    assert plan.is_fresh and plan.pinned == first.id
    with pytest.raises(NotReadyError, match=f"{first.id} is pinned"):
        refresh(recipe)
    assert len(all_documents(folder / "out")) == 8
    unpin(layout_of(recipe))
    refresh(recipe)
    assert len(all_documents(folder / "out")) == 3
    with pytest.raises(RecipeError, match="no version is pinned"):
        unpin(layout_of(recipe))
    with pytest.raises(NotReadyError, match="abc is not published; there are"):
        pin(layout_of(recipe), "abc")


def test_a_pin_is_one_step_wherever_it_is_killed(folder: Path) -> None:
    recipe = make_recipe(folder, shards=3)
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(recipe)
    write_jsonl(folder / "source/x.jsonl", WORDS[:2])
    refresh(recipe)
    for _ in every_crash(lambda: pin(layout_of(recipe), first.id)):
        assert list(verify(folder / "out")) == []
        published((folder / "out/latest").resolve())
    assert len(all_documents(folder / "out")) == 8


def test_versions_tell_what_changed(folder: Path) -> None:
    recipe = make_recipe(folder, shards=8)
    write_jsonl(folder / "source/x.jsonl", TEXTS)
    refresh(recipe)
    write_jsonl(folder / "source/x.jsonl", [*TEXTS, "gong gong gong gong"])
    refresh(recipe)
    first, second = list_versions(layout_of(recipe))
    assert (first.changed_shards, second.changed_shards, second.documents_more) == (8, 1, 1)
    assert 0 < second.own_size < first.own_size / 4
    assert (first.is_latest, second.is_latest) == (False, True)


def test_the_number_of_shards_is_settled_once(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", TEXTS)
    recipe = make_recipe(folder, shards="auto", tokens_per_shard=1000)
    layout = Layout(recipe.output, recipe.work)
    settled = settle_shards(recipe, layout)
    assert settled.num_shards == 4  # 512 documents of 28 bytes of JSON, 4 bytes a token
    refresh(settled)
    write_jsonl(folder / "source/y.jsonl", TEXTS)
    assert settle_shards(recipe, layout).num_shards == 4
    assert settle_shards(recipe.model_copy(update={"shards": 3}), layout).num_shards == 3


def occurrences(folder: Path, needle: bytes) -> list[Path]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in paths if needle in path.read_bytes()]


SECRET = "tuba lute tuba lute tuba lute tuba lute tuba gong"


def purged(recipe: Recipe) -> Purged:
    with running(layout_of(recipe)):
        build = open_build(recipe)
    return purge(build)


@pytest.mark.parametrize("shard_by", ["document", "file"])
def test_a_purge_leaves_no_byte_of_an_excluded_document(folder: Path, shard_by: str) -> None:
    for number in range(4):
        texts = TEXTS[number::4]
        write_jsonl(folder / f"source/{number}.jsonl", [*texts[:7], SECRET, *texts[7:]] if number == 2 else texts)
    options: dict[str, Any] = {"shards": 4, "dataset__shard_by": shard_by}
    refresh(make_recipe(folder, **options))
    write_jsonl(folder / "source/0.jsonl", [*TEXTS[0::4], "a new one"])
    refresh(make_recipe(folder, **options))
    tokens = b"".join((21 + WORDS.index(word)).to_bytes(2, "little") for word in SECRET.split())
    assert len(occurrences(folder / "out", SECRET.encode())) >= 1 and len(occurrences(folder / "out", tokens)) >= 2
    (folder / "exclude").write_text(blake2b(SECRET.encode(), digest_size=16).hexdigest())
    recipe = make_recipe(folder, dataset__exclude="exclude", **options)
    with pytest.raises(NotReadyError, match="run prep-assets prepare"):
        purged(recipe)
    latest = refresh(recipe)
    assert occurrences(folder / "out", tokens)
    done = purged(recipe)
    assert occurrences(folder / "out", SECRET.encode()) == occurrences(folder / "out", tokens) == []
    assert (done.documents, len(done.versions), done.found) == (1, 2, ())
    assert done.needles >= 1 and done.searched > 10
    assert len(all_documents(folder / "out")) == 513
    assert [version.id for version in read_publications(layout_of(recipe).publications).versions] == [latest.id]
    assert plan_of(recipe).is_fresh


def test_a_purge_killed_at_any_file_operation_is_finished_by_the_same_command(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", [*TEXTS[:40], SECRET])
    refresh(make_recipe(folder, shards=2))
    (folder / "exclude").write_text(blake2b(SECRET.encode(), digest_size=16).hexdigest())
    recipe = make_recipe(folder, shards=2, dataset__exclude="exclude")
    refresh(recipe)
    for _ in every_crash(lambda: purged(recipe)):
        assert list(verify(folder / "out")) == []
    assert occurrences(folder / "out", SECRET.encode()) == []
    assert not list((folder / "out/.prep_assets").rglob(".*.retired"))


def test_a_purge_waits_for_nobody(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    refresh(recipe)
    with running(layout_of(recipe)), pytest.raises(BusyError):
        purge(open_build(recipe))


def kill_clean_up(folder: Path, work: Callable[[Recipe], object]) -> None:
    recipe = make_recipe(folder, shards=2, keep_versions=2, keep="none")
    for _ in every_crash(lambda: work(recipe)):
        assert list(verify(folder / "out")) == []
        with running(layout_of(recipe)):
            assert make_plan(open_build(recipe)).is_fresh


def test_clean_up_killed_at_any_file_operation_loses_nothing(folder: Path) -> None:
    recipe = make_recipe(folder, shards=2, keep_versions=5)
    for count in (4, 5, 6, 7):
        write_jsonl(folder / "source/x.jsonl", WORDS[:count])
        refresh(recipe)
    kill_clean_up(folder, lambda recipe: clean_up(open_build(recipe)))
    assert len(read_publications(layout_of(recipe).publications).versions) == 2
    assert len(list((folder / "out/versions").iterdir())) == 2
    assert not files_of(folder, "documents.arrow") and not files_of(folder, ".*")


def test_losing_the_work_folder_loses_no_version(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(make_recipe(folder))
    shutil.rmtree(folder / "out/.prep_assets")
    write_jsonl(folder / "source/x.jsonl", WORDS[:4])
    second = refresh(make_recipe(folder))
    assert list(verify(folder / "out/versions" / first.id)) == list(verify(folder / "out/versions" / second.id)) == []
    assert os.readlink(folder / "out/latest") == f"versions/{second.id}"  # noqa: PTH115
