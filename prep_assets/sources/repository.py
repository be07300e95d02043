"""A repository of the Hugging Face hub and what is here of it: commits, listings, and downloads, once per commit.

`<downloads>/<owner>--<name>/` holds `refs/`, the commits that names stood for, and for each commit
- `<commit>.listing.json`: what the hub has, which never changes;
- `<commit>.<question>.chosen.json`: the files that a recipe means;
- `<commit>/`: files, and `<commit>.ok.json`: which of them are here whole.
"""

import hashlib
import importlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from prep_assets.errors import PrepAssetsError, SourceError, StorageError, TokenizerError
from prep_assets.payload import link_or_copy, lock, make_folder, sync, write_file

COMMIT = re.compile(r"[0-9a-f]{40}")
ATTEMPTS = 3  # of a file's download, where the client itself does not try again
TIMEOUTS = ("connect", "read", "write", "pool")
RETRIED = (408, 429, 500, 502, 503, 504)
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class RemoteFile(NamedTuple):
    size: int
    blob: str  # the hub's hash of the content: SHA-256 of a large file, git's hash of a small one


def import_client() -> Any:
    """The hub's client, changed so that each request ends: itself it waits for a listing for ever."""
    os.environ.setdefault("HF_XET_HIGH_PERFORMANCE", "1")  # read when the client is imported
    client = importlib.import_module("huggingface_hub")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its "Retrying in": what fails in the end, we explain
    http = importlib.import_module("huggingface_hub.utils._http")
    if http._GLOBAL_CLIENT_FACTORY is http.default_client_factory:

        def client_with_timeout() -> Any:
            session = http.default_client_factory()
            session.event_hooks = {"request": [*session.event_hooks["request"], _limit_wait]}
            return session

        client.set_client_factory(client_with_timeout)
    return client


def _limit_wait(request: Any) -> None:
    waits = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {part: waits.get(part) or _timeout() for part in TIMEOUTS}


def _timeout() -> float:
    return float(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or 60)


