"""A stand-in of the Hugging Face hub on loopback: what huggingface_hub and datasets ask for, and the ways it fails.

Large files (of LFS, as the hub keeps them) answer with a redirect to another origin, as the hub's do.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CONVERSION = "refs/convert/parquet"
LARGE = (".parquet", ".gz", ".zst", ".bin")
PATH = re.compile(
    r"/api/(?P<kind>datasets|models)/(?P<id>[^/]+/[^/]+)"
    r"(?:/(?P<verb>revision|tree|paths-info)/(?P<revision>[^/]+)(?:/(?P<under>.*))?)?"
)
RESOLVE = re.compile(r"/(?P<kind>datasets/)?(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def blob_hash(name: str, data: bytes) -> str:
    """What the hub calls a file's content: SHA-256 where it is large, else git's hash."""
    return hashlib.sha256(data).hexdigest() if name.endswith(LARGE) else git_hash(data)


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str | None = None  # private: this token opens it, without one it does not seem to exist
    gated: bool = False  # listed for everyone, read by nobody

    def commit(self, files: Mapping[str, bytes | str], ref: str = "main") -> str:
        """A new commit of exactly these files at the tip of a branch."""
        content = {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
        parts = [ref, len(self.commits), *(f"{name} {git_hash(data)}" for name, data in sorted(content.items()))]
        sha = hashlib.sha1("\n".join(map(str, parts)).encode()).hexdigest()
        self.commits[sha] = content
        self.refs[ref] = sha
        return sha


@dataclass
class Fault:
    """What happens to the next `times` requests whose "METHOD path" matches `where`."""

    where: str
    times: int = 1
    status: int = 0  # answer with this
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int = -1  # close the connection after so many bytes of the body
    hang: bool = False  # say nothing until the server stops
    hold: threading.Event | None = None  # answer when this is set
    pause_after: int = -1  # say no more after so many bytes of the body until the server stops


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None


class HubServer:
    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.page = 1000  # files on one page of a listing
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.paused = threading.Event()  # a fault's pause or hang has begun
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.http.server_port}"
        self.storage = f"http://localhost:{self.http.server_port}"  # another origin, for large files

    def dataset(self, repo_id: str, files: Mapping[str, bytes | str] | None = None) -> Repository:
        return self._repository("datasets", repo_id, files)

    def model(self, repo_id: str, files: Mapping[str, bytes | str]) -> Repository:
        return self._repository("models", repo_id, files)

    def _repository(self, kind: str, repo_id: str, files: Mapping[str, bytes | str] | None) -> Repository:
        repository = self.repositories.setdefault((kind, repo_id), Repository())
        if files is not None:
            repository.commit(files)
        return repository

    def count(self, pattern: str) -> int:
        """Requests so far whose "METHOD path" matches."""
        return sum(1 for it in list(self.requests) if re.search(pattern, f"{it.method} {it.path}"))

    def fault(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.where, request):
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def serve() -> Iterator[HubServer]:
    hub = HubServer()
    thread = threading.Thread(target=hub.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.stopping.set()
        hub.http.shutdown()
        hub.http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    active: Fault | None = None

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path == "/api/agent-harnesses":  # the client's own curiosity, no part of what is tested
            return self._error(404, "NotFound")
        with self.hub.lock:
            self.hub.requests.append(
                Request(self.command, path, self.headers.get("Range"), self.headers.get("Authorization"))
            )
        self.active = self.hub.fault(f"{self.command} {path}")
        if self.active and self.active.hang:
            self.hub.paused.set()
            self.hub.stopping.wait()
            self.close_connection = True
            return None
        if self.active and self.active.hold:
            self.active.hold.wait()
        if self.active and self.active.status:
            return self._send(self.active.status, b'{"error": "asked to fail"}', dict(self.active.headers))
        if url.path.startswith("/storage/"):
            _, _, commit, kind, owner, name, file = path.split("/", 6)
            return self._content(self.hub.repositories[kind, f"{owner}/{name}"].commits[commit][file], {})
        if match := PATH.fullmatch(url.path):
            return self._api(match, parse_qs(url.query), body)
        if match := RESOLVE.fullmatch(url.path):
            return self._resolve(match)
        return self._error(404, "NotFound")

    def _find(self, kind: str, match: re.Match[str], *, content: bool) -> tuple[Repository, str] | None:
        """The repository and the commit asked for, or None where an error has been sent."""
        repository = self.hub.repositories.get((kind, unquote(match["id"])))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if repository is None or (repository.token and token != repository.token):
            if token:
                self._error(404, "RepoNotFound", "Repository not found")
            else:
                self._error(401, None, "Invalid username or password.")
            return None
        if repository.gated and content:
            self._error(403 if token else 401, "GatedRepo", "Access to this dataset is restricted.")
            return None
        revision = unquote(match["revision"] or "main")
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _api(self, match: re.Match[str], query: dict[str, list[str]], body: bytes) -> None:
        if not (found := self._find(match["kind"], match, content=False)):
            return None
        repository, commit = found
        files = repository.commits[commit]
        if match["verb"] in (None, "revision"):
            information: dict[str, Any] = {
                "_id": "0", "id": unquote(match["id"]), "sha": commit, "private": bool(repository.token),
                "gated": "manual" if repository.gated else False, "disabled": False, "tags": [], "downloads": 0,
                "siblings": [{"rfilename": name} for name in files],
            }  # fmt: skip
            if expand := query.get("expand"):
                information = {key: information[key] for key in ("_id", "id", *expand)}
            return self._json(information)
        if match["verb"] == "paths-info":
            paths = parse_qs(body.decode()).get("paths", [])
            return self._json([_entry(name, files[name]) for name in paths if name in files])
        under = unquote(match["under"] or "").rstrip("/")
        inside = {n: d for n, d in sorted(files.items()) if not under or n.startswith(under + "/")}
        entries = [_entry(name, data) for name, data in inside.items()]
        folders = {name[:at] for name in inside for at in range(len(under) + 1, len(name)) if name[at] == "/"}
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in sorted(folders)]
        if query.get("recursive", ["false"])[0].lower() != "true":
            entries = [it for it in entries if "/" not in it["path"][len(under) + 1 if under else 0 :]]
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + self.hub.page
        target = f"{self.hub.endpoint}{urlsplit(self.path).path}?recursive=true&cursor={end}"
        return self._json(entries[begin:end], {"Link": f'<{target}>; rel="next"'} if end < len(entries) else {})

    def _resolve(self, match: re.Match[str]) -> None:
        kind = "datasets" if match["kind"] else "models"
        if not (found := self._find(kind, match, content=True)):
            return None
        repository, commit = found
        name = unquote(match["name"])
        data = repository.commits[commit].get(name)
        headers = {"X-Repo-Commit": commit}
        if data is None:
            return self._error(404, "EntryNotFound", "Entry not found", headers)
        etag = f'"{blob_hash(name, data)}"'
        if not name.endswith(LARGE):
            return self._content(data, headers | {"ETag": etag})
        location = f"{self.hub.storage}/storage/{commit}/{kind}/{match['id']}/{match['name']}"
        linked = {"Location": location, "X-Linked-ETag": etag, "X-Linked-Size": str(len(data))}
        return self._send(302, b"", headers | linked)

    def _content(self, data: bytes, headers: dict[str, str]) -> None:
        headers = headers | {"Accept-Ranges": "bytes"}
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            begin, end = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
            if begin > end:
                return self._send(416, b"", headers | {"Content-Range": f"bytes */{len(data)}"})
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            return self._send(206, data[begin : end + 1], headers)
        return self._send(200, data, headers)

    def _json(self, value: object, headers: Mapping[str, str] | None = None) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _error(
        self, status: int, code: str | None, message: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        codes = {"X-Error-Code": code} if code else {}
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {**codes, "X-Error-Message": message, **(headers or {})})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        fault = self.active
        if fault and fault.cut_after >= 0:
            self.wfile.write(body[: fault.cut_after])
            self.close_connection = True
        elif fault and fault.pause_after >= 0:
            self.wfile.write(body[: fault.pause_after])
            self.wfile.flush()
            self.hub.paused.set()
            self.hub.stopping.wait()
            self.close_connection = True
        else:
            self.wfile.write(body)


def _entry(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_hash(data)}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry
