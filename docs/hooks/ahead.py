"""Runs the blocks of all pages ahead of their turn, several pages at a time, and hands each page its own results.

What a page shows and the order of errors are as if the pages ran one after the other: a failure is kept until the
page that failed has its turn. A page that measures time runs alone, before the others start, since a machine that
is busy with other pages would make its numbers wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

_MEASURES = re.compile(
    r"\b(?:perf_counter|process_time|monotonic|time_evaluator|toolkit\.bench\.timing|trace_decoder)(?:_ns)?\b"
)


def measures(code: str) -> bool:
    """Whether `code` reads a clock to say how long something took."""
    return bool(_MEASURES.search(code))


class Ahead:
    """Runs `run(blocks, where)` for many pages; `where` names the page, and a block has its `code`."""

    def __init__(self, run: Callable[[list, str], list], workers: int | None = None) -> None:
        self._run = run
        self._workers = workers or os.cpu_count() or 1
        self._begun: dict[str, tuple[list, Future]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, pages: dict[str, list]) -> None:
        """Run the pages that measure one by one, then start all the others and return at once."""
        self.drop()
        alone = [where for where, blocks in pages.items() if any(measures(b.code) for b in blocks)]
        for where in alone:
            self._begun[where] = pages[where], self._now(pages[where], where)
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="page")
        for where, blocks in pages.items():
            if where not in alone:
                self._begun[where] = blocks, self._pool.submit(self._run, blocks, where)
        self._pool.shutdown(wait=False)  # no more will come; what was begun goes on

    def take(self, blocks: list, where: str) -> list:
        """The results of `blocks`, waited for; they run now if the page was not foreseen as it is.

        Raises what running them raised.
        """
        foreseen, future = self._begun.pop(where, (None, None))
        return future.result() if foreseen == blocks else self._run(blocks, where)

    def wait(self) -> None:
        """Return when no page runs any more."""
        wait([future for _, future in self._begun.values()])

    def drop(self) -> None:
        """Forget every page, and start none that still waits."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._begun.clear()

    def _now(self, blocks: list, where: str) -> Future:
        future: Future = Future()
        try:
            future.set_result(self._run(blocks, where))
        except Exception as error:
            future.set_exception(error)
        return future
