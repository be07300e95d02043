"""Hub repositories, with the real client against a stand-in of the hub; the client runs in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hub_server import CONVERSION, Fault, HubServer, blob_hash, serve

ROOT = Path(__file__).parents[2]
CLIENT = """
import json, os, sys, time
from pathlib import Path
from prep_assets.errors import PrepAssetsError
from prep_assets.sources import hub, repository

assert "datasets" not in sys.modules and "huggingface_hub" not in sys.modules
slept, sleep = [], time.sleep
time.sleep = lambda seconds: (slept.append(seconds), sleep(min(seconds, 0.05)))
repository._timeout = lambda: 0.3
DEFAULTS = dict(config_name=None, revision=None, split="train", data_files=None)

def call(request):
    name, arguments = request.pop("call"), request
    arguments["downloads"] = Path(arguments["downloads"])
    os.environ["HF_TOKEN"] = arguments.pop("token", "")
    if name == "tokenizer":
        return {"root": str(hub.fetch_tokenizer(**{"revision": None} | arguments))}
    if name == "resolve":
        found = hub.resolve(**DEFAULTS | arguments)
        return {"commit": found.commit, "names": list(found.files), "notices": found.notices,
                "files": {name: [file.size, file.blob] for name, file in found.files.items()}}
    source = hub.fetch(**{"workers": 2} | DEFAULTS | arguments)
    return {"commit": source.revision, "notices": source.notices, "names": [file.name for file in source.files],
            "root": str(arguments["downloads"] / arguments["repo_id"].replace("/", "--") / source.revision)}

for line in sys.stdin:
    slept.clear()
    try:
        answer = call(json.loads(line))
    except PrepAssetsError as error:
        answer = {"error": type(error).__name__, "message": str(error), "cause": repr(error.__cause__)}
    print(json.dumps({"answer": answer, "slept": slept}), flush=True)
