"""`python -m chapters.kit.bench ch03_transpose_matmul [--quick]`: measure a chapter's kernels, write its results files.

A chapter's `bench.py` has `run(quick, say)`, which returns {name of a results file: what was measured}.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from chapters.kit.bench.gpu_clock import NoGpuError
from chapters.kit.bench.results import save
from chapters.kit.bench.timing import PeerFailed
from chapters.program import run_program


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a chapter's kernels on this machine.")
    parser.add_argument("chapter", help="the chapter's folder, such as ch03_transpose_matmul")
    parser.add_argument("--quick", action="store_true", help="measure little, write no file")
    options = parser.parse_args()
    bench = importlib.import_module(f"chapters.{options.chapter}.bench")
    try:
        measured = bench.run(quick=options.quick, say=lambda text: print(text, flush=True))
    except (NoGpuError, PeerFailed) as problem:
        print(problem)
        sys.exit(2 if isinstance(problem, NoGpuError) else 1)
    if options.quick:
        print("This was a quick run: few rounds, small sizes, no results file.")
        return
    for name, values in measured.items():
        path = save(name, values, f"python -m chapters bench {int(options.chapter[2:4])}")
        print(f"written: {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    sys.exit(run_program(main))
