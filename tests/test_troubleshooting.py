"""Every entry of docs/troubleshooting.md is reproduced: its snippet must give the very text of its heading.

The page is the only place where snippets stand. An entry's first Python block is its cause and the others are its cure;
the page's first block comes before each. All that cannot end its process run in one child process, the others in one
each. An entry without a Python block has a test of its own, listed in SPECIAL.
"""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from chapters.toolkit import machine
from chapters.toolkit.course import ROOT
from tests.harness.runner import _death

PAGE = ROOT / "docs" / "troubleshooting.md"
FENCE = re.compile(r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
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


def entries(page: str) -> list[Entry]:
    """The entries of the page: a heading of the third level each."""
    found = []
    for section in re.split(r"^(?=### )", page, flags=re.MULTILINE)[1:]:
        section = re.split(r"^## ", section, flags=re.MULTILINE)[0]
        heading = section.split("\n")[0]
        text = re.search(r"`([^`]+)`", heading)
        key = re.search(r"\{ #([\w-]+) \}", heading)
        fences = list(FENCE.finditer(section))
        info = fences[0]["info"].split() if fences else []
        raises = next(
            (word.removeprefix("raises=") for word in info if word.startswith("raises=")), ""
        )
        found.append(
            Entry(
                key=key[1] if key else "",
                text=text[1] if text else "",
                raises=raises,
                runs_in_build="run" in info,
                blocks=tuple(fence["code"] for fence in fences),
            )
        )
    return found


PAGE_TEXT = PAGE.read_text(encoding="utf-8")
PRELUDE = FENCE.search(PAGE_TEXT)["code"]
ENTRIES = {entry.key or entry.text: entry for entry in entries(PAGE_TEXT)}

# Runs every entry's blocks with the site's own runner, each entry in a module of its own; says what they raised.
DRIVER = """
import json, sys, types
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from run_page import MODULE, run_block
report = {}
for key, files in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    results = [run_block(module, Path(f), Path(f).read_text(encoding="utf-8")) for f in files]
    report[key] = [result.get("error") for result in results]
Path(sys.argv[2]).write_text(json.dumps(report), encoding="utf-8")
"""


def run_blocks(
    folder: Path, chosen: dict[str, tuple[str, ...]]
) -> tuple[subprocess.CompletedProcess, dict]:
    """Run blocks by entry, after the prelude, in a child process: what the process said, what each block raised."""
    plan = {}
    for key, blocks in chosen.items():
        files = [folder / f"{key}_{number}.py" for number in range(len(blocks) + 1)]
        for file, code in zip(files, (PRELUDE, *blocks), strict=True):
            file.write_text(code, encoding="utf-8")
        plan[key] = [str(file) for file in files]
    order, report = folder / "order.json", folder / "report.json"
    order.write_text(json.dumps(plan), encoding="utf-8")
    done = python("-c", DRIVER, str(order), str(report), str(ROOT), str(ROOT / "docs" / "hooks"))
    errors = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    assert all(found[0] is None for found in errors.values()), "the page's first block fails"
    return done, {key: found[1:] for key, found in errors.items()}


def python(*arguments: str) -> subprocess.CompletedProcess:
    """Run this Python in the repository's root."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def raised(tmp_path_factory) -> dict[str, list]:
    """For every entry that runs in the site's build: what each of its blocks raised, None where nothing."""
    chosen = {key: entry.blocks for key, entry in ENTRIES.items() if entry.runs_in_build}
    done, report = run_blocks(tmp_path_factory.mktemp("entries"), chosen)
    assert done.returncode == 0, done.stderr[-2000:]
    return report


LOUD = [key for key, entry in ENTRIES.items() if entry.raises]
QUIET = [key for key, entry in ENTRIES.items() if entry.runs_in_build and not entry.raises]


@pytest.mark.parametrize("key", LOUD)
def test_the_cause_gives_the_text_of_the_heading(raised, key):
    entry, first = ENTRIES[key], raised[key][0]
    assert first is not None, "the snippet raised nothing"
    text = "\n".join(first["lines"])
    assert entry.raises in first["names"], text
    assert re.search(entry.pattern, text), f"{entry.text!r} is not in:\n{text}"


@pytest.mark.parametrize("key", LOUD)
def test_the_cure_raises_nothing(raised, key):
    assert all(error is None for error in raised[key][1:]), raised[key]


@pytest.mark.parametrize("key", QUIET)
def test_what_is_said_to_be_silent_is(raised, key):
    assert all(error is None for error in raised[key]), raised[key]


def test_renamed_expressions(tmp_path):
    """In every row of the table the left expression raises, and the right one has a value."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", PAGE_TEXT, re.MULTILINE)
    assert len(rows) >= 15
    cells = {
        f"{number} {side}": text for number, row in enumerate(rows) for side, text in enumerate(row)
    }
    attempts = "".join(
        f"try:\n    {text}\n    works.append({key!r})\nexcept Exception:\n    pass\n"
        for key, text in cells.items()
    )
    out = tmp_path / "works.json"
    code = f"import json\nworks = []\n{attempts}open({str(out)!r}, 'w').write(json.dumps(works))\n"
    done, report = run_blocks(tmp_path, {"table": (code,)})
    assert done.returncode == 0 and report["table"] == [None], report
    works = json.loads(out.read_text(encoding="utf-8"))
    for number, (old, new) in enumerate(rows):
        assert f"{number} 0" not in works, f"{old} still works"
        assert f"{number} 1" in works, f"{new} does not work"


# --- entries with a test of their own -------------------------------------------------------------


def check_not_installed(entry: Entry, folder: Path) -> None:
    """Python without its site-packages stands for one without the course's packages."""
    done = python("-S", "-m", "chapters")
    assert done.returncode == 2
    assert re.search(entry.pattern, done.stdout), done.stdout


def check_tensorize(entry: Entry, folder: Path) -> None:
    """The crash needs another tvm-ffi; what can be held is that the pin is installed and that it survives."""
    assert machine.installed("apache-tvm-ffi") == machine.pins()["apache-tvm-ffi"]
    done = python("-m", "chapters.toolkit.tensorize_probe")
    assert done.returncode == 0, f"tensorize ended its process: {done.returncode}"


def check_recursion(entry: Entry, folder: Path) -> None:
    """The error comes out in words, or ends its process on the way; the checks stop it long before."""
    done, report = run_blocks(folder, {"recursion": entry.blocks})
    if done.returncode == 0:
        assert re.search(entry.pattern, "\n".join(report["recursion"][0]["lines"]))
    else:
        assert "RecursionError" in done.stdout + done.stderr or "recursion depth" in done.stderr


def check_unaligned(entry: Entry, folder: Path) -> None:
    """The cause ends its process on x86-64; the cure does not, on the same array."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip(
            "whether an unaligned vector access faults depends on the processor; seen on x86-64"
        )
    cause, cure = entry.blocks
    died, _ = run_blocks(folder, {"unaligned": (cause,)})
    before_the_call = cause.rsplit("double(", 1)[0]
    lived, report = run_blocks(folder, {"unaligned": (before_the_call + cure,)})
    assert lived.returncode == 0 and report["unaligned"] == [None], report
    if sys.platform == "win32":
        assert died.returncode == 0xC0000005
        return
    assert died.returncode == -signal.SIGSEGV
    assert f"The process running your code died ({_death(died.returncode)[0]})" in PAGE_TEXT
    if sys.platform == "linux":
        assert re.search(entry.pattern, died.stdout + died.stderr), died.stderr[:500]


def check_cuda(entry: Entry, folder: Path) -> None:
    state = machine.cuda_state()[0]
    if state not in ("not loaded", "no library"):
        pytest.skip("TVM's CUDA runtime is loaded on this machine")
    done, report = run_blocks(folder, {"cuda": entry.blocks})
    assert done.returncode == 0 and report["cuda"][1] is None, done.stderr
    assert re.search(entry.pattern, report["cuda"][0]["lines"][-1])


def check_silent_cuda(entry: Entry, folder: Path) -> None:
    if machine.cuda_state()[0] == "gpu":
        pytest.skip("this machine has a CUDA GPU that TVM finds")
    done, report = run_blocks(folder, {"silent-cuda": entry.blocks})
    assert done.returncode == 0 and report["silent-cuda"] == [None], report


def check_whose_code(entry: Entry, folder: Path) -> None:
    """A run on the reference says so."""
    done = python("-m", "pytest", "--collect-only", "solutions/ch00_first_module")
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
    assert len(ENTRIES) == len(entries(PAGE_TEXT)) >= 20, "two entries share an anchor"
    untested = [
        key for key in ENTRIES if key not in LOUD and key not in QUIET and key not in SPECIAL
    ]
    assert not untested
    assert all(entry.text for entry in ENTRIES.values()), (
        "a heading holds the error's text as a code span"
    )
    for section in re.split(r"^### ", PAGE_TEXT, flags=re.MULTILINE)[1:]:
        heading = section.split("\n")[0]
        assert "**Cause.**" in section, f"{heading} has no cause"
        assert "**Cure.**" in section or heading.startswith("`assert"), f"{heading} has no cure"
