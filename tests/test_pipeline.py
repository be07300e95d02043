"""The four stages over real files and a real tokenizer, without Dagster."""

import gzip
import json
import re
from collections.abc import Callable
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from prep_assets.errors import DamagedFileError, NotReadyError, RecipeError, SourceError, StorageError
from prep_assets.formats.publications import read_publications
from prep_assets.plan import make_plan
from prep_assets.recipe import EXAMPLE
from prep_assets.stages.dataset_manifest import publish
from prep_assets.stages.memmap_shards import make_memmap_shards
from prep_assets.stages.raw_dataset import make_raw_partitions
from prep_assets.stages.tokenized_partitions import make_token_partitions
from prep_assets.verify import verify
from prep_assets.workspace import running
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
from tests.reader import read_pair


def shard_by_hand(text: str, shards: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest()[:8], "big") % shards


def test_one_shard_keeps_the_sources_order(folder: Path) -> None:
    write_jsonl(folder / "source/part-10.jsonl", ["gong", "drum"])
    write_jsonl(folder / "source/part-9.jsonl", ["violin cello", "oboe"])
    refresh(make_recipe(folder))
    assert published(folder / "out") == {"shard_0_0": [[21, 22], [23], [28], [27]]}


def test_a_documents_own_text_decides_its_shard(folder: Path) -> None:
    texts = [f"{a} {b}" for a in WORDS for b in WORDS]
    write_jsonl(folder / "source/x.jsonl", texts)
    refresh(make_recipe(folder, shards=3))
    ids = {text: [21 + WORDS.index(word) for word in text.split()] for text in texts}
    expected = {
        f"shard_{shard}_0": [ids[text] for text in texts if shard_by_hand(text, 3) == shard] for shard in range(3)
    }
    assert published(folder / "out") == expected


@pytest.mark.parametrize("shards", [1, 8])
def test_the_example_is_published_token_for_token(tmp_path: Path, shards: int) -> None:
    recipe = make_recipe(
        EXAMPLE.parent, output_path=str(tmp_path / "out"), shards=shards, tokenizer__add_eos=True, dataset__field="text"
    )
    refresh(recipe)
    reference = tokenizers.Tokenizer.from_file(str(EXAMPLE.parent / "tokenizer.json"))
    config = json.loads((EXAMPLE.parent / "tokenizer_config.json").read_text())
    end = reference.token_to_id(config["eos_token"])
    files = sorted(EXAMPLE.parent.glob("source/*.gz"))
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).decode().split("\n")[:-1]]
    texts = [json.loads(line)["text"] for line in lines]
    expected = sorted([*reference.encode(text).ids, end] for text in texts)
    assert sorted(all_documents(tmp_path / "out")) == expected
    assert len(published(tmp_path / "out")) == shards


