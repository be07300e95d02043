"""The command line as a person or a script meets it: its own process, the disk, the exit code, each line it prints."""

import gzip
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tokenizers import Tokenizer

import prep_assets
from prep_assets import cli
from prep_assets.payload import lock
from prep_assets.recipe import EXAMPLE
from tests.hub_server import serve
from tests.pipeline import (
    WORDS,
    all_documents,
    bytes_of_version,
    layout_of,
    make_recipe,
    published,
    refresh,
    save_word_tokenizer,
    write_jsonl,
)
from tests.reader import read_pair

NUM_DOCUMENTS = 10_000
SEVEN_KEYS = """\
output_path: {folder}/foo
loading_workers: 4
tokenize_workers: 4
saving_workers: 4
dataset:
  name_or_path: {folder}/source
tokenizer:
  path: {folder}/SmolLM-135M/tokenizer.json
"""
NO_END_TOKEN = (
    "warning: no document ends with an end token;"
    " trainers that mask or reset at it need one (tokenizer.add_eos: true)\n"
)
NO_RECIPE = "no recipe named: this is the packaged example; name yours with --config\n"
INTERRUPTED = "error: interrupted; the same command goes on where it stopped"

NAMES_ITS_MODULES = """
import sys
from prep_assets.cli import main
main()
print("modules:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""
DOES_NOT_WAIT = """
import time
time.sleep = lambda seconds: None  # between attempts to reach the hub
from prep_assets.cli import main
main()
"""
STOPS_AT = """
import os, sys, time
from prep_assets import cli, parallel, payload

descriptor, place = int(sys.argv.pop(1)), sys.argv.pop(1)

def wait_there(operation, path):
    if place in f"{operation} {path}":
        os.write(descriptor, b"!")
        for _ in range(600):  # in short naps: a signal may reach another thread, and this one then sleeps its nap out
            time.sleep(0.1)
            parallel.go_on()

payload.before_operation = wait_there
cli.main()
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what would choose a recipe, an output, a home or a hub."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PREP_ASSETS_", "DAGSTER_", "HF_"))
    }
    return kept | {"PYTHONPATH": str(Path(prep_assets.__file__).parents[1])} | changes


def command(*arguments: str | Path, cwd: Path, script: str | None = None, **changes: str) -> Done:
    """Runs `prep-assets`, or a script that calls its main, in a process of its own, its output in pipes."""
    start = ["-m", "prep_assets.cli"] if script is None else ["-c", script]
    done = subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        cwd=cwd,
        env=environment(**changes),
        umask=0o022,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