"""
ROWS = b'{"text": "one"}\n{"text": "two"}\n'
OTHER = b'{"text": "three"}\n'
BIG = os.urandom(3_000_000)  # no Parquet: nothing here opens it


class Client:
    """A process that does what it is asked, line by line."""

    def __init__(self, hub: HubServer, home: Path, **environment: str) -> None:
        names = ("HF_", "HUGGING", "TRANSFORMERS")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        settings = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home / "hf"), "HF_HUB_DOWNLOAD_TIMEOUT": "1",
                    "HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(ROOT)}  # fmt: skip
        self.slept: list[float] = []  # what the last call would have waited
        self.errors = (home / "stderr").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            env=clean | settings | environment, cwd=home, text=True,
        )  # fmt: skip

    def ask(self, call: str, **arguments: object) -> None:
        assert self.process.stdin
        print(json.dumps({"call": call, **arguments}), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = json.loads(self.process.stdout.readline())
        self.slept = line["slept"]
        return dict(line["answer"])

    def __call__(self, call: str, **arguments: object) -> dict[str, Any]:
        self.ask(call, **arguments)
        return self.answer()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream:
                stream.close()


@pytest.fixture(scope="module")
def server() -> Iterator[HubServer]:
    with serve() as hub:
        yield hub


@pytest.fixture(scope="module")
def shared(server: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(server, tmp_path_factory.mktemp("client"))
    yield client
    client.stop()


@pytest.fixture
def hub(server: HubServer) -> HubServer:
    """The stand-in, empty."""
    server.repositories.clear()
    server.requests.clear()
    server.faults.clear()
    server.paused.clear()
    server.page = 1000
    return server


@pytest.fixture
def client(hub: HubServer, shared: Client, tmp_path: Path) -> Any:
    return lambda call, repo_id="me/data", **arguments: shared(
        call, repo_id=repo_id, downloads=str(tmp_path / "downloads"), **arguments
    )


@pytest.fixture
def processes(hub: HubServer, tmp_path: Path) -> Iterator[Any]:
    """Makes client processes, and ends them."""
    made: list[Client] = []

    def make(**environment: str) -> Client:
        made.append(Client(hub, tmp_path, **environment))
        return made[-1]

    yield make
    for client in made:
        client.stop()


def content(answer: Mapping[str, Any]) -> dict[str, bytes]:
    assert "error" not in answer, answer
    return {name: (Path(answer["root"]) / name).read_bytes() for name in answer["names"]}


def request(tmp_path: Path, repo_id: str = "me/data", **arguments: object) -> dict[str, object]:
    return {"repo_id": repo_id, "downloads": str(tmp_path / "downloads"), **arguments}


def test_a_split_is_downloaded_whole_and_a_second_time_not_at_all(hub, client):
    hub.dataset("me/data", {"train.jsonl": ROWS, "test.jsonl": OTHER, "README.md": "# me"})
    first = client("fetch")
    assert content(first) == {"train.jsonl": ROWS}
    assert hub.count("GET .*resolve.*train.jsonl") == 1 and hub.count("test.jsonl") == 0
    hub.requests.clear()
    assert client("fetch") == first
    assert [it.path for it in hub.requests] == ["/api/datasets/me/data/revision/main"]


def test_a_full_commit_that_is_here_asks_nothing(hub, client):
    commit = hub.dataset("me/data").commit({"train.jsonl": ROWS})
    first = client("fetch", revision=commit)
    hub.requests.clear()
    assert client("fetch", revision=commit) == first
    assert not hub.requests


def test_resolving_lists_and_downloads_no_data(hub, client):
    commit = hub.dataset("me/data").commit({"train.parquet": BIG, "README.md": "# me"})
    found = client("resolve")
    assert found["commit"] == commit
    assert found["files"] == {"train.parquet": [len(BIG), blob_hash("train.parquet", BIG)]}
    assert hub.count("train.parquet") == 0


def test_files_of_git_have_git_hashes(hub, client):
    hub.dataset("me/data", {"train.jsonl": ROWS})
    assert client("resolve")["files"]["train.jsonl"] == [len(ROWS), blob_hash("train.jsonl", ROWS)]


def test_what_was_resolved_is_remembered_for_its_commit_and_question(hub, client, tmp_path):
    repository = hub.dataset("me/data", {"train.jsonl": ROWS, "test.jsonl": OTHER})
    asked = [{}, {"split": "test"}, {"data_files": ["t*.jsonl"]}]
    first = [client("resolve", **arguments) for arguments in asked]
    assert [it["names"] for it in first] == [["train.jsonl"], ["test.jsonl"], ["test.jsonl", "train.jsonl"]]
    assert len(list(tmp_path.rglob("*.chosen.json"))) == 3
    assert [client("resolve", **arguments) for arguments in asked] == first
    repository.commit({"data.jsonl": ROWS})
    assert client("resolve")["names"] == ["data.jsonl"]


def test_listings_of_several_pages_are_read_to_the_end(hub, client):
    hub.page = 2
    hub.dataset("me/data", {f"data/train-{at:05}-of-00007.jsonl": ROWS for at in range(7)})
    assert len(client("resolve")["names"]) == 7


def test_four_processes_that_ask_at_once_download_once(hub, processes, tmp_path):
    files = {f"data/train-{at:05}-of-00003.parquet": BIG[: 900_000 + at] for at in range(3)}
    hub.dataset("me/data", files)
    hold = threading.Event()
    hub.faults.append(Fault("GET /storage/", times=99, hold=hold))
    clients = [processes() for _ in range(4)]
    for client in clients:
        client.ask("fetch", **request(tmp_path, data_files=list(files)))
    while hub.count("/revision/") < 4:  # until each has begun
        assert all(client.process.poll() is None for client in clients)
        time.sleep(0.01)
    hold.set()
    for client in clients:
        assert content(client.answer()) == files
    for name in files:
        assert hub.count(f"GET /storage/.*{name}") == 1


@pytest.mark.parametrize(
    "where", ["/revision/", "/tree/", "HEAD /datasets/me/data/resolve", "GET /datasets/me/data/resolve"]
)
def test_too_many_requests_are_waited_out_as_long_as_asked(hub, client, shared, where):
    hub.dataset("me/data", {"train.jsonl": ROWS})
    hub.faults.append(Fault(where, times=2, status=429, headers={"Retry-After": "70"}))
    assert content(client("fetch")) == {"train.jsonl": ROWS}
    assert hub.faults[0].times == 0
    assert [seconds for seconds in shared.slept if seconds >= 70]


def test_too_many_requests_without_a_time_are_waited_out(hub, client):
    hub.dataset("me/data", {"train.jsonl": ROWS})
    hub.faults.append(Fault("/revision/", times=2, status=429))
    assert content(client("fetch")) == {"train.jsonl": ROWS}
    assert hub.count("/revision/") == 3


def test_a_connection_cut_in_a_file_is_resumed_where_it_broke(hub, client):
    large = BIG * 7  # the client writes, and resumes, pieces of 10 MiB
    hub.dataset("me/data", {"train.parquet": large})
    hub.faults.append(Fault("GET /storage/", times=1, cut_after=11_000_000))
    assert content(client("fetch")) == {"train.parquet": large}
    ranges = [it.range for it in hub.requests if it.method == "GET" and it.path.startswith("/storage/")]
    assert ranges == [None, "bytes=10485760-"]


def test_a_connection_cut_again_and_again_ends_in_an_error_or_the_right_bytes(hub, client):
    hub.dataset("me/data", {"train.parquet": BIG})
    hub.faults.append(Fault("GET /storage/", times=99, cut_after=1000))
    assert client("fetch")["error"] == "StorageError"
    hub.faults[0].times = 3
    assert content(client("fetch")) == {"train.parquet": BIG}


def test_a_server_error_in_a_download_is_tried_again(hub, client, shared):
    hub.dataset("me/data", {"train.parquet": BIG})
    hub.faults.append(Fault("GET /storage/", times=1, status=503, headers={"Retry-After": "80"}))
    assert content(client("fetch")) == {"train.parquet": BIG}
    assert 80 in shared.slept


def test_a_hub_that_stays_broken_is_an_error_and_leaves_no_marker(hub, client, tmp_path):
    hub.dataset("me/data", {"train.parquet": BIG})
    hub.faults.append(Fault("GET /storage/", times=99, status=500, headers={"Retry-After": "0"}))
    answer = client("fetch")
    assert answer["error"] == "StorageError" and "answers 500" in answer["message"] and "me/data" in answer["message"]
    assert not list(tmp_path.rglob("*.ok.json"))
    hub.faults.clear()
    assert content(client("fetch")) == {"train.parquet": BIG}


@pytest.mark.parametrize("where", ["/revision/", "/tree/"])
def test_a_hub_that_says_nothing_is_an_error(hub, client, where):
    hub.dataset("me/data", {"train.jsonl": ROWS})
    hub.faults.append(Fault(where, times=99, hang=True))
    answer = client("fetch")
    assert answer["error"] == "StorageError" and "stopped answering" in answer["message"]
    assert hub.endpoint in answer["message"]


def test_no_network_names_the_endpoint(hub, processes, tmp_path):
    answer = processes(HF_ENDPOINT="http://user:secret@127.0.0.1:9")("fetch", **request(tmp_path))
    assert answer["error"] == "StorageError" and "no connection to http://127.0.0.1:9" in answer["message"]
    assert "secret" not in answer["message"]


def test_a_repository_that_is_not_there_says_what_may_be_wrong(hub, client):
    answer = client("fetch", "me/daat")
    assert answer["error"] == "StorageError"  # without a token the hub answers 401 for what is private, too
    for part in ("'me/daat'", "does not exist", "spelling", "local path", "hf auth login", "HF_TOKEN"):
        assert part in answer["message"]


def test_a_private_repository_opens_with_its_token_which_goes_nowhere_else(hub, client):
    hub.dataset("me/data", {"train.parquet": BIG}).token = "hf_right"
    missing = client("fetch")
    assert missing["error"] == "StorageError" and "private" in missing["message"] and "HF_TOKEN" in missing["message"]
    wrong = client("fetch", token="hf_wrong")
    assert wrong["error"] == "SourceError" and "does not exist" in wrong["message"]
    assert "hf_wrong" not in json.dumps(wrong)
    assert content(client("fetch", token="hf_right")) == {"train.parquet": BIG}
    assert not [it for it in hub.requests if it.path.startswith("/storage/") and it.authorization]


def test_a_token_that_is_refused_is_said_so_and_not_shown(hub, client):
    hub.dataset("me/data", {"train.jsonl": ROWS})
    refusal = {"X-Error-Message": "Invalid credentials in Authorization header"}
    hub.faults.append(Fault("/revision/", times=1, status=401, headers=refusal))
    answer = client("fetch", token="hf_old")
    assert answer["error"] == "StorageError" and "refuses the token" in answer["message"]
    assert "hf_old" not in json.dumps(answer)


@pytest.mark.parametrize("token", ["hf_é", "hf_a\nb", "hf_a\x01b", "hf_a b"])
def test_a_token_that_cannot_be_sent_is_not_shown(hub, client, token):
    hub.dataset("me/data", {"train.jsonl": ROWS})
    answer = client("fetch", token=token)
    if "error" in answer:
        assert answer["error"] == "StorageError" and "HF_TOKEN" in answer["message"]
    assert token not in str(answer)


def test_a_gated_dataset_says_where_to_accept_its_terms(hub, client):
    hub.dataset("me/data", {"train.parquet": BIG}).gated = True
    for answer in (client("fetch"), client("fetch", token="hf_other")):
        assert answer["error"] == "StorageError" and "gated" in answer["message"]
        assert f"{hub.endpoint}/datasets/me/data" in answer["message"] and "hf auth login" in answer["message"]


def test_a_revision_that_is_not_there_is_named(hub, client):
    hub.dataset("me/data", {"train.jsonl": ROWS})
    answer = client("fetch", revision="v2")
    assert answer["error"] == "SourceError" and "no revision 'v2'" in answer["message"]
    answer = client("fetch", revision="1" * 40)
    assert answer["error"] == "SourceError" and "1" * 40 in answer["message"]


@pytest.mark.parametrize("repo_id", ["../data", "a/b/c", "/data/here", "me/da ta", "me/..", ""])
def test_what_cannot_be_an_id_is_refused_without_a_request(hub, client, repo_id):
    answer = client("fetch", repo_id)
    assert answer["error"] == "SourceError" and "local path" in answer["message"]
    assert not hub.requests


def test_offline_what_is_here_is_used_without_a_request(hub, client, processes, tmp_path):
    repository = hub.dataset("me/data", {"train.jsonl": ROWS, "README.md": "---\nlicense: mit\n---\n"})
    first = client("fetch")
    hub.requests.clear()
    offline = processes(HF_HUB_OFFLINE="1")
    assert offline("fetch", **request(tmp_path)) == first
    assert offline("fetch", **request(tmp_path, revision=repository.refs["main"])) == first
    for arguments in ({"revision": "v1"}, {"repo_id": "me/other"}):
        answer = offline("fetch", **request(tmp_path, **arguments))
        assert answer["error"] == "StorageError" and "HF_HUB_OFFLINE" in answer["message"]
    assert not hub.requests


def test_a_marker_of_one_split_does_not_stand_for_another(hub, client, tmp_path):
    hub.dataset("me/data", {"train.jsonl": ROWS, "test.jsonl": OTHER})
    assert content(client("fetch")) == {"train.jsonl": ROWS}
    assert content(client("fetch", split="test")) == {"test.jsonl": OTHER}
    assert hub.count("GET .*resolve") == 2
    [marker] = (tmp_path / "downloads" / "me--data").glob("*.ok.json")
    assert json.loads(marker.read_text()) == {
        "train.jsonl": [len(ROWS), blob_hash("", ROWS)],
        "test.jsonl": [len(OTHER), blob_hash("", OTHER)],
    }


@pytest.mark.parametrize("damage", [b"", BIG[:100], None], ids=["empty", "cut", "removed"])
def test_a_file_that_was_cut_or_removed_is_downloaded_again(hub, client, damage):
    hub.dataset("me/data", {"train.parquet": BIG})
    path = Path(client("fetch")["root"]) / "train.parquet"
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    assert content(client("fetch")) == {"train.parquet": BIG}


def test_a_download_that_was_killed_is_finished_by_the_next(hub, processes, tmp_path):
    files = {f"data/train-{at:05}-of-00003.parquet": BIG[at:] for at in range(3)}
    hub.dataset("me/data", files)
    hub.faults.append(Fault(r"GET /storage/.*-00001-of", pause_after=2_000_000))
    victim = processes()
    victim.ask("fetch", **request(tmp_path, workers=1, data_files=list(files)))
    assert hub.paused.wait(30)
    os.kill(victim.process.pid, signal.SIGKILL)
    victim.process.wait()
    assert not list(tmp_path.rglob("*.ok.json"))
    hub.faults.clear()
    assert content(processes()("fetch", **request(tmp_path, data_files=list(files)))) == files
    assert hub.count("GET /storage/.*-00000-of") == 1  # was whole
    assert hub.count("GET /storage/.*-00001-of") == 2
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_new_commit_downloads_only_what_it_changed(hub, client):
    repository = hub.dataset("me/data")
    repository.commit({"data/train-1.parquet": BIG, "data/train-2.parquet": BIG[:-1], "data/train-3.parquet": BIG[1:]})
    first = client("fetch")
    hub.requests.clear()
    repository.commit({"data/train-1.parquet": BIG, "data/train-2.parquet": BIG[2:], "data/train-4.parquet": BIG[1:]})
    second = client("fetch")
    assert list(content(second).values()) == [BIG, BIG[2:], BIG[1:]]
    assert hub.count("GET /storage/") == 1 and hub.count("GET /storage/.*train-2") == 1
    assert content(first)["data/train-2.parquet"] == BIG[:-1]  # the former commit stays as it was


CARD = """---
configs:
- config_name: english
  data_files:
  - split: train
    path: en/*.jsonl
  - split: extra
    path: ["odd [1].jsonl", "en/b.jsonl"]
- config_name: german
  data_files: de/*.jsonl
{default}---
# A dataset
"""
CARD_FILES = {
    "en/a.jsonl": ROWS,
    "en/b.jsonl": OTHER,
    "de/c.jsonl": ROWS,
    "notes.txt": "no data",
    "odd [1].jsonl": ROWS,
}


def test_the_card_says_which_files_a_configuration_has(hub, client):
    hub.dataset("me/data", CARD_FILES | {"README.md": CARD.format(default="")})
    assert client("resolve", config_name="english")["names"] == ["en/a.jsonl", "en/b.jsonl"]
    assert client("resolve", config_name="german")["names"] == ["de/c.jsonl"]
    answer = client("resolve")
    assert answer["error"] == "SourceError" and "config_name" in answer["message"]
    assert "english" in answer["message"] and "german" in answer["message"]
    answer = client("resolve", config_name="french")
    assert answer["error"] == "SourceError" and "'french'" in answer["message"] and "german" in answer["message"]
    answer = client("resolve", config_name="german", split="test")
    assert answer["error"] == "SourceError" and "'test'" in answer["message"] and "train" in answer["message"]


def test_the_cards_default_configuration_is_the_one_that_nobody_need_name(hub, client):
    hub.dataset("me/data", CARD_FILES | {"README.md": CARD.format(default="  default: true\n")})
    assert client("resolve")["names"] == ["de/c.jsonl"]


def test_a_card_that_is_wrong_is_a_clear_error(hub, client):
    hub.dataset("me/data", {"a.jsonl": ROWS, "README.md": "---\nconfigs:\n- data_files: missing.jsonl\n---\n"})
    answer = client("resolve")
    assert answer["error"] == "SourceError" and "me/data" in answer["message"] and "/tmp" not in answer["message"]


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (["train.jsonl", "valid.jsonl"], "validation", ["valid.jsonl"]),
        (["data/train/a.jsonl", "data/test/b.jsonl"], "test", ["data/test/b.jsonl"]),
        (["a.jsonl", "deep/er/b.jsonl", ".hidden.jsonl", "notes.txt"], "train", ["a.jsonl", "deep/er/b.jsonl"]),
        (["data/odd-00000-of-00001.jsonl"], "odd", ["data/odd-00000-of-00001.jsonl"]),
    ],
)
def test_without_a_card_the_names_say_the_split(hub, client, names, split, expected):
    hub.dataset("me/data", dict.fromkeys(names, ROWS))
    assert client("resolve", split=split)["names"] == expected


def test_a_repository_without_data_is_a_clear_error(hub, client):
    hub.dataset("me/data", {"README.md": "# nothing", "picture.xyz": "x"})
    answer = client("resolve")
    assert answer["error"] == "SourceError" and "no data" in answer["message"]


def test_named_files_and_patterns_are_taken_and_each_must_mean_one(hub, client):
    hub.dataset("me/data", CARD_FILES | {"README.md": CARD.format(default="")})
    for patterns, names in [
        (["de/c.jsonl"], ["de/c.jsonl"]),
        (["en/*"], ["en/a.jsonl", "en/b.jsonl"]),
        (["odd [1].jsonl"], ["odd [1].jsonl"]),
        (["de/c.jsonl", "**/c.jsonl"], ["de/c.jsonl"]),
    ]:
        assert client("resolve", data_files=patterns)["names"] == names
    for pattern in ("fr/*", "missing.jsonl", "../other/data", "https://example.org/a.jsonl", "/etc/passwd"):
        answer = client("resolve", data_files=["en/*", pattern])
        assert answer["error"] == "SourceError" and repr(pattern) in answer["message"]


