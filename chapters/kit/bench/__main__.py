"""`python -m chapters.kit.bench ch03_transpose_matmul [--quick]`: measure a chapter's kernels, write its results files.

`python -m chapters bench 3` starts it, and gives it another folder than docs/results for a learner's measurements.

A chapter's `bench.py` has `run(quick, say)`, which returns {name of a results file: what was measured}, and TABLES,
{name of a results file: a function that makes a table of it}, or for other names (the function, its results files).
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path

from chapters.kit.bench.gpu_clock import NoGpuError
from chapters.kit.bench.results import FOLDER, list_parts, list_tables, save
from chapters.kit.bench.timing import CandidateFailed
from chapters.program import run_program


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a chapter's kernels on this machine.")
    parser.add_argument("chapter", help="the chapter's folder, such as ch03_transpose_matmul")
    parser.add_argument("--quick", action="store_true", help="measure little, write no file")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the results files")
    options = parser.parse_args()
    bench = importlib.import_module(f"chapters.{options.chapter}.bench")
    # whoever stops a run, by Ctrl-C or `timeout`, gets what was measured until then
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measured = bench.run(quick=options.quick, say=lambda text: print(text, flush=True))
    except (NoGpuError, CandidateFailed) as problem:
        lines = str(problem).strip().splitlines()
        print(
            problem
            if "FUSION_DEBUG" in os.environ
            else "\n".join(dict.fromkeys((lines[0], lines[-1])))
        )
        sys.exit(2 if isinstance(problem, NoGpuError) else 1)
    command = f"python -m chapters bench {int(options.chapter[2:4])}"
    saved = [] if options.quick else measured
    # before tables are made: nothing that was measured may be lost
    written = [save(name, measured[name], command, options.folder) for name in saved]
    for title, (make, names) in list_tables(bench.TABLES).items():
        if found := [measured[name] for name in names if name in measured]:
            for table in list_parts(make(*found)):
                print(f"\n{title}\n{table}")
    print()
    for path in written:
        print(f"written: {path}")
    if options.quick:
        print("This was a quick run: few rounds, small sizes, no results file.")


if __name__ == "__main__":
    sys.exit(run_program(main))
