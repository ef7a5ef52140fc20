"""The course runs TVM as it is installed: importing it replaces nothing in TVM, in `inspect` or in Python's imports."""

import subprocess
import sys

from chapters.runner.course import ROOT

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