def test_names_with_glob_characters_are_downloaded_exactly(hub, client):
    names = ["odd [1].jsonl", "odd 1.jsonl", "was?.jsonl", "wasn.jsonl", "naïve #5%20.jsonl"]
    files = {name: json.dumps({"text": name}).encode() for name in names}
    hub.dataset("me/data", files)
    chosen = ["odd [1].jsonl", "was?.jsonl", "naïve #5%20.jsonl"]
    assert content(client("fetch", data_files=chosen)) == {name: files[name] for name in sorted(chosen)}
    assert hub.count("GET .*resolve") == 3


SCRIPT = {
    "data.py": "raise SystemExit('run')",
    "README.md": "# script",
    "process.txt": "how",
    "dataset_infos.json": "{}",
}


def conversion(hub: HubServer, *names: str, script: Mapping[str, bytes | str] = SCRIPT) -> str:
    repository = hub.dataset("me/data", script)
    return repository.commit(dict.fromkeys((".gitattributes", *names), BIG), CONVERSION)


@pytest.mark.parametrize("script", [SCRIPT, {"loader.py": "", "README.md": "# script"}])
def test_a_loading_script_falls_back_to_the_hubs_conversion_and_says_so(hub, client, script):
    names = ["plain_text/train/0000.parquet", "plain_text/train/0001.parquet", "plain_text/test/0000.parquet"]
    commit = conversion(hub, *names, script=script)
    answer = client("fetch")
    assert answer["commit"] == commit and content(answer) == dict.fromkeys(names[:2], BIG)
    [notice] = answer["notices"]
    assert "script" in notice and CONVERSION in notice and commit in notice


