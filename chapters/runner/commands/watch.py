"""`python -m chapters watch [4 | 4.2]`: checks again each time a file is saved, TVM staying imported in between."""

from __future__ import annotations

import time

from chapters.runner.commands.check import Checked, warn
from chapters.runner.course import Chapter, Exercise, select
from chapters.runner.engine import Engine
from chapters.runner.states import states

HELP = "check again each time you save"
POLL_SECONDS = 0.1


def arguments(parser) -> None:
    parser.add_argument("what", nargs="?")


def run(options) -> int:
    """Check the first unsolved exercise of what was asked for, now and after every save, until all pass."""
    chosen = select(options.what)
    files = {chapter.stub: chapter for chapter, _ in chosen}
    print(f"Watching {len(files)} file(s) of YOUR code. Save to check; Ctrl-C ends.", flush=True)
    with Engine(workers=1) as engine:
        seen: dict = {}
        while True:
            now = {path: path.read_bytes() if path.exists() else b"" for path in files}
            if now != seen:
                for path in now:
                    if now[path] != seen.get(path):
                        warn(files[path])
                seen = now
                if _check_next(engine, chosen):
                    return 0
            time.sleep(POLL_SECONDS)


def _check_next(engine: Engine, chosen: list[tuple[Chapter, Exercise]]) -> bool:
    """Check exercises from the first that has not passed up to one that does not. True if all have."""
    for chapter, exercise in chosen:
        if states(chapter)[exercise.id] == "passed":
            continue
        began = time.perf_counter()
        passed = Checked(chapter, exercise, engine).tell()
        print(f"  ({time.perf_counter() - began:.1f} s)", flush=True)
        if not passed:
            return False
    print("Everything asked for passes.")
    return True
