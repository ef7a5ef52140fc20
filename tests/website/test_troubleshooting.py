"""Every entry of docs/troubleshooting.md is reproduced: its snippet must give the very text of its heading.

The snippets are only on the page. An entry's first Python block is its cause and the others are its cure; the page's
first block runs before each. Blocks that run in the site's build run here in one child process. An entry that may end
its process, or has no Python block, has a test of its own, listed in SPECIAL.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from chapters.child import Child, name_exit
from chapters.kit import machine
from chapters.runner.course import ROOT
from chapters.runner.versions import installed_version, pins

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PRELUDE = FENCE.search(PAGE)["code"]
FORGET = "for name in [name for name in globals() if name[0] != '_']: del globals()[name]"
SECONDS = 120


@dataclass(frozen=True)
class Entry:
    """One entry: `key` is its anchor, `text` the code span in its heading, `raises` "" where nothing is raised."""

    key: str
    text: str
    raises: str
    runs_in_build: bool
    blocks: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """The heading's text as a regular expression: `…` stands for anything in one line."""
        return ".*".join(re.escape(part) for part in self.text.split("…"))


def _read_entry(section: str) -> Entry:
    def found(pattern: str, text: str) -> str:
        return match[1] if (match := re.search(pattern, text)) else ""

    heading, fences = section.split("\n")[0], list(FENCE.finditer(section))
    key, text = found(r"\{ #([\w-]+) \}", heading), found(r"`([^`]+)`", heading)
    info = fences[0]["info"] if fences else ""
    blocks = tuple(fence["code"] for fence in fences)
    return Entry(key, text, found(r"raises=(\w+)", info), "run" in info.split(), blocks)


