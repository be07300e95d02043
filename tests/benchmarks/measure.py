"""One command's wall and CPU seconds, peak memory and bytes written, of it and everything that it started."""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.05  # seconds between looks at memory; longer where a look itself takes long
SHARE = 0.03  # of the time, at most, that goes into looking
PATIENCE = 20  # seconds that what a command left running may take to end
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Cost:
    """What one run took; memory in bytes, of all its processes together, at the worst moment that was seen."""

    wall: float = 0.0
    cpu: float = 0.0
    pss: int = 0  # proportional set size: mapped files are in it
    anonymous: int = 0  # its part that no file backs, shared memory with it: what cannot be dropped
    written: int = 0  # bytes handed to the disk's cache as dirty pages, also of files that were removed again
    failure: str = ""  # the last line of the log, where the command failed


def measure(
    command: Sequence[str], log: Path, *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Cost:
    """Runs the command, its output in log, and waits for all that it started.

    Orphans become our children, so that the kernel's own accounts are whole: the CPU seconds of every process that was
    waited for are in ours, and so are its bytes written.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.sync()
    cost, ended = Cost(), threading.Event()
    cpu, written = _cpu_of_children(), _written()
    begin = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | dict(environment or {}), stdout=output, stderr=subprocess.STDOUT
        )
        watcher = threading.Thread(target=_watch_memory, args=(cost, ended))
        watcher.start()
        code = process.wait()
    cost.wall = time.perf_counter() - begin
    _wait_for_orphans()
    ended.set()
    watcher.join()
    cost.cpu, cost.written = _cpu_of_children() - cpu, _written() - written
    if code:
        lines = log.read_text(errors="replace").strip().splitlines()
        cost.failure = f"exit code {code}: {lines[-1] if lines else 'no output'}"
    return cost


def read_once(folder: Path) -> None:
    """Brings the files below a folder into the page cache: every contender finds its input there."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            with path.open("rb") as stream:
                while stream.read(1 << 24):
                    pass


def empty(folder: Path) -> Path:
    """The folder, with nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _written() -> int:
    """Of this process and every child that was waited for."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def _wait_for_orphans() -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                children = [child for child in _tree() if child != os.getpid()]
                print(f"ending what the command left running: {children}", file=sys.stderr)
                for child in children:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.01)


def _watch_memory(cost: Cost, ended: threading.Event) -> None:
    pause = INTERVAL
    while not ended.wait(pause):
        begin = time.perf_counter()
        looks = [_memory(pid) for pid in _tree() if pid != os.getpid()]
        cost.pss = max(cost.pss, sum(pss for pss, _ in looks))
        cost.anonymous = max(cost.anonymous, sum(anonymous for _, anonymous in looks))
        pause = max(INTERVAL, (time.perf_counter() - begin) / SHARE)


def _memory(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it ended meanwhile
        return 0, 0
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kilobytes["Pss"] * 1024, (kilobytes["Pss_Anon"] + kilobytes["Pss_Shmem"]) * 1024


def _tree() -> list[int]:
    """This process and all below it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(path.name))
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, []))
    return found
