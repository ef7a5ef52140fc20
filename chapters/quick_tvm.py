"""Makes TVM faster in five places. Where PyTorch is installed, TVM imports it; that takes twice as long as the rest.
While TVM is imported, it lists its 2,000 functions for each of 51 modules, and Python looks for garbage that is not
there. Every schedule primitive works out anew what the type hints of its parameters mean. TVMScript's parser makes the
syntax tree of a text anew each time; what it changes in a tree, such as the step of a slice that has none, it sets each
time.

The course converts PyTorch's tensors itself, and everyone else can still import it.
"""

import ctypes
import functools
import gc
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType

ASK_FOR_TORCH = ("tvm_ffi.", "tvm.relax.base_py_module.")  # they do without it where there is none
imported: list[ModuleType] = []  # tvm, when its import has ended


class _Finder(MetaPathFinder):
    def __init__(self, hide_torch: bool):
        self._hide_torch = hide_torch

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        if name == "tvm":
            return _without_collecting(PathFinder.find_spec(name, path))
        if name in CHANGES:
            return _then(PathFinder.find_spec(name, path), CHANGES[name])
        if (
            name == "torch"
            and self._hide_torch
            and f"{_importer(sys._getframe(1))}.".startswith(ASK_FOR_TORCH)
        ):
            raise ModuleNotFoundError("not imported for TVM alone", name=name)
        return None


def _importer(frame: FrameType) -> str:
    """The module whose import statement is being executed."""
    while (name := str(frame.f_globals.get("__name__", ""))).startswith("importlib."):
        frame = frame.f_back
    return name


def _then(spec: ModuleSpec | None, change) -> ModuleSpec | None:
    """`spec`, whose module is changed as soon as it has been executed; None if there is no such module."""
    if spec is None:
        return None
    execute = spec.loader.exec_module

    def execute_and_change(module: ModuleType) -> None:
        execute(module)
        change(module)

    spec.loader.exec_module = execute_and_change
    return spec


def _without_collecting(spec: ModuleSpec | None) -> ModuleSpec | None:
    """`spec`, whose module is executed without looking for garbage: a tenth of a second."""
    if spec is None:
        return None
    execute = spec.loader.exec_module

    def execute_alone(module: ModuleType) -> None:
        collects = gc.isenabled()
        gc.disable()
        try:
            execute(module)
        finally:
            imported.append(module)
            if collects:
                gc.enable()

    spec.loader.exec_module = execute_alone
    return spec


def _remember_names(registry: ModuleType) -> None:
    """Give TVM's modules their functions from a list that is made again where there are more or fewer of them.

    That is only while TVM is imported: later, one function may be removed and another added.
    """
    give, names = registry.init_ffi_api, registry.list_global_func_names
    count = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")
    known: dict[int, list[str]] = {}

    def remembered() -> list[str]:
        now = count()(-1)
        if now not in known:
            known.clear()
            known[now] = names()
        return known[now]

    def init_ffi_api(*arguments, **named) -> None:
        if imported:
            return give(*arguments, **named)
        registry.list_global_func_names = remembered
        try:
            give(*arguments, **named)
        finally:
            registry.list_global_func_names = names

    registry.init_ffi_api = init_ffi_api


def _remember_types(checker: ModuleType) -> None:
    """Check a type against a hint once. Only what a list, a tuple or a dict holds is checked each time."""
    check = checker._type_check
    right: set[tuple] = set()

    def remembered(value, name, hint):
        key = type(value), hint
        try:
            if key in right:
                return None
        except TypeError:  # a hint that has no hash
            return check(value, name, hint)
        wrong = check(value, name, hint)
        if wrong is None and not isinstance(value, (list, tuple, dict)):
            right.add(key)
        return wrong

    checker._type_check = remembered


def _remember_trees(doc: ModuleType) -> None:
    """Make the syntax tree of a text once."""
    doc.parse = functools.lru_cache(maxsize=512)(doc.parse)


CHANGES = {
    "tvm_ffi.registry": _remember_names,
    "tvm.s_tir.schedule._type_checker": _remember_types,
    "tvm.script.parser.core.doc": _remember_trees,
}


def install() -> None:
    """Use it in this process. PyTorch is left alone if TVM needs the CUDA runtime that it brings."""
    hide_torch = sys.platform != "win32"  # there, PyTorch cannot always be imported after TVM
    if hide_torch:
        try:
            ctypes.CDLL("libcuda.so.1")
            hide_torch = False
        except OSError:
            pass
    sys.meta_path.insert(0, _Finder(hide_torch))