def test_nulls_and_texts_without_ids_are_left_out_and_counted(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", ["", None, "tuba", " ", "lute drum", None])
    publication = refresh(make_recipe(folder, tokenizer__add_eos=True, tokenizer__eos_token="<fin>"))
    assert all_documents(folder / "out") == [[25, 29], [26, 27, 29]]
    assert publication.left_out == {"null": 2, "no tokens": 2}


def test_bad_rows_are_left_out_and_listed_when_the_recipe_says_so(folder: Path) -> None:
    (folder / "source").mkdir()
    (folder / "source/x.jsonl").write_bytes(b'{"text": "tuba"}\n{"text": 3}\nnonsense\n{"text": "gong"}\n')
    with pytest.raises(SourceError, match=r"x\.jsonl.*line 2"):
        refresh(make_recipe(folder))
    publication = refresh(make_recipe(folder, dataset__on_bad_row="skip"))
    assert all_documents(folder / "out") == [[25], [28]]
    assert publication.left_out["bad"] == 2
    [file] = open_build(make_recipe(folder, dataset__on_bad_row="skip")).index.files
    assert [row for row, _ in file.bad_rows] == [1, 2]


def test_an_empty_shard_is_made_and_left_out_of_the_manifest(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", ["violin gong drum"])
    refresh(make_recipe(folder, shards=3))
    assert list(published(folder / "out").values()) == [[[21, 28, 27]]]
    assert plan_of(make_recipe(folder, shards=3)).is_fresh


def test_a_source_without_a_token_is_refused_and_the_former_version_stays(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", ["violin"])
    refresh(make_recipe(folder))
    write_jsonl(folder / "source/x.jsonl", ["", " "])
    with pytest.raises(SourceError, match="not one token"):
        refresh(make_recipe(folder))
    write_jsonl(folder / "source/x.jsonl", [None])
    with pytest.raises(SourceError, match="no documents"):
        refresh(make_recipe(folder))
    assert all_documents(folder / "out") == [[21]]


def test_pieces_hold_at_most_so_many_tokens_and_a_longer_document_stands_alone(folder: Path) -> None:
    texts = ["violin", "cello oboe", "harp", "tuba " * 7, "lute", "drum gong violin"]
    write_jsonl(folder / "source/x.jsonl", texts)
    refresh(make_recipe(folder, tokens_per_shard=4))
    assert published(folder / "out") == {
        "shard_0_0": [[21], [22, 23], [24]],
        "shard_0_1": [[25] * 7],
        "shard_0_2": [[26], [27, 28, 21]],
    }


@pytest.mark.parametrize("shard_by", ["document", "file"])
def test_the_sidecar_says_what_each_document_is(folder: Path, shard_by: str) -> None:
    rows = [{"text": "violin cello", "url": "a"}, {"text": ""}, {"text": "gong", "url": None}, {"text": "é", "url": 3}]
    (folder / "source").mkdir()
    (folder / "source/x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refresh(make_recipe(folder, dataset__keep_columns=["url"], dataset__shard_by=shard_by))
    table = pq.read_table(folder / "out/shard_0_0.docs.parquet").to_pydict()
    assert table["position"] == [0, 1, 2]
    assert table["digest"] == [
        blake2b(text.encode(), digest_size=16).digest() for text in ("violin cello", "gong", "é")
    ]
    assert (table["tokens"], table["characters"], table["url"]) == ([2, 1, 1], [12, 4, 1], ["a", None, "3"])


def test_shard_by_file_keeps_a_files_documents_together(folder: Path) -> None:
    for number in range(12):
        write_jsonl(folder / f"source/{number}.jsonl", [f"{WORDS[number % 8]} gong", WORDS[number % 8]])
    refresh(make_recipe(folder, shards=4, dataset__shard_by="file"))
    expected: dict[str, list[list[int]]] = {}
    for number in range(12):
        shard = shard_by_hand(f"{number}.jsonl", 4)
        expected.setdefault(f"shard_{shard}_0", []).extend([[21 + number % 8, 28], [21 + number % 8]])
    assert published(folder / "out") == dict(sorted(expected.items()))


def test_a_forced_type_is_used_and_one_too_narrow_refused(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", ["gong"])
    refresh(make_recipe(folder, dataset__data_type="int64"))
    assert read_pair(folder / "out/shard_0_0")[0].dtype == np.dtype("<i8")
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.add_tokens([f"t{n}" for n in range(300)])
    reference.save(str(folder / "tokenizer.json"))
    with pytest.raises(RecipeError, match="uint8, which ends at 255"):
        refresh(make_recipe(folder, dataset__data_type="uint8"))


def test_special_text_can_be_an_error(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", ["gong", "violin <fin> cello"])
    for _ in range(2):  # also after a build that accepted it
        with pytest.raises(SourceError, match=r"x\.jsonl, row 1 .*'<fin>'"):
            refresh(make_recipe(folder, tokenizer__special_tokens_in_text="error"))
        refresh(make_recipe(folder))
    assert all_documents(folder / "out") == [[28], [21, 29, 22]]


def stats(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file but those of the scan, which reads a file as young as this source again."""
    caches = {"locks", "files", "identities.json"}
    paths = [path for path in folder.rglob("*") if path.is_file() and not caches.intersection(path.parts)]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def test_a_second_run_writes_nothing(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, shards=3))
    before = stats(folder / "out")
    refresh(make_recipe(folder, shards=3))
    assert stats(folder / "out") == before


def test_workers_and_whitespace_of_the_tokenizer_change_nothing(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(make_recipe(folder, shards=2))
    meaning = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(meaning, indent=4))
    assert plan_of(make_recipe(folder, shards=2, loading_workers=1, tokenize_workers=1)).is_fresh
    assert refresh(make_recipe(folder, shards=2)) == first


def test_another_number_of_shards_replaces_every_name(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, shards=6))
    refresh(make_recipe(folder, shards=3))
    assert sorted(all_documents(folder / "out")) == [[21 + at] for at in range(8)]
    names = {path.stem for path in (folder / "out").glob("*.idx")}
    assert names == set(published(folder / "out"))


def test_a_lost_manifest_is_published_again_with_the_same_bytes(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, shards=3))
    manifest = (folder / "out/fast_llm_dataset.json").read_bytes()
    (folder / "out/fast_llm_dataset.json").unlink()
    plan = plan_of(make_recipe(folder, shards=3))
    assert [(stale.stage, stale.reason) for stale in plan.stale] == [("dataset_manifest", "not published")]
    refresh(make_recipe(folder, shards=3))
    assert (folder / "out/fast_llm_dataset.json").read_bytes() == manifest


def test_a_published_pair_of_another_size_is_noticed_and_made_again(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, shards=2))
    before = bytes_of_version(folder / "out")
    path = (folder / "out/shard_1_0.bin").resolve()
    path.chmod(0o644)
    with path.open("ab") as stream:
        stream.write(b"\0" * 4)
    assert [stale.stage for stale in plan_of(make_recipe(folder, shards=2)).stale] == [
        "memmap_shards",
        "dataset_manifest",
    ]
    refresh(make_recipe(folder, shards=2))
    assert bytes_of_version(folder / "out") == before
    assert list(verify(folder / "out")) == []


@pytest.mark.parametrize("stage", ["raw_dataset", "tokenized_partitions", "memmap_shards"])
def test_a_damaged_payload_is_refused_put_away_and_made_again(folder: Path, stage: str) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS * 50)
    recipe = make_recipe(folder)
    with running(layout_of(recipe)):
        build = open_build(recipe)
        steps = {
            "raw_dataset": lambda: list(make_raw_partitions(build, [0])),
            "tokenized_partitions": lambda: list(make_token_partitions(build, [0])),
            "memmap_shards": lambda: list(make_memmap_shards(build, [0])),
            "manifest": lambda: publish(build),
        }
        names = list(steps)
        for name in names[: names.index(stage) + 1]:
            steps[name]()
        [damaged] = [
            path
            for path in (folder / "out/.prep_assets" / stage).rglob("*")
            if path.name in ("documents.arrow", "tokens.arrow", "shard_0_0.bin")
        ]
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.chmod(0o644)
        damaged.write_bytes(content)
        with pytest.raises(DamagedFileError, match=damaged.name):
            steps[names[names.index(stage) + 1]]()
        assert not damaged.exists()
    refresh(recipe)
    assert all_documents(folder / "out") == [[21 + at] for at in range(8)] * 50


def test_the_manifest_names_the_shards_that_are_missing(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder, shards=3)
    with running(layout_of(recipe)):
        build = open_build(recipe)
        list(make_raw_partitions(build, [0, 2]))
        for shard in (0, 2):
            list(make_token_partitions(build, [shard]))
            list(make_memmap_shards(build, [shard]))
        with pytest.raises(NotReadyError, match=r"1 of 3 shards: 00001;.*prep-assets prepare"):
            publish(build)
    assert not (folder / "out/fast_llm_dataset.json").exists()


def test_a_run_must_not_overtake_a_newer_scan(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    with running(layout_of(recipe)):
        old = open_build(recipe)
    write_jsonl(folder / "source/x.jsonl", WORDS[:3])
    refresh(recipe)
    with pytest.raises(NotReadyError, match="newer"):
        publish(old)
    with pytest.raises(NotReadyError, match="newer"):
        list(make_raw_partitions(old, [0]))


def test_a_source_that_changes_during_a_run_is_named(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder)
    with running(layout_of(recipe)):
        build = open_build(recipe)
        write_jsonl(folder / "source/x.jsonl", [*WORDS[:3], "harp harp", *WORDS[4:]])
        with pytest.raises(SourceError, match=r"x\.jsonl: changed since it was scanned"):
            list(make_raw_partitions(build, [0]))
        (folder / "source/x.jsonl").rename(folder / "source/y.jsonl")
        with pytest.raises(SourceError, match=r"x\.jsonl: gone from the source since it was scanned"):
            list(make_raw_partitions(build, [0]))


def test_files_that_are_not_ours_are_refused_and_stay(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    (folder / "out").mkdir()
    (folder / "out/shard_0_0.bin").write_bytes(b"theirs")
    (folder / "out/cache").mkdir()
    with pytest.raises(StorageError, match=r"shard_0_0\.bin: not a link of prep-assets"):
        refresh(make_recipe(folder))
    assert (folder / "out/shard_0_0.bin").read_bytes() == b"theirs"
    (folder / "out/shard_0_0.bin").unlink()
    refresh(make_recipe(folder))
    assert (folder / "out/cache").is_dir()


def test_a_work_folder_serves_one_output(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, work_path="work"))
    with pytest.raises(StorageError, match="belongs to the dataset at"):
        refresh(make_recipe(folder, work_path="work", output_path="other"))
    with pytest.raises(StorageError, match="not made by prep-assets"):
        refresh(make_recipe(folder, work_path="source", output_path="other"))


def test_moving_output_and_work_together_keeps_them_ours(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    first = refresh(make_recipe(folder))
    (folder / "out").rename(folder / "moved")
    assert refresh(make_recipe(folder, output_path="moved")) == first


@pytest.mark.parametrize("shard_by", ["document", "file"])
def test_killed_at_any_file_operation_the_same_command_finishes_with_the_same_bytes(
    folder: Path, shard_by: str
) -> None:
    for number in range(3):
        write_jsonl(folder / f"source/{number}.jsonl", [f"{word} {WORDS[number]}" for word in WORDS])
    options = {"shards": 2, "tokens_per_shard": 9, "dataset__shard_by": shard_by}
    undisturbed = make_recipe(folder, output_path="undisturbed", **options)
    refresh(undisturbed)
    recipe = make_recipe(folder, **options)
    former: dict[str, int] = {}
    for _ in every_crash(lambda: refresh(recipe)):
        if (folder / "out/latest").exists():  # a reader at this moment sees a whole version
            assert list(verify(folder / "out")) == []
        payloads = {
            str(path): path.stat().st_ino
            for path in (folder / "out/.prep_assets").glob("*/0*/*/receipt.json")
            if not path.parent.name.startswith(".")
        }
        assert former.items() <= payloads.items()  # what was finished is not done again
        former = payloads
    assert bytes_of_version(folder / "out") == bytes_of_version(folder / "undisturbed")
    assert make_plan(open_build(recipe)).is_fresh


def test_a_version_that_changes_while_it_is_read_is_seen_whole(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    recipe = make_recipe(folder, shards=2)
    refresh(recipe)
    old = published(folder / "out")
    write_jsonl(folder / "source/x.jsonl", WORDS[:4])
    for _ in every_crash(lambda: refresh(recipe)):
        assert list(verify(folder / "out")) == []
        now = published((folder / "out/latest").resolve())
        assert now == old or sorted(chain(*now.values())) == [[21], [22], [23], [24]]
    assert sorted(all_documents(folder / "out")) == [[21], [22], [23], [24]]
    assert [version.documents for version in read_publications(layout_of(recipe).publications).versions] == [8, 4]


def damage_bin(output: Path) -> str:
    path = (output / "shard_0_0.bin").resolve()
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    return r"shard_0_0\.bin: its bytes have the digest"


def truncate_bin(output: Path) -> str:
    path = (output / "shard_0_0.bin").resolve()
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    return r"shard_0_0\.bin: \d+ bytes; expected \d+"


def swap_pairs(output: Path) -> str:
    folder = (output / "latest").resolve()
    for suffix in ("bin", "idx"):
        (folder / f"shard_0_0.{suffix}").rename(folder / "x")
        (folder / f"shard_1_0.{suffix}").rename(folder / f"shard_0_0.{suffix}")
        (folder / "x").rename(folder / f"shard_1_0.{suffix}")
    return r"shard_0_0\.bin: .*expected"


def remove_pair(output: Path) -> str:
    (output / "shard_1_0.idx").resolve().unlink()
    return r"shard_1_0\.idx: missing"


def change_manifest(output: Path) -> str:
    path = (output / "fast_llm_dataset.json").resolve()
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"shard_0_0", b"shard_9_0"))
    return r"fast_llm_dataset\.json: not what version"


def damage_sidecar(output: Path) -> str:
    path = (output / "shard_0_0.docs.parquet").resolve()
    table = pq.read_table(path).to_pydict()
    table["tokens"][0] += 1
    schema = pq.read_schema(path)
    path.chmod(0o644)
    pq.write_table(pa.table(table, schema), path)
    return r"shard_0_0\.docs\.parquet: its columns have the digest"


@pytest.mark.parametrize("damage", [damage_bin, truncate_bin, swap_pairs, remove_pair, change_manifest, damage_sidecar])
def test_verify_names_what_is_damaged(folder: Path, damage: Callable[[Path], str]) -> None:
    write_jsonl(folder / "source/x.jsonl", [f"{a} {b}" for a in WORDS for b in WORDS])
    refresh(make_recipe(folder, shards=2))
    assert list(verify(folder / "out")) == list(verify((folder / "out/latest").resolve())) == []
    expected = damage(folder / "out")
    assert re.search(expected, "\n".join(verify(folder / "out")))


def test_the_version_is_the_same_on_every_machine_and_in_steps(folder: Path, tmp_path: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder, shards=2))
    write_jsonl(folder / "source/x.jsonl", [*WORDS, "gong gong"])
    stepwise = refresh(make_recipe(folder, shards=2))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    save_word_tokenizer(elsewhere / "tokenizer.json")
    write_jsonl(elsewhere / "source/other.jsonl", [*WORDS, "gong gong"])
    at_once = refresh(make_recipe(elsewhere, shards=2))
    assert at_once.id == stepwise.id
    assert bytes_of_version(elsewhere / "out") == bytes_of_version(folder / "out")


def test_megatrons_data_args_are_weights_and_pinned_prefixes(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    publication = refresh(make_recipe(folder, shards=2))
    words = (folder / "out/megatron_data_args.txt").read_text().split()
    assert [float(word) for word in words[::2]] == [
        entry["weight"] for entry in json.loads((folder / "out/fast_llm_dataset.json").read_text())["datasets"]
    ]
    assert words[1::2] == [
        str(folder / f"out/versions/{publication.id}/{prefix}") for prefix in published(folder / "out")
    ]


def test_the_manifest_is_written_as_json_dump_with_indent_4(folder: Path) -> None:
    write_jsonl(folder / "source/x.jsonl", WORDS)
    refresh(make_recipe(folder))
    entry = {"prefix": "shard_0_0", "num_documents": 8, "num_tokens": 8, "weight": 1.0}
    assert (folder / "out/fast_llm_dataset.json").read_text() == json.dumps({"datasets": [entry]}, indent=4)
