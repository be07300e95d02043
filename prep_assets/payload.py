"""Files and folders that appear whole or not at all: write beside, sync, rename.

Every change that this package makes to a disk goes through here, and each of its operations first calls
`before_operation`: a test that stops the process there has tried every point at which a machine can die.
"""

import errno
import fcntl
import filecmp
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from prep_assets.errors import BusyError, StorageError

UNFINISHED = ".unfinished"  # suffix of what is being written
RETIRED = ".retired"  # suffix of what is being removed

before_operation: Callable[[str, Path], None] = lambda operation, path: None  # noqa: E731  (a hook, set by tests)


class _HookedFile(io.FileIO):
    def write(self, data: object) -> int:
        path = Path(os.fsdecode(self.name))
        before_operation("write", path)
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            error.filename = str(path)  # a full disk names no file by itself
            raise


def create(path: Path) -> BinaryIO:
    """A new file, open for writing; it must not exist."""
    before_operation("create", path)
    return io.BufferedWriter(_HookedFile(path, "xb"), 1 << 20)


def append(path: Path, buffers: list[memoryview]) -> None:
    """Adds bytes to the end of a file, made where missing; the file is open only meanwhile."""
    with _HookedFile(path, "ab") as stream:
        for buffer in buffers:
            while buffer:
                buffer = buffer[stream.write(buffer) :]


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    before_operation("sync", path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> Path:
    """The folder, made with its parents where missing."""
    if not path.is_dir():
        before_operation("mkdir", path)
        path.mkdir(parents=True, exist_ok=True)
    return path


def is_ours_to_sweep(name: str) -> bool:
    """Whether a name is one that an interrupted write or removal of ours left behind."""
    return re.fullmatch(rf"\..+\.\d+\.[0-9a-f]{{8}}({UNFINISHED}|{RETIRED})", name) is not None


def _beside(path: Path, suffix: str) -> Path:
    return path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{suffix}"


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """A folder beside `path` for the block alone: what is left in it at the end vanishes."""
    make_folder(path.parent)
    folder = _beside(path, UNFINISHED)
    before_operation("mkdir", folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_payload(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` when the block ends well and vanishes when it does not.

    Its files are made read-only and synced first. A second writer of the same payload finds it there and drops its own.
    """
    with scratch(path) as folder:
        yield folder
        install(folder, path)


def install(folder: Path, path: Path) -> None:
    """Makes a folder that is written whole appear as `path`, or drops it where the same payload is there already."""
    for file in sorted(folder.iterdir()):
        _seal(file)
    sync(folder)
    before_operation("rename", path)
    try:
        folder.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not path.is_dir():
            raise
    sync(path.parent)


def install_file(file: Path, path: Path) -> None:
    """Makes a file that is written whole appear as `path`, read-only; the same bytes that are there stay."""
    if path.exists() and filecmp.cmp(file, path, shallow=False):
        return
    _seal(file)
    before_operation("rename", path)
    file.replace(path)
    sync(path.parent)


def _seal(file: Path) -> None:
    mode = file.stat().st_mode & 0o777
    if mode & 0o222:  # a hard link to a sealed file is sealed and synced already
        before_operation("chmod", file)
        file.chmod(mode & 0o444)
        sync(file)


def write_file(path: Path, data: bytes) -> None:
    """A file that appears whole, in place of one that was there."""
    unfinished = _beside(path, UNFINISHED)
    try:
        with create(unfinished) as stream:
            stream.write(data)
        sync(unfinished)
        before_operation("rename", path)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_symlink(path: Path, target: str) -> None:
    """A symbolic link that appears with this target, in place of a link that was there."""
    unfinished = _beside(path, UNFINISHED)
    before_operation("symlink", unfinished)
    unfinished.symlink_to(target)
    before_operation("rename", path)
    unfinished.replace(path)
    sync(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system refuses links."""
    before_operation("link", target)
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            raise
        with source.open("rb") as read, create(target) as write:
            shutil.copyfileobj(read, write, 1 << 24)


def retire(path: Path) -> None:
    """Removes a folder or a file so that it is never half there: renamed away first, then deleted."""
    retired = _beside(path, RETIRED)
    before_operation("rename", path)
    try:
        path.rename(retired)
    except FileNotFoundError:
        return
    sync(path.parent)
    remove_tree(retired)


def remove_tree(path: Path) -> None:
    """Deletes a folder of ours, or a file; what another process deletes meanwhile is no error."""
    before_operation("remove", path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=False, onerror=_gone_is_fine)
    else:
        path.unlink(missing_ok=True)


def _gone_is_fine(function: object, path: str, info: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]


@contextmanager
def lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Holds a lock file (flock) for the block; it ends with the process, however that ends.

    Raises BusyError where wait is False and another process holds it, StorageError where the folder is another user's.
    """
    make_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError as error:
        raise StorageError(
            f"{path}: user {os.getuid()} may not write here, where user {path.parent.stat().st_uid} began;"
            " run as that user, or choose another output_path"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise BusyError(f"{path}: another process of ours is at work here; wait for it to end") from error
        yield
    finally:
        os.close(descriptor)