Main = Callable[..., Done]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Runs the same in this process: Dagster is imported already."""
    for name in [name for name in os.environ if name.startswith(("PREP_ASSETS_", "DAGSTER_"))]:
        monkeypatch.delenv(name)

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["prep-assets", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stopped:
            assert isinstance(stopped.code, int)
            code = stopped.code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Done(code, out, err)

    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Dagster home for tests that ask nothing of it: a new one costs seconds."""
    home = tmp_path_factory.mktemp("home")
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a tokenizer, a source of eight documents, and a recipe in which each can be replaced."""
    save_word_tokenizer(tmp_path / "tokenizer.json")
    write_jsonl(tmp_path / "source/x.jsonl", WORDS)
    write_recipe(tmp_path)
    return tmp_path


def write_recipe(folder: Path, **changes: Any) -> Path:
    """A recipe for folder/source and folder/tokenizer.json; dotted keys, as `a__b`, reach into its sections."""
    data: dict[str, Any] = {
        "output_path": "out",
        "dataset": {"name_or_path": "source"},
        "tokenizer": {"path": "tokenizer.json"},
    }
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (data[section] if section else data)[name] = value
    (folder / "recipe.yaml").write_text(yaml.safe_dump(data))
    return folder / "recipe.yaml"


def home_is_a_file(folder: Path) -> str:
    os.environ["DAGSTER_HOME"] = str(folder / "tokenizer.json")
    return f"{folder}/tokenizer.json: "


def home_of_nonsense(folder: Path) -> str:
    os.environ["DAGSTER_HOME"] = str(folder)
    (folder / "dagster.yaml").write_text("nonsense: 3\n")
    return f"{folder}: Dagster cannot open this home"


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of every file and link: what would show that it was written."""
    found = {str(path): path.lstat() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    return {path: (it.st_mode, it.st_ino, it.st_size, it.st_mtime_ns) for path, it in found.items()}


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return str(found.getsockname()[1])


def runs_of(home: Path) -> list[dg.DagsterRun]:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return list(instance.get_runs())


class Prepared(NamedTuple):
    folder: Path
    texts: list[str]
    done: Done

    @property
    def output(self) -> Path:
        return self.folder / "foo"


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The recipe of seven keys, prepared once, over Parquet files whose other columns do not agree."""
    folder = tmp_path_factory.mktemp("ten_thousand")
    tokenizer = folder / "SmolLM-135M/tokenizer.json"
    tokenizer.parent.mkdir()
    shutil.copy(EXAMPLE.parent / "tokenizer.json", tokenizer)
    files = sorted(EXAMPLE.parent.glob("source/*.gz"))
    lines = chain.from_iterable(gzip.decompress(file.read_bytes()).decode().splitlines() for file in files)
    book = "\n".join(json.loads(line)["text"] for line in lines)
    texts = [book[begin : begin + 150] for begin in range(0, 150 * NUM_DOCUMENTS, 150)]
    assert len(texts) == NUM_DOCUMENTS and all(text.strip() for text in texts)
    (folder / "source").mkdir()
    for name, begin, end, other in (("2", 0, 1, 1), ("9", 1, 7000, "a"), ("10", 7000, NUM_DOCUMENTS, [True])):
        table = pa.table({"other": [other] * (end - begin), "text": texts[begin:end]})
        pq.write_table(table, folder / f"source/part-{name}.parquet", row_group_size=1024)
    (folder / "recipe.yaml").write_text(SEVEN_KEYS.format(folder=folder))
    time.sleep(2.1)  # a file that was younger when it was read is read again
    return Prepared(folder, texts, command("prepare", "--config", folder / "recipe.yaml", cwd=folder))


@pytest.fixture(scope="module")
def expected(ten_thousand: Prepared) -> list[list[int]]:
    """The ids of each document for itself."""
    reference = Tokenizer.from_file(str(ten_thousand.folder / "SmolLM-135M/tokenizer.json"))
    return [reference.encode(text).ids for text in ten_thousand.texts]


def test_seven_keys_give_one_pair_of_all_ten_thousand_documents(
    ten_thousand: Prepared, expected: list[list[int]]
) -> None:
    assert ten_thousand.done.code == 0
    assert [ids.tolist() for ids in read_pair(ten_thousand.output / "shard_0_0")] == expected
    tokens = sum(map(len, expected))
    entry = {"prefix": "shard_0_0", "num_documents": NUM_DOCUMENTS, "num_tokens": tokens, "weight": 1.0}
    manifest = (ten_thousand.output / "fast_llm_dataset.json").read_text()
    assert manifest == json.dumps({"datasets": [entry]}, indent=4)
    assert {path.name for path in ten_thousand.output.glob("*.[bi][id][nx]")} == {"shard_0_0.bin", "shard_0_0.idx"}


def test_the_summary_says_what_was_made_and_names_first_and_last_ids(
    ten_thousand: Prepared, expected: list[list[int]]
) -> None:
    first, version, *documents = ten_thousand.done.out.splitlines()
    tokens = sum(map(len, expected))
    assert first.startswith(f"{ten_thousand.output}: 10,000 documents, {tokens:,} tokens (uint16) in 1 pair")
    assert str((ten_thousand.output / "latest").resolve()) in version
    names = Tokenizer.from_file(str(ten_thousand.folder / "SmolLM-135M/tokenizer.json")).id_to_token
    assert documents == [
        f"  document of {len(ids):,} tokens: first id {ids[0]} {names(ids[0])!r}, last id {ids[-1]} {names(ids[-1])!r}"
        for ids in expected[:3]
    ]
    assert ten_thousand.done.err == NO_END_TOKEN


def test_published_files_can_be_read_by_all_and_written_by_none(ten_thousand: Prepared) -> None:
    version = (ten_thousand.output / "latest").resolve()
    assert {stat.S_IMODE(path.stat().st_mode) for path in version.iterdir()} == {0o444}
    for folder in (version, version.parent, ten_thousand.output):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_second_prepare_does_nothing_writes_nothing_and_imports_no_dagster(ten_thousand: Prepared) -> None:
    before = state(ten_thousand.folder)
    recipe = ten_thousand.folder / "recipe.yaml"
    code, out, err = command("prepare", "--config", recipe, cwd=ten_thousand.folder, script=NAMES_ITS_MODULES)
    assert (code, out) == (0, f"nothing to do: {ten_thousand.output} is up to date; left out: nothing\n")
    assert state(ten_thousand.folder) == before
    modules = err.removeprefix("modules: ").split()
    assert "pyarrow" in modules and not {"dagster", "sqlalchemy", "datasets", "huggingface_hub"} & set(modules)


def test_verify_is_silent_about_a_sound_dataset_and_gives_a_line_for_each_fault(folder: Path, main: Main) -> None:
    write_jsonl(folder / "source/x.jsonl", [f"{a} {b}" for a in WORDS for b in WORDS])
    refresh(make_recipe(folder, shards=3))
    version = (folder / "out/latest").resolve()
    for path in (folder / "out", version):
        assert main("verify", path) == Done(0, f"{path}: sound\n", "")
    (version / "shard_2_0.idx").unlink()
    damaged = version / "shard_0_0.bin"
    damaged.chmod(0o644)
    damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
    code, out, err = main("verify", folder / "out")
    assert (code, err) == (1, "")
    first, second = out.splitlines()
    assert first.startswith(f"{damaged}: its bytes have the digest")
    assert second.startswith(f"{version / 'shard_2_0.idx'}: missing")
    assert main("verify", folder / "nowhere").code == 1


def test_without_a_recipe_the_example_is_prepared_where_one_stands_and_it_says_so(
    tmp_path: Path, home: Path, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    code, out, err = main("prepare")
    assert (code, err) == (0, NO_RECIPE)
    output = tmp_path / "output/example"
    assert out.startswith(f"{output}: 2,064 documents") and "<|end_of_text|>" in out
    assert list(published(output)) == [f"shard_{shard}_0" for shard in range(8)]
    assert {path.name for path in tmp_path.iterdir()} == {"output"}


def test_the_environment_names_recipe_and_output(
    folder: Path, home: Path, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("PREP_ASSETS_RECIPE", str(folder / "recipe.yaml"))
    monkeypatch.setenv("PREP_ASSETS_OUTPUT", str(folder / "elsewhere"))
    first = main("prepare")
    assert (first.code, first.err) == (0, NO_END_TOKEN)
    assert main("prepare") == Done(0, f"nothing to do: {folder}/elsewhere is up to date; left out: nothing\n", "")
    assert all_documents(folder / "elsewhere") == [[21 + at] for at in range(8)]
    assert not (folder / "out").exists()


def test_an_empty_variable_names_nothing(folder: Path, home: Path, main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("PREP_ASSETS_RECIPE", "")
    monkeypatch.setenv("PREP_ASSETS_OUTPUT", str(folder / "tokenizer.json"))  # refused before the example is read
    code, _, err = main("prepare")
    assert code == 5 and err.startswith(NO_RECIPE)
    monkeypatch.setenv("PREP_ASSETS_OUTPUT", "")
    assert main("prepare", "--config", folder / "recipe.yaml").code == 0
    assert len(all_documents(folder / "out")) == 8


Started = list[tuple[list[str], Path, dict[str, str]]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """What `ui` would turn this process into: its words, its folder, its environment."""
    found: Started = []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(os, "execv", lambda _, words: found.append((words, Path.cwd(), os.environ)))
    monkeypatch.chdir(tmp_path)
    return found


def test_two_recipes_prepared_in_turn_have_histories_of_their_own(folder: Path, main: Main, started: Started) -> None:
    for name in ("books", "news"):
        shutil.copytree(folder, folder / name, ignore=shutil.ignore_patterns("books", "news"))
        write_jsonl(folder / name / "source/x.jsonl", [name, *WORDS])
        assert main("prepare", "--config", folder / name / "recipe.yaml").code == 0
    for name in ("books", "news"):
        output = folder / name / "out"
        with dg.DagsterInstance.from_config(str(output / ".prep_assets/dagster")) as instance:
            [run] = instance.get_runs()
            assert (run.job_name, run.status) == ("refresh", dg.DagsterRunStatus.SUCCESS)
            [record] = instance.fetch_materializations(dg.AssetKey("dataset_manifest"), limit=9).records
            assert record.asset_materialization is not None
            assert record.asset_materialization.tags is not None
            version = record.asset_materialization.tags["dagster/data_version"]
            assert version == (output / "latest").readlink().name

    assert main("ui", "--config", "news/recipe.yaml", "--port", free_port()).code == 0
    [(words, cwd, variables)] = started
    assert cwd == Path(variables["DAGSTER_HOME"]) == folder / "news/out/.prep_assets/dagster"
    at = words.index("-m")
    assert words[0] == sys.executable and words[1:at:2] == ["-W"] and words[at + 1 : at + 4] == ["dagster", "dev", "-w"]
    assert Path(words[at + 4]) == Path(prep_assets.__file__).with_name("workspace.yaml")
    assert variables["PREP_ASSETS_RECIPE"] == str(folder / "news/recipe.yaml")


def test_the_packaged_workspace_is_the_repositorys() -> None:
    packaged = Path(prep_assets.__file__).with_name("workspace.yaml")
    assert packaged.read_bytes() == (packaged.parents[1] / "workspace.yaml").read_bytes()


def test_the_web_interface_on_a_port_in_use_is_exit_code_2(
    folder: Path, home: Path, main: Main, started: Started
) -> None:
    os.environ["DAGSTER_HOME"] = str(home)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = main("ui", "--config", folder / "recipe.yaml", "--port", port)
    assert (code, out, started) == (2, "", [])
    assert f"127.0.0.1:{port}: Address already in use; name another with --port" in err


@pytest.mark.parametrize("spoil", [home_is_a_file, home_of_nonsense])
def test_the_web_interface_of_a_home_that_cannot_be_opened_is_exit_code_5(
    folder: Path, main: Main, started: Started, spoil: Callable[[Path], str]
) -> None:
    message = spoil(folder)
    code, out, err = main("ui", "--config", folder / "recipe.yaml", "--port", free_port())
    assert (code, out, started) == (5, "", [])
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


def test_a_bad_row_is_exit_code_1_and_named(folder: Path) -> None:
    (folder / "source/x.jsonl").write_text('{"text": "tuba"}\n{"text": 3}\n')
    code, out, err = command("prepare", "--config", folder / "recipe.yaml", cwd=folder)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"error: \S+/source/x\.jsonl: line 2: column 'text' is not text but int; .*\n", err)
    assert not (folder / "out/latest").exists()


def test_a_wrong_recipe_is_exit_code_2_with_every_fault_answered(folder: Path, main: Main) -> None:
    changes = {"shardz": 3, "append_eod": True, "documents_per_shard": 5, "keep": "some", "tokenizer__add_eos": "yes"}
    recipe = write_recipe(folder, dataset__trust_remote_code=True, **changes)
    code, out, err = main("prepare", "--config", recipe)
    assert (code, out) == (2, "")
    answers = {
        "shardz": "did you mean shards?",
        "append_eod": "tokenizer.add_eos: true",
        "documents_per_shard": "use shards",
        "keep": "'all', 'tokens' or 'none'",
        "tokenizer.add_eos": "found 'yes'; expected a valid boolean",
        "dataset.trust_remote_code": "never run",
    }
    lines = err.removeprefix("error: ").splitlines()
    assert len(lines) == len(answers)
    for key, answer in answers.items():
        assert any(line.startswith(f"{recipe}: {key}: ") and answer in line for line in lines), key
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["prepar"], ["prepare", "--append-eod"], ["prepare", "recipe.yaml"], ["verify"]]
)
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str], main: Main) -> None:
    code, out, err = main(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: " in err


def test_a_tokenizer_without_the_needed_end_token_is_refused_before_anything_is_written(
    folder: Path, main: Main
) -> None:
    before = state(folder)
    for token, found in ((None, "none is named"), ("</s>", "'</s>' is not in its vocabulary")):
        recipe = write_recipe(folder, tokenizer__add_eos=True, tokenizer__eos_token=token)
        before[str(recipe)] = state(folder)[str(recipe)]
        code, out, err = main("prepare", "--config", recipe)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {folder}/tokenizer.json: tokenizer.eos_token: {found}")
        assert state(folder) == before


def test_while_another_prepare_holds_the_output_it_is_exit_code_4(folder: Path) -> None:
    with lock(layout_of(make_recipe(folder)).lock("prepare")):
        code, out, err = command("prepare", "--config", folder / "recipe.yaml", cwd=folder)
    assert (code, out) == (4, "")
    assert err == f"error: {folder}/out: another prepare is at work on this output; wait for it to end\n"


@pytest.mark.parametrize("size", ["4k", "500k"], ids=["before the scan", "in Dagster's history"])
def test_a_full_disk_is_exit_code_5(folder: Path, size: str) -> None:
    (folder / "out").mkdir()
    mount = f"mount -t tmpfs -o size={size} none {folder}/out"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]  # the mount is this process's and ends with it
    if not shutil.which("unshare") or subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    prepare = f"exec {sys.executable} -m prep_assets.cli prepare --config {folder}/recipe.yaml"
    done = subprocess.run(
        [*inside, f"{mount} && {prepare}"], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (5, "")
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and re.search("full|room|No space left", last)


def test_what_is_interrupted_is_exit_code_130_and_the_same_command_finishes(
    folder: Path, main: Main, request: pytest.FixtureRequest
) -> None:
    """While the source is read, and while shards are made."""
    write_recipe(folder, shards=3)
    finished: dict[str, int] = {}
    for place in ("index/current", "memmap_shards/00001/"):
        place = f"rename {folder}/out/.prep_assets/{place}"
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", STOPS_AT, str(write), place, "prepare", "--config", folder / "recipe.yaml"],
            env=environment(),
            pass_fds=[write],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write)
        assert os.read(read, 1) == b"!", process.communicate()[1]  # it is there
        os.close(read)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (130, "")
        assert err.strip() == INTERRUPTED
        assert not (folder / "out/latest").exists()
        payloads = {str(path): path.stat().st_ino for path in (folder / "out/.prep_assets").glob("*/0*/[!.]*")}
        assert finished.items() <= payloads.items()
        finished = payloads

    assert main("prepare", "--config", folder / "recipe.yaml").code == 0
    assert finished.items() <= {str(path): path.stat().st_ino for path in map(Path, finished)}.items()
    refresh(make_recipe(folder, shards=3, output_path="undisturbed"))
    assert bytes_of_version(folder / "out") == bytes_of_version(folder / "undisturbed")
    statuses = [run.status.value for run in runs_of(folder / "out/.prep_assets/dagster")]
    assert statuses == ["SUCCESS", "FAILURE"]


@pytest.fixture(scope="module")
def no_hub() -> Iterator[str]:
    """An address at which nothing listens, nor begins to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_dataset_and_tokenizer_are_taken_from_the_hub(folder: Path, home: Path) -> None:
    recipe = write_recipe(folder, dataset__name_or_path="owner/texts", tokenizer__path="owner/model")
    with serve() as hub:
        hub.dataset("owner/texts", {"train.jsonl": (folder / "source/x.jsonl").read_text()})
        hub.model("owner/model", {"tokenizer.json": (folder / "tokenizer.json").read_text()})
        settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(folder / "hf"), "DAGSTER_HOME": str(home)}
        done = command("prepare", "--config", recipe, cwd=folder, **settings)
        assert (done.code, done.err) == (0, NO_END_TOKEN)
        assert all_documents(folder / "out") == [[21 + at] for at in range(8)]