def test_a_partial_conversion_is_refused(hub, client):
    conversion(hub, "default/partial-train/0000.parquet", "default/test/0000.parquet")
    answer = client("fetch")
    assert answer["error"] == "SourceError" and "partial" in answer["message"] and "convert" in answer["message"]
    assert client("resolve", split="test")["names"] == ["default/test/0000.parquet"]
    named = client("resolve", revision=CONVERSION)
    assert named["error"] == "SourceError" and "partial" in named["message"]
    assert hub.count("GET /storage") == 0


def test_the_conversion_does_not_stand_for_a_named_revision(hub, client):
    commit = conversion(hub, "default/train/0000.parquet")
    for revision in ("main", hub.repositories["datasets", "me/data"].refs["main"]):
        answer = client("fetch", revision=revision)
        assert answer["error"] == "SourceError" and revision in answer["message"] and CONVERSION in answer["message"]
    for revision in (CONVERSION, commit):
        answer = client("resolve", revision=revision)
        assert (answer["commit"], answer["names"]) == (commit, ["default/train/0000.parquet"])


def test_a_script_without_a_conversion_is_a_clear_error(hub, client):
    hub.dataset("me/data", SCRIPT)
    answer = client("fetch")
    assert answer["error"] == "SourceError" and "script" in answer["message"] and "no Parquet" in answer["message"]


