"""Imports point one way, and replace nothing in TVM, in `inspect` or in Python's imports.

Every Python file, and every block of code on a page, is read; only the last test runs something.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from chapters.runner.course import ROOT
from docs.pages.page_blocks import read_blocks

# A part may import the parts that are listed with it, and itself. A name ends in a dot if all beneath it is meant.
LAYERS = {
    "chapters.child": [],  # a process that answers questions; the standard library alone
    "chapters.opened": [],  # which files are read for a page; the standard library alone
    "chapters.code_owner": [],  # the learner's or the reference's; the standard library alone
    "chapters.environment": [],  # whether the course can be run here; the standard library alone
    "chapters.program": [],  # what surrounds each program; the standard library alone
    "chapters.kit.": ["chapters.child", "chapters.program", "chapters.code_owner"],
    "chapters.runner.": [
        "chapters.child",
        "chapters.environment",
        "chapters.program",
        "chapters.code_owner",
    ],
    "chapters.__main__": ["chapters.runner."],
    "chapters.checking.": [  # what checks of several chapters share
        "chapters.child",
        "chapters.kit.",
        "chapters.runner.failure",
        "chapters.runner.loading",
    ],
    "checks": [  # of a chapter: see CHECKS
        "chapters.ch",
        "chapters.checking.",
        "chapters.kit.",
        "chapters.child",
        "chapters.runner.explain",
        "chapters.runner.failure",
        "chapters.runner.loading",
        "solutions.",
    ],
    "chapters.ch": [
        "chapters.kit.",
        "chapters.child",
        "chapters.program",
        "chapters.runner.earlier",
        "solutions.",
    ],
    "solutions.": ["chapters.ch", "chapters.kit.", "chapters.runner.earlier"],
    "docs.": ["chapters.", "solutions."],
    "tests.": ["chapters.", "solutions.", "docs."],
}
KIT = [  # from below; a package may import those above it in this list
    ["draw", "ir", "quiz", "machine", "kept_files"],
    ["cpu", "gpu", "cases", "decoder"],
    ["emulator"],
    ["passes"],
    ["schedules"],
    ["measure"],
    ["quantized"],
    ["models", "chat"],
    ["bench"],
    ["doctor", "tensorize_probe"],
]
OURS = ("chapters", "solutions", "docs", "tests")
CHECKS = re.compile(r"chapters\.ch\d\d_\w+\.check(s|_\w+)$")


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _find_imports(code: str, *, top: bool = False) -> Iterator[str]:
    """The modules that `code` imports by their whole names; top: only those that it imports as soon as it is read."""
    tree = ast.parse(code)
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"write `{ast.unparse(node)}` with the whole name of the module"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                path = ROOT.joinpath(*whole.split("."))
                yield whole if path.is_dir() or path.with_suffix(".py").exists() else node.module


def _read_files() -> Iterator[tuple[str, str]]:
    """(module, code) of each file; the blocks of a lesson or a page count as a module of their chapter, or of docs."""
    for tree in OURS:
        for path in sorted((ROOT / tree).rglob("*.py")):
            yield _module_name(path), path.read_text(encoding="utf-8")
    for path in [*(ROOT / "docs").glob("*.md"), *(ROOT / "chapters").glob("*/lesson.md")]:
        blocks = read_blocks(path, path.name)
        if blocks:
            yield _module_name(path), "\n".join(block.code for block in blocks)


def _find_layer(module: str) -> str:
    if CHECKS.match(module):
        return "checks"
    return max((part for part in LAYERS if _is_within(module, part)), key=len, default="")


def _is_within(module: str, part: str) -> bool:
    return module == part.rstrip(".") or module.startswith(part)


FILES = list(_read_files())


def test_every_file_is_read():
    modules = {module for module, _ in FILES}
    assert {"chapters.child", "chapters.ch06_reduction_epilogue.lesson", "docs.index"} <= modules


@pytest.mark.parametrize("part", LAYERS)
def test_arrows_run_one_way(part):
    back = [
        f"{module} imports {used}"
        for module, code in FILES
        if _find_layer(module) == part
        for used in _find_imports(code)
        if used.split(".")[0] in OURS
        and not any(_is_within(used, allowed) for allowed in [part, *LAYERS[part]])
    ]
    entry = re.compile(r"chapters\.ch\w+\.__main__ imports chapters\.runner\.story$")
    assert not [arrow for arrow in back if not entry.match(arrow)]


def test_only_checks_and_tests_import_checks():
    back = [
        f"{module} imports {used}"
        for module, code in FILES
        if _find_layer(module) not in ("checks", "chapters.checking.", "tests.")
        for used in _find_imports(code)
        if CHECKS.match(used) or used.startswith("chapters.checking.")
    ]
    assert not back


def test_a_reference_imports_its_chapter_and_no_page():
    """Of chapters, a solution takes what is given; labs, quizzes and benches are not its business."""
    solutions = [code for module, code in FILES if module.startswith("solutions.")]
    taken = {
        used for code in solutions for used in _find_imports(code) if used[:11] == "chapters.ch"
    }
    allowed = re.compile(r"chapters\.(child|ch\w+\.(given|as_upstream|warp_schedule))$")
    assert not [used for used in taken if not allowed.match(used)]


def test_packages_of_the_kit_have_an_order():
    floor = {name: number for number, names in enumerate(KIT) for name in names}
    known = {path.stem for path in (ROOT / "chapters" / "kit").iterdir() if path.stem[0] != "_"}
    assert known == set(floor), "each package of the kit has its floor in KIT"
    back = [arrow for arrow in _find_kit_imports() if floor[arrow[1]] > floor[arrow[0]]]
    assert not back


def _find_kit_imports() -> set[tuple[str, str]]:
    """(package, another one that it imports), of the kit's packages."""
    kit = [(m.split(".")[2], code) for m, code in FILES if m.startswith("chapters.kit.")]
    used = ((mine, u) for mine, code in kit for u in _find_imports(code))
    found = {(mine, u.split(".")[2]) for mine, u in used if u.startswith("chapters.kit.")}
    return {(mine, other) for mine, other in found if mine != other}


