"""A refresh gives what a build from scratch gives, and costs what changed."""

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prep_assets import scan as scan_module
from prep_assets.build import CODE_VERSIONS
from prep_assets.errors import DamagedFileError, NotReadyError, SourceError
from prep_assets.formats.publications import Publication
from prep_assets.plan import make_plan
from prep_assets.receipt import STAGES, Receipt, Stage
from prep_assets.sources import files as files_module
from prep_assets.stages.raw_dataset import make_raw_partitions
from tests.crash import every_crash
from tests.pipeline import (
    WORDS,
    all_documents,
    bytes_of_version,
    layout_of,
    make_recipe,
    open_build,
    plan_of,
    published,
    refresh,
    save_word_tokenizer,
    write_jsonl,
)


def receipts(folder: Path, **options: Any) -> dict[str, list[Receipt]]:
    """The receipts of each stage's current payloads."""
    build = open_build(make_recipe(folder, **options))
    made = [build.made(shard) for shard in range(build.num_shards)]
    return {stage: [receipt for shard in made if (receipt := shard[stage].receipt)] for stage in STAGES}


def payloads(folder: Path) -> dict[str, int]:
    """Every payload's inode, by stage, shard and name."""
    found = (folder / "out/.prep_assets").glob("*_*/[0-9]*/[0-9a-f]*/receipt.json")
    return {str(path.parent.relative_to(folder)): path.stat().st_ino for path in found}


def new_payloads(folder: Path, before: dict[str, int]) -> Counter[str]:
    """How many payloads each stage made since; those that were there keep their inode, or went as not needed."""
    after = payloads(folder)
    assert all(after[name] == inode for name, inode in before.items() if name in after)
    return Counter(name.split("/")[2] for name in after.keys() - before.keys())


Files = dict[str, list[str | None]]
TEXTS = st.one_of(
    st.none(), st.sampled_from(["", " "]), st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
)
SOURCES = st.dictionaries(
    st.sampled_from(["a.jsonl", "b.jsonl", "c-2.jsonl", "c-10.jsonl", "sub/a.jsonl"]),
    st.lists(TEXTS, max_size=6),
    min_size=1,
)


@st.composite
def edited(draw: st.DrawFn, files: Files) -> Files:
    """The source after one edit: insert, delete, edit, move or duplicate a document; rename, split or reorder files."""
    files = {name: list(texts) for name, texts in files.items()}
    name = draw(st.sampled_from(sorted(files)))
    texts = files[name]
    match draw(st.sampled_from(["insert", "delete", "edit", "move", "duplicate", "rename", "split", "swap", "add"])):
        case "insert":
            texts.insert(draw(st.integers(0, len(texts))), draw(TEXTS))
        case "delete" if texts:
            texts.pop(draw(st.integers(0, len(texts) - 1)))
        case "edit" if texts:
            texts[draw(st.integers(0, len(texts) - 1))] = draw(TEXTS)
        case "move" if texts:
            text = texts.pop(draw(st.integers(0, len(texts) - 1)))
            other = files[draw(st.sampled_from(sorted(files)))]
            other.insert(draw(st.integers(0, len(other))), text)
        case "duplicate" if texts:
            texts.append(texts[draw(st.integers(0, len(texts) - 1))])
        case "rename":
            files[f"{draw(st.sampled_from('axz'))}{name.rpartition('/')[2]}"] = files.pop(name)
        case "split":
            at = draw(st.integers(0, len(texts)))
            files[name], files[name.replace(".jsonl", "-1.jsonl")] = texts[:at], texts[at:]
        case "swap":
            texts.reverse()
        case "add":
            files[draw(st.sampled_from(["new.jsonl", "0.jsonl"]))] = draw(st.lists(TEXTS, max_size=3))
    return files


@st.composite
def histories(draw: st.DrawFn) -> list[Files]:
    versions = [draw(SOURCES)]
    for _ in range(draw(st.integers(1, 4))):
        versions.append(draw(edited(versions[-1])))
    return versions


def write_source(folder: Path, files: Files) -> None:
    shutil.rmtree(folder / "source", ignore_errors=True)
    for name, texts in files.items():
        write_jsonl(folder / "source" / name, texts)


def has_tokens(files: Files) -> bool:
    return any(text and text.strip() for texts in files.values() for text in texts)