def test_configurations_and_splits_of_a_conversion_are_chosen_as_of_any_dataset(hub, client):
    conversion(hub, "a/train-part0/0000.parquet", "a/train-part1/0000.parquet", "b/train/0000.parquet")
    answer = client("resolve")
    assert answer["error"] == "SourceError" and "one of: a, b" in answer["message"]
    assert client("resolve", config_name="a")["names"] == ["a/train-part0/0000.parquet", "a/train-part1/0000.parquet"]
    answer = client("resolve", config_name="b", split="test")
    assert answer["error"] == "SourceError" and "one of: train" in answer["message"]


def test_a_tokenizer_is_a_folder_of_its_two_files(hub, client):
    hub.model("me/tokens", {"tokenizer.json": "{}", "tokenizer_config.json": "[]", "model.bin": BIG})
    root = Path(client("tokenizer", "me/tokens")["root"])
    assert sorted(it.name for it in root.iterdir() if it.is_file()) == ["tokenizer.json", "tokenizer_config.json"]
    assert (root / "tokenizer.json").read_bytes() == b"{}"
    assert hub.count("model.bin") == 0
    hub.requests.clear()
    assert client("tokenizer", "me/tokens")["root"] == str(root) and len(hub.requests) == 1


def test_a_model_without_a_tokenizer_file_is_refused(hub, client):
    hub.model("me/tokens", {"model.bin": BIG})
    answer = client("tokenizer", "me/tokens")
    assert answer["error"] == "TokenizerError" and "tokenizer.json" in answer["message"]
    answer = client("tokenizer", "me/tokns")
    assert answer["error"] == "StorageError" and "model 'me/tokns'" in answer["message"]