def test_packages_of_the_kit_have_no_cycle():
    arrows: dict[str, set[str]] = defaultdict(set)
    for mine, used in _find_kit_imports():
        arrows[mine].add(used)
    TopologicalSorter(arrows).prepare()  # CycleError names those that import each other


def test_the_files_of_a_bench_have_no_cycle():
    """Benches name the modules of their baselines as text, and import them by it. `given` belongs to no bench."""
    chapter = {m: c for m, c in FILES if re.match(r"chapters\.ch\d\d_\w+\.(?!given$)", m)}
    arrows = {
        module: {*_find_imports(code), *_find_texts(code)} - {module}
        for module, code in chapter.items()
    }
    TopologicalSorter({m: used & set(chapter) for m, used in arrows.items()}).prepare()


def _find_texts(code: str) -> set[str]:
    """The texts in `code`, among which are modules that are imported by name."""
    return {n.value for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Constant)}


def test_the_runner_starts_without_tvm():
    """A missing or broken TVM must still get a sentence from `python -m chapters`."""
    runner = [(m, code) for m, code in FILES if m.startswith("chapters.runner.")]
    imports = [(module, used) for module, code in runner for used in _find_imports(code, top=True)]
    assert not [pair for pair in imports if pair[1].split(".")[0] in ("tvm", "tvm_ffi", "numpy")]


def test_the_test_sees_an_arrow_that_runs_back(monkeypatch):
    monkeypatch.setitem(
        globals(), "FILES", [("chapters.kit.ir.x", "import chapters.checking.expect")]
    )
    with pytest.raises(AssertionError, match=r"chapters\.kit\.ir\.x imports chapters\.checking"):
        test_arrows_run_one_way("chapters.kit.")


IMPORTS = """
import importlib, inspect, pkgutil, sys
import tvm, tvm_ffi
from tvm.s_tir.schedule import _type_checker
from tvm.script.parser.core import doc

def snapshot():
    found = {f"sys.{name}": list(map(id, getattr(sys, name))) for name in ("meta_path", "path_hooks")}
    for module in (inspect, doc, _type_checker, tvm_ffi.registry, importlib._bootstrap):
        found |= {f"{module.__name__}.{name}": id(value) for name, value in vars(module).items()}
    return found

before = snapshot()
import chapters.kit, chapters.runner.worker
for module in pkgutil.walk_packages(chapters.kit.__path__, "chapters.kit."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:  # one module subclasses TVM's importer, which imports PyTorch
            assert missing.name == "torch"
after = snapshot()
print([name for name in before | after if before.get(name) != after.get(name)])
"""


def test_importing_the_course_changes_nothing_in_tvm():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