@dataclass(frozen=True)
class Repository:
    """A repository of the hub and what is here of it."""

    repo_id: str
    kind: Literal["dataset", "model"]
    downloads: Path

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", self.repo_id) or re.search(r"\.\.|--", self.repo_id):
            kind = SourceError if self.kind == "dataset" else TokenizerError
            raise kind(
                f"{self.repo_id!r} is no id of a {self.kind} on the hub (owner/name); if a local path was meant: "
                "there is none of this name"
            )

    @property
    def folder(self) -> Path:
        prefix = "" if self.kind == "dataset" else "models--"  # an id holds no `--`
        return self.downloads / (prefix + self.repo_id.replace("/", "--"))

    def commit(self, revision: str | None) -> str:
        """The commit that a branch, a tag or a commit's hash names; offline, the one that it named last."""
        if revision and COMMIT.fullmatch(revision):
            return revision
        client = import_client()
        saved = self.folder / "refs" / quote(revision or "main", safe="")
        if client.constants.HF_HUB_OFFLINE and saved.exists():
            return saved.read_text().strip()
        commit = self._asked(revision, lambda: self._ask_commit(revision or "main"))
        if not (saved.exists() and saved.read_text() == commit):
            make_folder(saved.parent)
            write_file(saved, commit.encode())
        return commit

    def _ask_commit(self, revision: str) -> str:
        commit = next(self._ask(f"revision/{quote(revision, safe='')}?expand=sha"))["sha"]
        assert COMMIT.fullmatch(commit), commit
        return str(commit)

    def _ask(self, path: str) -> Iterator[Any]:
        """The pages of an answer; the client's own calls for these do not all wait after 429 in each version."""
        client = import_client()
        url = f"{client.constants.ENDPOINT}/api/{self.kind}s/{self.repo_id}/{path}"
        headers = client.utils.build_hf_headers()
        while url:
            response = client.utils.http_backoff("GET", url, headers=headers, timeout=_timeout())
            client.utils.hf_raise_for_status(response)
            yield response.json()
            url = response.links.get("next", {}).get("url")

    def listing(self, commit: str) -> dict[str, RemoteFile]:
        """Every file of a commit; asked for once, since a commit never changes."""
        saved = self.folder / f"{commit}.listing.json"
        if saved.exists():
            return {name: RemoteFile(*entry) for name, entry in json.loads(saved.read_bytes()).items()}
        listing = self._asked(commit, lambda: self._ask_listing(commit))
        make_folder(self.folder)
        write_file(saved, json.dumps(listing).encode())
        return listing

    def _ask_listing(self, commit: str) -> dict[str, RemoteFile]:
        listing = {}
        for entry in chain.from_iterable(self._ask(f"tree/{commit}?recursive=true&expand=false")):
            name = entry["path"]
            if name.startswith("/") or ".." in name.split("/"):
                raise SourceError(f"{self.repo_id}: the hub lists a file outside of the repository: {name!r}")
            if entry["type"] == "file":
                listing[name] = RemoteFile(entry["size"], (entry.get("lfs") or entry)["oid"])
        return listing

    def remember(self, commit: str, question: Sequence[object], choose: Callable[[], list[str]]) -> list[str]:
        """The names that `choose` finds at a commit, from disk where it found them before: it takes seconds."""
        key = hashlib.blake2b(repr((question, version("datasets"))).encode(), digest_size=8).hexdigest()
        saved = self.folder / f"{commit}.{key}.chosen.json"
        if not saved.exists():
            write_file(saved, json.dumps(choose()).encode())
        return list(json.loads(saved.read_bytes()))

    def download(self, commit: str, files: Mapping[str, RemoteFile], workers: int) -> Path:
        """The commit's folder with these files in it; only one process downloads, others wait for it."""
        if self.missing(commit, files):
            with lock(self.folder / "lock"):
                if missing := self.missing(commit, files):
                    self._asked(commit, lambda: self._download(commit, missing, workers))
        return self.root(commit)

    def root(self, commit: str) -> Path:
        """The folder of a commit's files."""
        return self.folder / commit

    def _marker(self, commit: str) -> dict[str, RemoteFile]:
        try:
            marked = json.loads((self.folder / f"{commit}.ok.json").read_bytes())
        except FileNotFoundError:
            return {}
        return {name: RemoteFile(*entry) for name, entry in marked.items()}

    def missing(self, commit: str, files: Mapping[str, RemoteFile]) -> dict[str, RemoteFile]:
        """Those of the files that are not here whole."""
        marked, root = self._marker(commit), self.folder / commit
        return {it: file for it, file in files.items() if marked.get(it) != file or _size(root / it) != file.size}

    def _download(self, commit: str, missing: Mapping[str, RemoteFile], workers: int) -> None:
        root = make_folder(self.folder / commit)
        for rubbish in root.glob(".cache/huggingface/download/**/*.incomplete"):
            rubbish.unlink()  # of a process that was killed: we hold the lock
        for name, file in missing.items():
            if _size(root / name) not in (None, file.size):
                (root / name).unlink()  # else the client would take it for whole
        wanted = self._link_known(commit, missing)
        size = sum(file.size for name, file in missing.items() if name in wanted)
        if size > (free := shutil.disk_usage(root).free):
            raise StorageError(f"{self.folder}: {size:,} bytes of {self.repo_id} to download, {free:,} bytes free")
        logger.info("%s: downloading %d files, %s bytes", self.repo_id, len(wanted), f"{size:,}")
        if len(wanted) > 8:  # the client keeps this listing, and then needs no HEAD request for each file of Xet
            import_client().snapshot_download(
                self.repo_id, repo_type=self.kind, revision=commit, local_dir=root, allow_patterns=[".gitattributes"]
            )
        with ThreadPoolExecutor(max(1, workers)) as pool:
            list(pool.map(lambda name: self._get(commit, name, root), wanted))
        for name, file in missing.items():
            if _size(root / name) != file.size:
                raise StorageError(f"{root / name}: {_size(root / name)} bytes; the hub says {file.size}; run it again")
            sync(root / name)
        write_file(self.folder / f"{commit}.ok.json", json.dumps({**self._marker(commit), **missing}).encode())

    def _link_known(self, commit: str, missing: Mapping[str, RemoteFile]) -> list[str]:
        """Links what another commit's folder holds under the same hash; gives the names of the others."""
        known: dict[RemoteFile, Path] = {}
        for marker in self.folder.glob("*.ok.json"):
            other = marker.name.partition(".")[0]
            known |= {file: self.folder / other / name for name, file in self._marker(other).items() if other != commit}
        wanted = []
        for name, file in missing.items():
            path = self.folder / commit / name
            if file in known and _size(known[file]) == file.size:
                make_folder(path.parent)
                path.unlink(missing_ok=True)
                link_or_copy(known[file], path)
            else:
                wanted.append(name)
        return wanted

    def _get(self, commit: str, name: str, root: Path) -> None:
        """One file. The client itself resumes a cut body and waits after 429; it gives up at a 5xx and at a reset."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                import_client().hf_hub_download(
                    self.repo_id, name, repo_type=self.kind, revision=commit, local_dir=root
                )
                return
            except Exception as error:
                status, headers = _response(error)
                passing = status in RETRIED or _is_a(error, "ReadError", "WriteError", "RemoteProtocolError")
                if attempt == ATTEMPTS or not passing:
                    raise
                asked = headers.get("Retry-After", "")
                time.sleep(int(asked) if asked.isdigit() else 2 ** (attempt - 1))

    def _asked(self, revision: str | None, ask: Callable[[], Result]) -> Result:
        try:
            return ask()
        except PrepAssetsError:
            raise
        except Exception as error:
            explained = self._explained(error, revision)
            if isinstance(error, UnicodeError):
                raise explained or error from None  # the cause holds the token
            raise explained or error from error

    def _explained(self, error: BaseException, revision: str | None) -> PrepAssetsError | None:
        """What to tell the person; never the client's own text, which holds signed addresses."""
        if _is_a(error, "LocalEntryNotFoundError") and error.__cause__:
            return self._explained(error.__cause__, revision)
        what, login = f"{self.kind} {self.repo_id!r}", "log in with `hf auth login` or set HF_TOKEN"
        endpoint = re.sub(r"//[^/]*@", "//", import_client().constants.ENDPOINT)  # without a password
        page = f"{endpoint}/{'datasets/' if self.kind == 'dataset' else ''}{self.repo_id}"
        path = "if a local path was meant: there is none of this name"
        status, headers = _response(error)
        if _is_a(error, "OfflineModeIsEnabled"):
            return StorageError(
                f"{what} at {revision or 'main'} is not whole in {self.folder}, and HF_HUB_OFFLINE forbids to ask the "
                "hub; run it once without HF_HUB_OFFLINE, or name a revision that is here by its full commit"
            )
        if _is_a(error, "GatedRepoError"):
            return StorageError(f"{what} is gated: accept its terms at {page}, then {login} as the user who did")
        if _is_a(error, "RevisionNotFoundError"):
            return SourceError(f"{what} has no revision {revision!r}; see the branches and tags at {page}")
        if _is_a(error, "DisabledRepoError"):
            return SourceError(f"{what} is disabled by the hub; see {page}")
        if isinstance(error, UnicodeError) or _is_a(error, "LocalProtocolError"):
            return StorageError(f"{what}: the token of HF_TOKEN or `hf auth login` is no token; make a new one")
        if status == 401 and "credentials" in headers.get("X-Error-Message", ""):
            return StorageError(f"{what}: {endpoint} refuses the token of HF_TOKEN or `hf auth login`; make a new one")
        if status == 401:
            return StorageError(f"{what} is private, or does not exist: {login}, or check the spelling; {path}")
        if status == 403:
            return StorageError(f"{what}: access is forbidden; the token needs the right to read it (see {page})")
        if status == 404:
            return SourceError(f"{what} does not exist at {endpoint}: check the spelling; {path}; if private: {login}")
        if status is not None:
            return StorageError(f"{what}: {endpoint} answers {status}, also after waiting; try again later")
        if _is_a(error, "TransportError"):
            return StorageError(
                f"{what}: no connection to {endpoint}, or it stopped answering ({type(error).__name__}); {path}; "
                "else check the network and HF_ENDPOINT; with HF_HUB_OFFLINE=1 what is downloaded is used"
            )
        if isinstance(error, OSError) and error.errno is not None:
            return StorageError(
                f"{error.filename or self.folder}: {os.strerror(error.errno)}, while {what} was fetched"
            )
        return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _is_a(error: BaseException, *names: str) -> bool:
    """Whether an error is of a class of this name: the client's HTTP library is httpx or httpx2, by its version."""
    return any(base.__name__ in names for base in type(error).__mro__)


def _response(error: BaseException) -> tuple[int | None, Mapping[str, str]]:
    response = getattr(error, "response", None)
    return (None, {}) if response is None else (response.status_code, response.headers)