SECTIONS = re.findall(r"^### (.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
ENTRIES = {entry.key or entry.text: entry for entry in map(_read_entry, SECTIONS)}


@pytest.fixture(scope="module")
def raised():
    """Runs blocks as the site does, after the page's first one; returns the error of each, or None."""
    with Child("chapters.runner.page_code", "troubleshooting") as child:

        def run(*blocks: str) -> list[dict | None]:
            several = (FORGET, PRELUDE, *blocks)
            errors = [child.ask({"code": c, "line": 1}, SECONDS)["error"] for c in several]
            assert errors[:2] == [None, None], "the page's first block fails"
            return errors[2:]

        yield run


@pytest.mark.parametrize("key", [key for key, entry in ENTRIES.items() if entry.runs_in_build])
def test_the_cause_gives_the_text_of_the_heading_and_the_cure_raises_nothing(raised, key):
    entry = ENTRIES[key]
    cause, *cure = raised(*entry.blocks)
    if entry.raises:
        assert cause is not None, "the snippet raised nothing"
        text = "\n".join(cause["lines"])
        assert entry.raises in cause["names"], text
        assert re.search(entry.pattern, text), f"{entry.text!r} is not in:\n{text}"
    else:
        assert cause is None, "what is said to be silent is not"
    assert not any(cure), cure


def test_renamed_expressions(raised):
    """In every row of the table the left expression raises, and the right one has a value."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 15
    for old, new in rows:
        fails, works = raised(old, new)
        assert fails is not None, f"{old} still works"
        assert works is None, f"{new} does not work: {works}"


# --- entries with a test of their own -------------------------------------------------------------


def run_python(*arguments: str) -> subprocess.CompletedProcess:
    """Run this Python in the repository's root."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    captured = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS, **captured)


def run_script(folder: Path, *blocks: str) -> subprocess.CompletedProcess:
    """Run blocks, after the page's first one, as a program; `chapters` leaves PyTorch out."""
    file = folder / "entry.py"
    file.write_text("\n".join(("import chapters", PRELUDE, *blocks)), encoding="utf-8")
    return run_python(str(file))


def check_not_installed(entry: Entry, folder: Path) -> None:
    """Python without its site-packages is like one in which the course's packages are not installed."""
    done = run_python("-S", "-m", "chapters")
    assert done.returncode == 2
    assert re.search(entry.pattern, done.stdout), done.stdout


def check_tensorize(entry: Entry, folder: Path) -> None:
    """The crash needs another tvm-ffi; here the pinned one must be installed and must not crash."""
    assert installed_version("apache-tvm-ffi") == pins()["apache-tvm-ffi"]
    done = run_python("-m", "chapters.kit.tensorize_probe")
    assert (done.returncode, done.stdout.strip()) == (0, "tensorized")


def check_recursion(entry: Entry, folder: Path) -> None:
    """The error is raised, or ends the process while it unwinds; the checks stop such a recursion long before."""
    done = run_script(folder, *entry.blocks)
    said = done.stdout + done.stderr
    if done.returncode == 1:
        assert re.search(entry.pattern, said), said
    else:
        assert done.returncode and ("RecursionError" in said or "recursion depth" in done.stderr)


def check_unaligned(entry: Entry, folder: Path) -> None:
    """On x86-64 the cause ends its process, and the cure does not end it with the same array."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("whether an unaligned access faults depends on the processor; seen on x86-64")
    cause, cure = entry.blocks
    died = run_script(folder, cause)
    lived = run_script(folder, cause.rsplit("double(", 1)[0], cure)
    assert lived.returncode == 0, lived.stderr
    if sys.platform == "win32":
        assert died.returncode == 0xC0000005
        return
    assert died.returncode == -signal.SIGSEGV
    assert f"The process running your code died ({name_exit(died.returncode)})" in PAGE
    if sys.platform == "linux":
        assert re.search(entry.pattern, died.stdout + died.stderr), died.stderr[:500]


def check_cuda(entry: Entry, folder: Path) -> None:
    if machine.cuda_state()[0] not in ("not loaded", "no library"):
        pytest.skip("TVM's CUDA runtime is loaded on this machine")
    cause, doctor = entry.blocks
    failed = run_script(folder, cause)
    words = [line for line in failed.stderr.splitlines() if re.search(r"\w", line)]
    assert failed.returncode == 1 and re.search(entry.pattern, words[-1]), words
    assert run_script(folder, doctor).returncode == 0


def check_silent_cuda(entry: Entry, folder: Path) -> None:
    if machine.cuda_state()[0] == "gpu":
        pytest.skip("this machine has a CUDA GPU that TVM finds")
    done = run_script(folder, *entry.blocks)
    assert done.returncode == 0, done.stderr


def check_whose_code(entry: Entry, folder: Path) -> None:
    """A run on the reference says so."""
    done = run_python("-m", "pytest", "--collect-only", "solutions/ch00_first_module")
    assert "REFERENCE" in done.stdout and "`pytest chapters/`" in done.stdout, done.stdout


SPECIAL = {
    "The package … is not installed in this Python": check_not_installed,
    "tensorize": check_tensorize,
    "recursion": check_recursion,
    "unaligned": check_unaligned,
    "cuda": check_cuda,
    "silent-cuda": check_silent_cuda,
    "whose-code": check_whose_code,
}


@pytest.mark.parametrize("key", SPECIAL)
def test_special_entry(key, tmp_path):
    assert key in ENTRIES, f"docs/troubleshooting.md has no entry {key!r}"
    SPECIAL[key](ENTRIES[key], tmp_path)


def test_every_entry_is_tested_and_well_made():
    assert len(ENTRIES) == len(SECTIONS) >= 20, "two entries share an anchor"
    for key, entry in ENTRIES.items():
        assert entry.runs_in_build or key in SPECIAL, f"{key} is not tested"
        assert entry.text, "a heading holds the error's text as a code span"
    for section in SECTIONS:
        heading = section.split("\n")[0]
        assert "**Cause.**" in section, f"{heading} has no cause"
        assert "**Cure.**" in section or heading.startswith("`assert"), f"{heading} has no cure"
