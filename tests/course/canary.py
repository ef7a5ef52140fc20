"""Tries the course with the newest apache-tvm, in a new environment, and says what broke. It never blocks a change.

    python -m tests.course.canary [--steps import,tensorize,0,1] [--report report.md]

The environment gets the newest TVM and tvm-ffi, and the course's other dependencies as pyproject.toml asks for them.
Each step is a process with a time limit: a crash is one line of the report. The exit code is 0 whatever broke, and 2 if
no step could be tried. The step `upstream` runs the scripts of docs/upstream and says which faults are mended.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from chapters.runner.course import ROOT, chapters
from chapters.runner.versions import pins
from docs.pages.upstream_page import findings

SECONDS = 900
IMPORTS = "import tvm, tvm.relax, tvm.s_tir, tvm.tirx; print(tvm.__version__)"
PROGRAMS = {"import": ("-c", IMPORTS), "tensorize": ("-m", "chapters.kit.tensorize_probe")}


@dataclass
class Result:
    """The result of one step. `broke`: the error's first line -> where it appeared."""

    step: str
    passed: int = 0
    failed: int = 0
    broke: dict[str, list[str]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        if not self.failed:
            return f"{self.passed} passed"
        return f"{self.failed} of {self.passed + self.failed} failed"


def requirements() -> list[str]:
    """The course's dependencies; the version is left out where it is pinned to one."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"(?m)^dependencies = \[[^\n]*\n(.*?)^\]", text, re.DOTALL)[1]
    return [asked.split("==")[0] for asked in re.findall(r'^\s*"([^"]+)"', block, re.MULTILINE)]


def environment(folder: Path) -> Path:
    """Make a virtual environment in `folder` with the newest releases; its Python. Raises CalledProcessError."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *requirements()], check=True)
    return python


def run(python: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of the new environment's Python in the course's folder; -1 if it took too long."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables = {**inherited, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "NO_COLOR": "1"}
    captured = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    command = [python, *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, env=variables, timeout=SECONDS, **captured)
    except subprocess.TimeoutExpired:
        return -1, f"ran longer than {SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def versions(python: Path) -> dict[str, str]:
    """The versions of the packages that the course pins, in the new environment."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    _, text = run(python, "-c", code, *pins())
    return dict(zip(pins(), text.split(), strict=True))


def simple(step: str, code: int, text: str) -> Result:
    """The result of a step that passes or does not."""
    if code == 0:
        return Result(step, passed=1)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    ended = f"the process ended with exit code {code}" if code < 0 or not lines else lines[-1]
    return Result(step, failed=1, broke={ended: [step]})


def mended(python: Path) -> Result:
    """Which faults of docs/upstream the new environment no longer has: exit status 1 without a traceback."""
    result = Result("upstream: each fault is still there")
    for one in findings():
        code, text = run(python, str(one.path))
        if code != 1:
            result.passed += 1
        else:
            result.failed += 1
            result.broke[one.path.stem] = ["cannot tell" if "Traceback" in text else "mended"]
    return result


def checks_of_chapter(python: Path, slug: str, report: Path) -> Result:
    """The checks of one chapter on the reference, in the new environment."""
    step = f"solutions/{slug}"
    code, text = run(python, "-m", "pytest", "-q", step, f"--junitxml={report}")
    return read_junit(step, report) if report.exists() else simple(step, code or 1, text)


def read_junit(step: str, report: Path) -> Result:
    """What pytest's report says: each failure under the first line of its message."""
    result = Result(step)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problems = [*case.iter("failure"), *case.iter("error")]
        if problems:
            result.failed += 1
            result.broke.setdefault(_said(problems[0]), []).append(case.get("name"))
        elif case.find("skipped") is None:
            result.passed += 1
    return result


def _said(problem: ElementTree.Element) -> str:
    text = f"{problem.get('message') or ''}\n{problem.text or ''}"
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:300]


def report(found: dict[str, str], results: list[Result]) -> str:
    """The report, in Markdown: which versions, one row per step, and each error once with where it appeared."""
    asked = pins()
    tried = ", ".join(f"{name} {version}" for name, version in found.items())
    has = ", ".join(f"{name} {version}" for name, version in asked.items())
    broken = [r for r in results if r.failed]
    verdict = f"{len(broken)} of {len(results)} steps broke" if broken else "Nothing broke"
    if found == asked:
        verdict = f"The newest releases are the course's own. {verdict}"
    elif not broken:
        verdict += ": the pins can move"
    lines = [f"# The course with {tried}", "", f"It is written for {has}. {verdict}.", ""]
    lines += ["| step | result |", "|---|---|", *(f"| {r.step} | {r.line} |" for r in results), ""]
    for result in broken:
        most_first = sorted(result.broke.items(), key=lambda pair: -len(pair[1]))
        errors = [f"- `{error.replace('`', chr(39))}`: {_some(at)}" for error, at in most_first]
        lines += [f"## {result.step}", "", *errors, ""]
    return "\n".join(lines)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def tried(python: Path, steps: list[str], folder: Path) -> list[Result]:
    """The results of the steps that were asked for, of all if `steps` is empty."""
    chosen = [one for one in PROGRAMS if not steps or one in steps]
    numbers = [c for c in chapters() if not steps or str(c.number) in steps]
    results = [simple(step, *run(python, *PROGRAMS[step])) for step in chosen]
    results += [mended(python)] if not steps or "upstream" in steps else []
    return results + [checks_of_chapter(python, c.slug, folder / f"{c.short}.xml") for c in numbers]


def main(arguments: list[str]) -> int:
    """Try, print the report, and write it where --report says."""
    about = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.course.canary", description=about)
    named = "import, tensorize, upstream and numbers of chapters; all if left out"
    parser.add_argument("--steps", default="", help=named)
    parser.add_argument("--report", type=Path, help="a file to write the report to")
    options = parser.parse_args(arguments)
    steps = [step for step in options.steps.split(",") if step]
    known = [*PROGRAMS, "upstream", *(str(c.number) for c in chapters())]
    if unknown := [step for step in steps if step not in known]:
        print(f"There is no step {unknown[0]!r}; there are {', '.join(known)}.")
        return 2
    with tempfile.TemporaryDirectory(prefix="canary-") as folder:
        try:
            python = environment(Path(folder) / "venv")
        except subprocess.CalledProcessError as error:
            code = error.returncode
            print(f"The newest releases cannot be installed: pip's exit code is {code}.")
            return 2
        text = report(versions(python), tried(python, steps, Path(folder)))
    print(text)
    if options.report:
        options.report.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