@settings(
    max_examples=int(os.environ.get("PREP_ASSETS_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(history=histories(), shards=st.integers(1, 4), shard_by=st.sampled_from(["document", "file"]))
def test_any_history_of_edits_gives_the_bytes_of_a_build_from_scratch_and_tokenizes_only_what_is_new(
    history: list[Files], shards: int, shard_by: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_word_tokenizer(folder / "tokenizer.json")
        known: set[str] = set()
        for number, files in enumerate(history):
            if not has_tokens(files):
                continue
            write_source(folder, files)
            options = {"shards": shards, "tokens_per_shard": 7, "dataset__shard_by": shard_by}
            before = payloads(folder)
            publication = refresh(make_recipe(folder, **options))
            scratch = f"scratch-{number}"
            assert refresh(make_recipe(folder, output_path=scratch, **options)).id == publication.id
            assert bytes_of_version(folder / "out") == bytes_of_version(folder / scratch)
            texts = {text for texts in files.values() for text in texts if text and text.strip()}
            made = new_payloads(folder, before)
            tokenized = sum(
                receipt.tokenized
                for receipt in receipts(folder, **options)["tokenized_partitions"]
                if str(
                    layout_of(make_recipe(folder))
                    .payload(receipt.stage, receipt.shard, receipt.inputs)
                    .relative_to(folder)
                )
                not in before
            )
            occurrences = Counter(text for texts in files.values() for text in texts if text and text.strip())
            assert tokenized <= sum(occurrences[text] for text in texts - known)
            assert made["tokenized_partitions"] <= shards
            known |= texts


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    texts=st.lists(st.text(max_size=5), min_size=1, max_size=30),
    at=st.integers(0),
    text=st.text(max_size=5),
    shards=st.integers(1, 12),
)
def test_editing_one_document_changes_at_most_two_shards(texts: list[str], at: int, text: str, shards: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        recipe = make_recipe(Path(name), shards=shards)
        write_jsonl(Path(name) / "source/x.jsonl", texts)
        before = open_build(recipe).index.shards
        texts[at % len(texts)] = text
        write_jsonl(Path(name) / "source/x.jsonl", texts)
        after = open_build(recipe).index.shards
        assert sum(one != other for one, other in zip(before, after, strict=True)) <= 2


def test_editing_one_document_makes_one_or_two_shards_and_tokenizes_one(folder: Path) -> None:
    texts = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
    write_jsonl(folder / "source/a.jsonl", texts[:300])
    write_jsonl(folder / "source/b.jsonl", texts[300:])
    refresh(make_recipe(folder, shards=8))
    before = payloads(folder)
    texts[100] = "gong gong gong gong"
    write_jsonl(folder / "source/a.jsonl", texts[:300])
    refresh(make_recipe(folder, shards=8))
    made = new_payloads(folder, before)
    assert set(made) == set(STAGES) and all(1 <= count <= 2 for count in made.values())
    new = [
        receipt
        for receipt in receipts(folder, shards=8)["tokenized_partitions"]
        if not any(receipt.inputs in name for name in before)
    ]
    assert sum(receipt.tokenized for receipt in new) == 1
    raw = receipts(folder, shards=8)["raw_dataset"]
    assert (
        sum(receipt.documents - receipt.reused for receipt in raw if not any(receipt.inputs in n for n in before)) == 1
    )


def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the source files whose content is read from now on, by the scan or by a stage."""
    read: list[str] = []
    original = scan_module.read_documents

    def spy(file: Any, *arguments: Any) -> Iterator[Any]:
        read.append(file.name)
        return original(file, *arguments)

    monkeypatch.setattr(scan_module, "read_documents", spy)
    return read


def settle() -> None:
    """Until a file's time stamp can be trusted: a later change must show in it."""
    time.sleep(files_module.SETTLING / 1e9 + 0.2)


def test_only_changed_files_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        write_jsonl(folder / f"source/{number}.jsonl", [f"{word} {WORDS[number]}" for word in WORDS])
    settle()
    refresh(make_recipe(folder, shards=3))
    read = read_files(monkeypatch)
    refresh(make_recipe(folder, shards=3))
    assert read == []
    write_jsonl(folder / "source/2.jsonl", ["gong gong gong"])
    settle()
    refresh(make_recipe(folder, shards=3))
    assert read == ["2.jsonl", "2.jsonl"]  # once by the scan, once for the new document
    os.utime(folder / "source/3.jsonl")
    settle()
    refresh(make_recipe(folder, shards=3))
    assert read[2:] == ["3.jsonl"]
    assert plan_of(make_recipe(folder, shards=3)).is_fresh
    scan_module.scan(
        make_recipe(folder, shards=3),
        layout_of(make_recipe(folder)),
        scan_module.list_source(make_recipe(folder), layout_of(make_recipe(folder))),
        rescan=True,
    )
    assert sorted(read[3:]) == [f"{number}.jsonl" for number in range(6)]


def test_an_edit_that_keeps_size_and_time_is_seen_while_the_file_is_young(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", ["tuba"])
    refresh(make_recipe(folder))
    before = (folder / "source/x.jsonl").stat()
    write_jsonl(folder / "source/x.jsonl", ["gong"])
    os.utime(folder / "source/x.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    refresh(make_recipe(folder))
    assert all_documents(folder / "out") == [[28]]


def test_renaming_in_place_splitting_and_recompressing_change_no_shard(folder: Path) -> None:
    import gzip

    texts = [f"{a} {b}" for a in WORDS for b in WORDS]
    write_jsonl(folder / "source/b.jsonl", texts)
    first = refresh(make_recipe(folder, shards=4))
    before = payloads(folder)
    (folder / "source/b.jsonl").rename(folder / "source/c.jsonl")
    assert refresh(make_recipe(folder, shards=4)).id == first.id
    write_jsonl(folder / "source/c.jsonl", texts[:30])
    write_jsonl(folder / "source/d.jsonl", texts[30:])
    assert refresh(make_recipe(folder, shards=4)).id == first.id
    (folder / "source/d.jsonl.gz").write_bytes(gzip.compress((folder / "source/d.jsonl").read_bytes()))
    (folder / "source/d.jsonl").unlink()
    assert refresh(make_recipe(folder, shards=4)).id == first.id
    assert new_payloads(folder, before) == {}


def test_other_numbers_of_shards_tokenize_nothing(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", [f"{a} {b}" for a in WORDS for b in WORDS] * 2)
    first = refresh(make_recipe(folder, shards=8))
    refresh(make_recipe(folder, shards=5))
    tokens = receipts(folder, shards=5)["tokenized_partitions"]
    assert [receipt.tokenized for receipt in tokens] == [0] * 5
    assert sum(receipt.reused for receipt in tokens) == 128
    before = payloads(folder)
    assert refresh(make_recipe(folder, shards=8)).id == first.id
    assert new_payloads(folder, before) == {}


def test_putting_the_source_back_makes_nothing(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(make_recipe(folder, shards=3))
    write_jsonl(folder / "source/x.jsonl", WORDS[:5])
    refresh(make_recipe(folder, shards=3))
    before = payloads(folder)
    write_jsonl(folder / "source/x.jsonl", WORDS)
    assert refresh(make_recipe(folder, shards=3)).id == first.id
    assert new_payloads(folder, before) == {}
    assert sorted(all_documents(folder / "out")) == [[21 + at] for at in range(8)]


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"tokenizer__add_eos": True, "tokenizer__eos_token": "<fin>"}, STAGES[1:]),
        ({"tokens_per_shard": 3}, STAGES[2:]),
        ({"dataset__data_type": "int64"}, STAGES[2:]),
        ({"dataset__field": "other"}, STAGES),
        ({"dataset__keep_columns": ["other"]}, STAGES),
        ({"loading_workers": 1, "tokenize_workers": 1, "saving_workers": 1}, ()),
    ],
)
def test_a_changed_option_makes_the_stages_that_depend_on_it(
    folder: Path, change: dict[str, Any], stages: tuple[str, ...]
) -> None:
    rows = [{"text": f"{a} {b}", "other": f"{b} {a}"} for a in WORDS for b in WORDS]
    (folder / "source").mkdir()
    (folder / "source/x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refresh(make_recipe(folder, shards=2))
    before = payloads(folder)
    plan = plan_of(make_recipe(folder, shards=2, **change))
    refresh(make_recipe(folder, shards=2, **change))
    assert new_payloads(folder, before) == dict.fromkeys(stages, 2)
    stale = {entry.stage for entry in plan.stale}
    assert stale == {*stages, *(["dataset_manifest"] if stages else [])}


def digest_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize("shard_by", ["document", "file"])
def test_excluded_digests_leave_the_documents_out_and_change_their_shards_alone(folder: Path, shard_by: str) -> None:
    texts = [f"{a} {b}" for a in WORDS for b in WORDS]
    for number in range(4):
        write_jsonl(folder / f"source/{number}.jsonl", texts[number::4])
    options: dict[str, Any] = {"shards": 8, "dataset__shard_by": shard_by}
    refresh(make_recipe(folder, **options))
    before = payloads(folder)
    (folder / "exclude.txt").write_text(digest_of(texts[7]) + "\n\n" + digest_of(texts[9]).upper() + "\r\n")
    publication = refresh(make_recipe(folder, dataset__exclude="exclude.txt", **options))
    ids = [[21 + WORDS.index(word) for word in text.split()] for at, text in enumerate(texts) if at not in (7, 9)]
    assert sorted(all_documents(folder / "out")) == sorted(ids)
    assert publication.left_out == {"excluded": 2}
    made = new_payloads(folder, before)
    assert made["memmap_shards"] <= 2 and made["tokenized_partitions"] <= 2


def test_excluded_keys_leave_the_rows_with_these_values_out(folder: Path) -> None:
    rows = [{"text": word, "url": f"http://{at % 3}"} for at, word in enumerate(WORDS)]
    (folder / "source").mkdir()
    (folder / "source/x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "urls").write_text("http://1\nhttp://unknown")
    refresh(make_recipe(folder, dataset__exclude="urls", dataset__exclude_column="url"))
    assert all_documents(folder / "out") == [[21 + at] for at in range(8) if at % 3 != 1]


def test_a_refresh_killed_at_any_file_operation_is_finished_by_the_same_command(folder: Path) -> None:
    texts = [f"{a} {b}" for a in WORDS[:4] for b in WORDS]
    write_jsonl(folder / "source/a.jsonl", texts[:16])
    write_jsonl(folder / "source/b.jsonl", texts[16:])
    recipe = make_recipe(folder, shards=4)
    refresh(recipe)
    old = bytes_of_version(folder / "out")
    write_jsonl(folder / "source/b.jsonl", [*texts[17:], "gong gong gong"])
    scratch = refresh(make_recipe(folder, shards=4, output_path="scratch"))
    new = bytes_of_version(folder / "scratch")
    finished: dict[str, int] = {}
    for _ in every_crash(lambda: refresh(recipe)):
        assert bytes_of_version(folder / "out") in (old, new)
        assert finished.items() <= payloads(folder).items()
        finished = payloads(folder)
    assert bytes_of_version(folder / "out") == new
    assert (folder / "out/latest").resolve().name == scratch.id
    assert make_plan(open_build(recipe)).is_fresh


def test_a_pinned_version_stays_readable_through_later_refreshes(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    publications: list[Publication] = []
    for count in (8, 6):
        write_jsonl(folder / "source/x.jsonl", WORDS[:count])
        publications.append(refresh(make_recipe(folder, shards=2)))
    first, second = (published(folder / "out/versions" / publication.id) for publication in publications)
    assert sum(map(len, first.values())) == 8
    assert sum(map(len, second.values())) == 6


@pytest.mark.parametrize("shard_by", ["document", "file"])
@pytest.mark.parametrize(
    "change",
    [{"dataset__field": "other"}, {"dataset__exclude_column": "other"}, {"dataset__on_bad_row": "error"}],
    ids=lambda change: next(iter(change)),
)
def test_every_option_that_decides_documents_is_asked_in_both_modes(
    folder: Path, shard_by: str, change: dict[str, Any]
) -> None:
    rows = [{"text": "violin", "other": "cello"}, {"text": "oboe", "other": "tuba"}]
    (folder / "source").mkdir()
    (folder / "source/x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "nonsense\n")
    (folder / "list").write_text("oboe\ncello\n")
    options: dict[str, Any] = {
        "dataset__shard_by": shard_by,
        "dataset__on_bad_row": "skip",
        "dataset__exclude": "list",
        "dataset__exclude_column": "text",
    }
    refresh(make_recipe(folder, **options))
    assert all_documents(folder / "out") == [[21]]
    options |= change
    if "dataset__on_bad_row" in change:
        with pytest.raises(SourceError, match="line 3"):
            refresh(make_recipe(folder, **options))
    else:
        refresh(make_recipe(folder, **options))
        expected = {"dataset__field": [[22]], "dataset__exclude_column": [[23]]}[next(iter(change))]
        assert all_documents(folder / "out") == expected


def test_another_version_of_the_code_copies_no_tokens_of_the_former(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, keep="none"))
    monkeypatch.setitem(CODE_VERSIONS, "tokenized_partitions", "next")
    refresh(make_recipe(folder))
    assert [receipt.tokenized for receipt in receipts(folder)["tokenized_partitions"]] == [8]


@pytest.mark.parametrize("stage", STAGES)
def test_a_code_change_that_gives_the_same_content_stops_where_it_stops_mattering(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(make_recipe(folder, shards=2))
    before = payloads(folder)
    monkeypatch.setitem(CODE_VERSIONS, stage, "next")
    assert refresh(make_recipe(folder, shards=2)).id == first.id
    assert new_payloads(folder, before) == {stage: 2}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["files/*.arrow", "????????????????????????????????.json", "current", "identities.json"]
)
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_damage_to_the_index_is_healed_by_the_same_command(
    folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    for number in range(3):
        write_jsonl(folder / f"source/{number}.jsonl", [f"{word} {WORDS[number]}" for word in WORDS])
    settle()
    refresh(make_recipe(folder, shards=2))
    for path in list((folder / "out/.prep_assets/index").glob(name)):
        damage(path)
    write_jsonl(folder / "source/1.jsonl", ["gong gong gong"])
    publication = refresh(make_recipe(folder, shards=2))
    assert refresh(make_recipe(folder, shards=2, output_path="scratch")).id == publication.id


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.chmod(0o644) or path.write_bytes(b"")])
def test_a_payload_whose_receipt_is_damaged_is_made_again(
    folder: Path, stage: str, damage: Callable[[Path], None]
) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder, shards=2)
    first = refresh(recipe)
    [damaged] = (folder / "out/.prep_assets" / stage / "00001").glob("*/receipt.json")
    damage(damaged)
    with suppress(DamagedFileError):  # of a receipt that still reads as one: what it says is found wrong, and put away
        refresh(recipe)
    assert refresh(recipe).id == first.id
    assert damaged.exists() and json.loads(damaged.read_bytes())["stage"] == stage


def test_a_damaged_published_pair_only_costs_tokenizing_again(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder, keep="none")
    refresh(recipe)
    flip((folder / "out/shard_0_0.bin").resolve())
    write_jsonl(folder / "source/x.jsonl", [*WORDS, "gong gong"])
    refresh(recipe)
    assert all_documents(folder / "out") == [*([21 + at] for at in range(8)), [28, 28]]


def test_a_damaged_former_token_partition_leaves_the_raw_one_alone(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    refresh(recipe)
    [tokens] = (folder / "out/.prep_assets/tokenized_partitions").rglob("tokens.arrow")
    [raw] = (folder / "out/.prep_assets/raw_dataset").rglob("documents.arrow")
    tokens.chmod(0o644)
    tokens.write_bytes(tokens.read_bytes().replace(b"\x15\0\x16\0", b"\x15\0\x17\0"))  # the ids 21, 22
    write_jsonl(folder / "source/x.jsonl", [*WORDS, "gong gong"])
    refresh(recipe)
    assert raw.exists() and not tokens.exists()
    assert all_documents(folder / "out")[-1] == [28, 28]


def test_an_exclusion_list_that_changes_during_a_run_is_refused(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    (folder / "list").write_text(digest_of("gong"))
    recipe = make_recipe(folder, dataset__exclude="list", dataset__shard_by="file")
    build = open_build(recipe)
    (folder / "list").write_text(digest_of("tuba"))
    with pytest.raises(NotReadyError, match="list: changed since the source was scanned"):
        list(make_raw_partitions(build, [0]))


def test_a_scan_that_ends_at_a_bad_row_does_not_read_the_others_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        write_jsonl(folder / f"source/{number}.jsonl", WORDS)
    (folder / "source/9.jsonl").write_text("nonsense\n")
    settle()
    recipe = make_recipe(folder, loading_workers=1)
    read = read_files(monkeypatch)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"9\.jsonl"):
            open_build(recipe)
    assert read == ["0.jsonl", "1.jsonl", "2.jsonl", "3.jsonl", "9.jsonl", "9.jsonl"]


def test_a_look_at_the_plan_leaves_a_run_at_work_alone(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe, layout = make_recipe(folder), layout_of(make_recipe(folder))
    build = open_build(recipe)
    write_jsonl(folder / "source/x.jsonl", WORDS[:3])
    looked = scan_module.scan(recipe, layout, scan_module.list_source(recipe, layout), make_current=False)
    assert looked.id != build.index.id
    build.refuse_overtaken()
