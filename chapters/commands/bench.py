"""`python -m chapters bench 3`: measure a chapter's kernels on this machine and write the results file."""

from __future__ import annotations

import importlib

from chapters.toolkit.bench.results import save
from chapters.toolkit.course import CourseError, chapters
from chapters.toolkit.course import chapter as find


def run(options) -> int:
    """Run the chapter's `bench.py`: its `run(quick, say)` returns {name of a results file: what was measured}.

    With --quick it measures little, to show that all of it works, and writes no file.
    """
    chapter = find(options.chapter)
    if not (chapter.folder / "bench.py").exists():
        having = ", ".join(str(c.number) for c in chapters() if (c.folder / "bench.py").exists())
        raise CourseError(f"Chapter {chapter.number} measures nothing; {having or 'none'} do.")
    bench = importlib.import_module(f"chapters.{chapter.slug}.bench")
    measured = bench.run(quick=options.quick, say=lambda text: print(text, flush=True))
    if options.quick:
        print("This was a quick run: few rounds, small sizes, no results file.")
        return 0
    for name, values in measured.items():
        path = save(name, values, f"python -m chapters bench {chapter.number}")
        print(f"written: {path.relative_to(path.parents[2])}")
    return 0
