"""Stops a real process at each file operation in turn: `for at in every_crash(work): ...`."""

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from prep_assets import payload


def runs_through(work: Callable[[], object], stop_at: int) -> bool:
    """Runs work in a process that is killed before its operation number stop_at; True if it ended before that."""
    child = os.fork()
    if child == 0:
        numbers = count()

        def stop(operation: str, path: Path) -> None:
            if next(numbers) == stop_at:
                os.kill(os.getpid(), signal.SIGKILL)

        payload.before_operation = stop
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return True


def every_crash(work: Callable[[], object], *, step: int = 1, limit: int = 10_000) -> Iterator[int]:
    """Kills work before its first operation, then before its second … until it runs through; yields after each kill.

    The body puts the disk back as it was. step: try every so manieth operation only.
    """
    for at in range(0, limit, step):
        if runs_through(work, at):
            assert at > 0
            return
        yield at
    raise AssertionError(f"not through after {limit} operations")
