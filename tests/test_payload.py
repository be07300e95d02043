import os
import stat
from pathlib import Path

import pytest

from prep_assets.errors import BusyError
from prep_assets.payload import (
    create,
    install_file,
    is_ours_to_sweep,
    link_or_copy,
    lock,
    new_payload,
    retire,
    scratch,
    write_file,
    write_symlink,
)
from tests.crash import every_crash, runs_through


def write_two_files(path: Path, text: bytes = b"one") -> None:
    with new_payload(path) as folder:
        for name in ("a", "b"):
            with create(folder / name) as stream:
                stream.write(text)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_payload_is_whole_or_absent_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    kills = 0
    for _ in every_crash(lambda: write_two_files(tmp_path / "stage" / "payload")):
        kills += 1
        payload = tmp_path / "stage" / "payload"
        if payload.exists():
            assert [(payload / name).read_bytes() for name in ("a", "b")] == [b"one", b"one"]
            retire(payload)
        for leftover in (tmp_path / "stage").glob("*") if (tmp_path / "stage").exists() else []:
            assert is_ours_to_sweep(leftover.name)
    assert kills >= 10
    assert visible(tmp_path / "stage" / "payload") == ["a", "b"]


def test_a_file_is_the_old_or_the_new_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    write_file(tmp_path / "current", b"old")
    for _ in every_crash(lambda: write_file(tmp_path / "current", b"new")):
        assert (tmp_path / "current").read_bytes() in (b"old", b"new")
        write_file(tmp_path / "current", b"old")
    assert (tmp_path / "current").read_bytes() == b"new"


def test_a_link_leads_to_the_old_or_the_new_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    write_symlink(tmp_path / "latest", "old")
    for _ in every_crash(lambda: write_symlink(tmp_path / "latest", "new")):
        assert (tmp_path / "latest").readlink() in (Path("old"), Path("new"))
        write_symlink(tmp_path / "latest", "old")
    assert (tmp_path / "latest").readlink() == Path("new")


def test_a_retired_folder_is_whole_or_gone_wherever_the_process_is_killed(tmp_path: Path) -> None:
    write_two_files(tmp_path / "payload")
    for _ in every_crash(lambda: retire(tmp_path / "payload")):
        assert not (tmp_path / "payload").exists() or visible(tmp_path / "payload") == ["a", "b"]
        write_two_files(tmp_path / "payload")
    assert not (tmp_path / "payload").exists()


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_payload(tmp_path / "payload") as folder:
        (folder / "a").write_bytes(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_of_a_payload_keeps_the_first(tmp_path: Path) -> None:
    write_two_files(tmp_path / "payload", b"first")
    inode = (tmp_path / "payload" / "a").stat().st_ino
    write_two_files(tmp_path / "payload", b"second")
    assert (tmp_path / "payload" / "a").read_bytes() == b"first"
    assert (tmp_path / "payload" / "a").stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["payload"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o444), (0o077, 0o400), (0o002, 0o444)])
def test_files_of_a_payload_are_read_only_and_readable_as_the_umask_allows(
    tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        write_two_files(tmp_path / "payload")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "payload" / "a").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "payload").stat().st_mode) == 0o777 & ~umask


def test_a_linked_file_shares_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").stat().st_ino == (tmp_path / "a").stat().st_ino


def test_scratch_leaves_nothing_but_what_was_installed(tmp_path: Path) -> None:
    with scratch(tmp_path / "x") as folder:
        (folder / "kept").write_bytes(b"1")
        (folder / "dropped").write_bytes(b"2")
        install_file(folder / "kept", tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_held_lock_is_refused_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "prepare.lock"
    with lock(path), pytest.raises(BusyError, match=r"prepare\.lock"), lock(path, wait=False):
        pass

    def hold_until_killed() -> None:
        with lock(path):
            write_file(tmp_path / "x", b"")

    assert not runs_through(hold_until_killed, 0)
    with lock(path, wait=False):
        pass


def test_shared_locks_exclude_an_exclusive_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with lock(path, shared=True), lock(path, shared=True, wait=False), pytest.raises(BusyError), lock(path, wait=False):
        pass
