"""Threads within a stage: several batches or shards at work at once, results in order, memory bounded by those."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, local
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Abandoned(BaseException):
    """Ends work on a thread whose result nobody waits for any more."""


class _Work(local):
    is_over: Event | None = None  # set when whoever wants this thread's result has gone


_work = _Work()


def in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """function of each item, on so many threads, in the items' order; at most threads + 1 results and items exist.

    The items are taken in the calling thread, while the others work. What one raises is raised here, in its turn, and
    ends the others at their next go_on.
    """
    is_over, waiting = Event(), deque[Future[Result]]()

    def run(item: Item) -> Result:
        _work.is_over = is_over
        return function(item)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                go_on()
                waiting.append(pool.submit(run, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            is_over.set()
            for future in waiting:
                future.cancel()


def go_on() -> None:
    """To be called now and then by what runs on a thread of in_order: raises Abandoned where that has ended."""
    if _work.is_over is not None and _work.is_over.is_set():
        raise Abandoned
