"""What stays, what goes, and which version `latest` leads to."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from prep_assets import versions
from prep_assets.cleanup import clean, clean_up
from prep_assets.errors import BusyError, DamagedFileError, NotReadyError, RecipeError, StorageError
from prep_assets.formats.manifest import Version
from prep_assets.formats.publications import read_pin, read_publications
from prep_assets.layout import Layout
from prep_assets.plan import Plan, make_plan
from prep_assets.publication import latest_id
from prep_assets.purge import Purged, purge
from prep_assets.recipe import Recipe
from prep_assets.stages.raw_dataset import make_raw_partitions
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
    write_jsonl,
)

TEXTS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]


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


def test_the_plan_warns_where_each_refresh_would_rewrite_much(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    plan = plan_of(make_recipe(folder, shards=2))
    assert plan.advice is None
    large = replace(plan, shard_size=6_000_000_000)
    assert large.advice == "each refresh rewrites 12.0 GB or more; shards: 128 would rewrite 0.2 GB"
    assert replace(plan, num_shards=128, shard_size=93_750_000).advice is None


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
        work / ".x.1.aaaaaaaa.unfinished",
        work / "raw_dataset/00000/.y.1.aaaaaaaa.retired",
        folder / "out/.latest.1.0123abcd.unfinished",
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
    for identifier in ("abc", ""):
        with pytest.raises(NotReadyError, match=f"{identifier or repr('')} is not published; there are"):
            pin(layout_of(recipe), identifier)


def test_a_pin_is_one_step_wherever_it_is_killed(folder: Path) -> None:
    recipe = make_recipe(folder, shards=3)
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(recipe)
    write_jsonl(folder / "source/x.jsonl", WORDS[:2])
    refresh(recipe)
    for _ in every_crash(lambda: pin(layout_of(recipe), first.id)):
        assert list(verify(folder / "out")) == []
        published((folder / "out/latest").resolve())
        assert read_pin(layout_of(recipe).pin) in (None, latest_id(layout_of(recipe)))
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


def flip(path: Path) -> None:
    """One bit of the last byte, in the file itself: a hard link of it is damaged too."""
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_damaged_version_is_mended_as_verify_says(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder, shards=2)
    refresh(recipe)
    flip(folder / "out/latest/shard_1_0.bin")
    [fault] = verify(folder / "out")
    assert "shard_1_0.bin: its bytes have the digest" in fault and "remove it and run prep-assets prepare" in fault
    (folder / "out/latest/shard_1_0.bin").unlink()
    with pytest.raises(DamagedFileError, match="put away and will be made again"):  # the payload shared its bytes
        refresh(recipe)
    refresh(recipe)
    assert list(verify(folder / "out")) == [] and plan_of(recipe).is_fresh
    assert sorted(map(tuple, all_documents(folder / "out"))) == [(21 + at,) for at in range(8)]


def test_mending_a_version_may_be_killed_at_any_file_operation(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder, shards=2)
    refresh(recipe)
    for _ in every_crash(lambda: refresh(recipe)):
        refresh(recipe)
        assert list(verify(folder / "out")) == []
        (folder / "out/latest/shard_1_0.idx").unlink()
        (folder / "out/latest/version.json").unlink()
    assert list(verify(folder / "out")) == [] and not list((folder / "out").rglob(".*.unfinished"))


def test_a_version_is_not_taken_for_whole_by_its_sizes(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    version = refresh(recipe)
    flip(folder / "out/latest/shard_0_0.bin")
    shutil.rmtree(folder / "out/.prep_assets/memmap_shards")
    assert refresh(recipe).id == version.id
    assert list(verify(folder / "out")) == []


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    "name", ["fast_llm_dataset.json", "fast_llm_config.yaml", "megatron_data_args.txt", "version.json"]
)
def test_a_description_that_is_gone_or_cut_is_seen_and_mended(folder: Path, name: str, is_cut: bool) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    refresh(recipe)
    path = (folder / "out/latest").resolve() / name
    content = path.read_bytes()
    path.unlink()
    if is_cut:
        path.write_bytes(content[:-5])
    assert reasons(plan_of(recipe)) == {"dataset_manifest": {"not published"}}
    assert name in "".join(verify(folder / "out"))
    refresh(recipe)
    assert path.read_bytes() == content
    assert plan_of(recipe).is_fresh and list(verify(folder / "out")) == []


def test_a_moved_dataset_is_sound_and_names_its_new_place_after_a_refresh(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder))
    (folder / "out").rename(folder / "moved")
    assert list(verify(folder / "moved")) == []
    refresh(make_recipe(folder, output_path="moved"))
    assert str(folder / "moved") in (folder / "moved/megatron_data_args.txt").read_text()


def test_a_name_that_leads_elsewhere_is_not_visible(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    refresh(recipe)
    (folder / "out/shard_0_0.bin").unlink()
    (folder / "out/shard_0_0.bin").symlink_to("/etc/passwd")
    assert reasons(plan_of(recipe)) == {"dataset_manifest": {"not published"}}
    with pytest.raises(StorageError, match=r"shard_0_0\.bin: not a link of prep-assets"):
        refresh(recipe)


def test_clean_up_takes_no_version_that_is_being_pinned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for count in (5, 6, 7):
        write_jsonl(folder / "source/x.jsonl", WORDS[:count])
        ids.append(refresh(make_recipe(folder)).id)
    build = open_build(make_recipe(folder, keep_versions=2))
    find = versions._find

    def find_before_clean_up(layout: Layout, identifier: str) -> Version:
        found = find(layout, identifier)
        clean_up(build)  # another process's refresh ends here
        return found

    monkeypatch.setattr(versions, "_find", find_before_clean_up)
    pin(build.layout, ids[0])
    assert len(all_documents(folder / "out")) == 5


def test_a_pin_replaces_no_foreign_file(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(make_recipe(folder, tokens_per_shard=2))
    recipe = make_recipe(folder)
    second = refresh(recipe)
    (folder / "out/shard_0_1.bin").write_text("mine")
    with pytest.raises(StorageError, match=r"shard_0_1\.bin: not a link of prep-assets"):
        pin(layout_of(recipe), first.id)
    assert (folder / "out/shard_0_1.bin").read_text() == "mine"
    assert read_pin(layout_of(recipe).pin) is None and latest_id(layout_of(recipe)) == second.id


@pytest.mark.parametrize(
    "command",
    [
        lambda layout: pin(layout, "a"),
        unpin,
        lambda layout: clean(layout, tokens=True),
        lambda layout: list(list_versions(layout)),
    ],
)
def test_no_command_works_in_the_folder_of_another_output(folder: Path, command: Callable[[Layout], object]) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder))
    with pytest.raises(StorageError, match="belongs to the dataset at"):
        command(Layout(folder / "other", folder / "out/.prep_assets"))
    assert files_of(folder, "documents.arrow")


def test_listing_versions_makes_no_folder(folder: Path) -> None:
    assert list(list_versions(layout_of(make_recipe(folder)))) == []
    assert not (folder / "out").exists()


def write_keyed(folder: Path, rows: dict[str, str]) -> None:
    (folder / "source").mkdir(exist_ok=True)
    lines = (json.dumps({"url": key, "text": text}) + "\n" for key, text in rows.items())
    (folder / "source/x.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("shard_by", ["document", "file"])
@pytest.mark.parametrize("is_removed", [False, True])
def test_a_purge_by_key_removes_every_version_that_may_hold_it(folder: Path, shard_by: str, is_removed: bool) -> None:
    rows = {"good": TEXTS[7], "bad": SECRET}
    options: dict[str, Any] = {"shards": 2, "dataset__shard_by": shard_by}
    write_keyed(folder, rows)
    first = refresh(make_recipe(folder, **options))
    if is_removed:
        write_keyed(folder, {"good": TEXTS[7]})
    (folder / "exclude").write_text("bad\n")
    recipe = make_recipe(folder, dataset__exclude="exclude", dataset__exclude_column="url", **options)
    with pytest.raises(NotReadyError, match="run prep-assets prepare"):
        purged(recipe)
    refresh(recipe)
    done = purged(recipe)
    tokens = b"".join((21 + WORDS.index(word)).to_bytes(2, "little") for word in SECRET.split())
    assert occurrences(folder / "out", SECRET.encode()) == occurrences(folder / "out", tokens) == []
    assert (done.versions, done.untold) == ((first.id,), (first.id,))
    assert purged(recipe).versions == () and plan_of(recipe).is_fresh


def test_a_purge_by_key_keeps_a_version_that_is_known_not_to_hold_it(folder: Path) -> None:
    options: dict[str, Any] = {"dataset__exclude": "exclude", "dataset__exclude_column": "url"}
    (folder / "exclude").write_text("other\n")
    ids = []
    for rows in ({"a": TEXTS[1]}, {"a": TEXTS[1], "bad": SECRET}, {"a": TEXTS[2], "bad": SECRET, "b": TEXTS[3]}):
        write_keyed(folder, rows)
        ids.append(refresh(make_recipe(folder, keep_versions=5, **options)).id)
    (folder / "exclude").write_text("bad\n")
    recipe = make_recipe(folder, keep_versions=5, **options)
    refresh(recipe)
    done = purged(recipe)
    assert (done.versions, done.untold, done.documents, done.needles) == (tuple(ids[1:]), (), 1, 2)
    assert list(verify(folder / "out/versions" / ids[0])) == []


def test_a_purge_takes_nothing_that_latest_leads_to(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", [*WORDS, SECRET])
    first = refresh(make_recipe(folder))
    (folder / "exclude").write_text(blake2b(SECRET.encode(), digest_size=16).hexdigest())
    recipe = make_recipe(folder, dataset__exclude="exclude")
    refresh(recipe)
    pin(layout_of(recipe), first.id)
    with pytest.raises(NotReadyError, match=f"latest: leads to version {first.id}"):
        purged(recipe)
    assert len(all_documents(folder / "out")) == 9
    unpin(layout_of(recipe))
    refresh(recipe)
    assert purged(recipe).versions == (first.id,)


def test_a_purge_tells_how_many_texts_it_looked_for(folder: Path) -> None:
    (folder / "source").mkdir()
    write_jsonl(folder / "source/x.jsonl", ["tuba", *TEXTS, SECRET])
    refresh(make_recipe(folder))
    listed = [blake2b(text.encode(), digest_size=16).hexdigest() for text in ["tuba", *TEXTS]]
    (folder / "exclude").write_text("\n".join(listed))
    recipe = make_recipe(folder, dataset__exclude="exclude")
    refresh(recipe)
    done = purged(recipe)
    assert (done.documents, done.needles) == (513, 100)  # token runs of three tokens are too short to look for


def test_a_purge_needs_a_publication_and_the_newest_index(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    with pytest.raises(NotReadyError, match="run prep-assets prepare"):
        purged(recipe)
    refresh(recipe)
    build = open_build(recipe)
    write_jsonl(folder / "source/x.jsonl", WORDS[:3])
    refresh(recipe)
    with pytest.raises(NotReadyError, match="must not overtake"):
        purge(build)
    assert plan_of(recipe).is_fresh


def test_clean_up_of_an_older_run_leaves_what_a_newer_one_made(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    refresh(recipe)
    older = open_build(recipe)
    write_jsonl(folder / "source/x.jsonl", WORDS[:3])
    newer = open_build(recipe)
    list(make_raw_partitions(newer, range(1)))
    clean_up(older)
    assert newer.made(0)["raw_dataset"].has_files


def test_what_others_put_into_our_folders_stays(folder: Path) -> None:
    recipe = make_recipe(folder, keep_versions=2)
    write_jsonl(folder / "source/x.jsonl", WORDS[:4])
    first = refresh(recipe)
    theirs = [
        folder / "out/.thesis.retired",
        folder / "out/.prep_assets/raw_dataset/00000/notes",
        folder / "out/.prep_assets/raw_dataset/00000/notes.json",
        folder / "out/.prep_assets/index/files/notes.arrow",
        folder / f"out/versions/{first.id}/cache",
    ]
    for path in theirs:
        path.mkdir()
    for count in (5, 6, 7):
        write_jsonl(folder / "source/x.jsonl", WORDS[:count])
        refresh(recipe)
    assert all(path.is_dir() for path in theirs)
    assert [path.name for path in (folder / f"out/versions/{first.id}").iterdir()] == ["cache"]
    assert first.id not in [it.publication.id for it in list_versions(layout_of(recipe))]
    write_jsonl(folder / "source/x.jsonl", WORDS[:4])  # the same version again, around the cache
    assert refresh(recipe).id == first.id
    assert list(verify(folder / "out")) == [] and theirs[-1].is_dir()


def test_a_damaged_publication_record_says_what_removing_it_means(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    refresh(recipe)
    record = layout_of(recipe).publications
    record.write_text("{")
    with pytest.raises(DamagedFileError, match=r"remove it and run prep-assets prepare.*older versions stay"):
        plan_of(recipe)
    record.unlink()
    refresh(recipe)
    assert plan_of(recipe).is_fresh and list(verify(folder / "out")) == []
