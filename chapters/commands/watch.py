"""`python -m chapters watch [4 | 4.2]`: checks again each time a file is saved, TVM staying imported in between."""

from __future__ import annotations

import time

from chapters.commands.check import check_one
from chapters.toolkit.course import Chapter, Exercise, select
from chapters.toolkit.progress import states
from tests.harness.runner import Runner

POLL_SECONDS = 0.1


def run(options) -> int:
    """Check the first unsolved exercise of what was asked for, now and after every save, until all pass."""
    chosen = select(options.what)
    files = {chapter.stub: chapter for chapter, _ in chosen}
    print(f"Watching {len(files)} file(s) of YOUR code. Save to check; Ctrl-C ends.", flush=True)
    with Runner() as runner:
        runner.start()
        seen: dict = {}
        while True:
            now = {path: path.read_bytes() if path.exists() else b"" for path in files}
            if now != seen:
                seen = now
                if _check_next(runner, chosen):
                    return 0
            time.sleep(POLL_SECONDS)


def _check_next(runner: Runner, chosen: list[tuple[Chapter, Exercise]]) -> bool:
    """Check exercises from the first that has not passed up to one that does not. True if all have."""
    for chapter, exercise in chosen:
        if states(chapter)[exercise.id] == "passed":
            continue
        began = time.perf_counter()
        passed = check_one(runner, chapter, exercise)
        print(f"  ({time.perf_counter() - began:.1f} s)", flush=True)
        if not passed:
            return False
    print("Everything asked for passes.")
    return True
