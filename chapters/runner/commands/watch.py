"""`python -m chapters watch [4 | 4.2]`: checks again each time a file is saved, TVM staying imported in between."""

from __future__ import annotations

import time

from chapters.runner.commands.check import Checked, warn
from chapters.runner.course import Chapter, Exercise, select
from chapters.runner.engine import FINE, Engine
from chapters.runner.states import states

HELP = "check again each time you save"
POLL_SECONDS = 0.1


def arguments(parser) -> None:
    parser.add_argument("what", nargs="?")


def run(options) -> int:
    """Check the first unsolved exercise that was asked for, now and after every save, until none is left."""
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
    """Check exercises in order, up to the first that is left to solve. True if none is left."""
    for chapter, exercise in chosen:
        if states(chapter)[exercise.id] in FINE:
            continue
        began = time.perf_counter()
        Checked(chapter, exercise, engine).tell()
        print(f"  ({time.perf_counter() - began:.1f} s)", flush=True)
        if states(chapter)[exercise.id] not in FINE:
            return False
    print("Everything asked for that can run here passes.")
    return True