@pytest.mark.parametrize("key", ["dataset__name_or_path", "tokenizer__path"])
def test_without_a_network_a_name_on_the_hub_is_exit_code_5(folder: Path, no_hub: str, key: str) -> None:
    recipe = write_recipe(folder, **{key: "owner/name"})
    code, out, err = command("prepare", "--config", recipe, cwd=folder, script=DOES_NOT_WAIT, HF_ENDPOINT=no_hub)
    assert (code, out) == (5, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: ") and all(it in last for it in ("'owner/name'", no_hub, "network"))


def cut_short(folder: Path) -> str:
    (folder / "source/x.jsonl").unlink()
    pq.write_table(pa.table({"text": WORDS}), folder / "source/x.parquet")
    content = (folder / "source/x.parquet").read_bytes()
    (folder / "source/x.parquet").write_bytes(content[: len(content) // 2])
    return "x.parquet: damaged or cut short"


def no_files(folder: Path) -> str:
    (folder / "source/x.jsonl").unlink()
    return "source: no data files"


def no_documents(folder: Path) -> str:
    write_jsonl(folder / "source/x.jsonl", [None, None])
    return "no documents"


def not_a_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").write_bytes(b"\xff\xfe")
    return "tokenizer.json: not a tokenizer.json"


def special_text(folder: Path) -> str:
    """Found inside a step of the run."""
    write_jsonl(folder / "source/x.jsonl", [*WORDS, "tuba <fin>"])
    write_recipe(folder, tokenizer__special_tokens_in_text="error")
    return "holds '<fin>', a special token of the tokenizer"


def taken_name(folder: Path) -> str:
    (folder / "out/latest").mkdir(parents=True)
    return "out/latest: not a link of prep-assets"


def foreign_work_folder(folder: Path) -> str:
    write_recipe(folder, work_path="source")
    return "source: holds x.jsonl and was not made by prep-assets"


def output_below_a_file(folder: Path) -> str:
    write_recipe(folder, output_path="tokenizer.json/out")
    return "Not a directory"


@pytest.mark.parametrize(
    ("code", "spoil"),
    [
        (1, cut_short),
        (1, no_files),
        (1, no_documents),
        (1, special_text),
        (2, not_a_tokenizer),
        (5, taken_name),
        (5, foreign_work_folder),
        (5, output_below_a_file),
        (5, home_is_a_file),
        (5, home_of_nonsense),
    ],
)
def test_what_a_user_got_wrong_is_one_message(
    folder: Path,
    home: Path,
    main: Main,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    spoil: Callable[[Path], str],
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    message = spoil(folder)
    done = main("prepare", "--config", folder / "recipe.yaml")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert message in done.err


@pytest.mark.parametrize(
    ("code", "key", "message"),
    [
        (1, "dataset__name_or_path", "/nowhere: no such file or folder"),
        (1, "dataset__name_or_path", "/nowhere/*.jsonl: no such file or folder"),
        (2, "tokenizer__path", "/nowhere/tokenizer.json: missing"),
    ],
)
def test_what_is_missing_is_named(folder: Path, main: Main, code: int, key: str, message: str) -> None:
    recipe = write_recipe(folder, **{key: message.partition(":")[0]})
    done = main("prepare", "--config", recipe)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(f"error: {message}") and done.err.count("\n") == 1
    missing = main("prepare", "--config", folder / "nowhere.yaml")
    assert missing == Done(2, "", f"error: {folder}/nowhere.yaml: {missing.err.partition('nowhere.yaml: ')[2]}")
