"""TVMScript, parsed in a thread that has no callers.

For each function and inlined function TVM's parser asks `inspect` about all of its callers. For a caller that is in no
module, such as the part of Python that imports files, `inspect` looks through all modules that are loaded: a function
that is parsed in 0.01 s takes 0.1 s and more where a file is being imported, or under pytest.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec, module_from_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import ParamSpec, TypeVar

import tvm
import tvm.s_tir
from tvm import tirx

Given, Returned = ParamSpec("Given"), TypeVar("Returned")
INTRINSICS = "tvm.s_tir.tensor_intrin"


def parse_alone(makes_kernel: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """A decorator: the function runs in a thread of its own, which knows no `Target` or `PassContext` of the caller."""

    @functools.wraps(makes_kernel)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(makes_kernel, *args, **kwargs).result()

    return run


def kernel_for_rows(make_kernel: Callable) -> Callable:
    """A decorator for functions `(dims, *facts)` that parse a kernel for tensors with these leading dimensions.

    The function is parsed alone, and once: for dimensions of the same sizes and names, and equal facts, the same kernel
    is given again.
    """
    alone = parse_alone(make_kernel)

    @functools.lru_cache(maxsize=64)
    def remembered(sizes: tuple[int | str, ...], *facts: object) -> tirx.PrimFunc:
        dims = [
            tirx.Var(size, "int64") if isinstance(size, str) else tirx.IntImm("int64", size)
            for size in sizes
        ]
        return alone(dims, *facts)

    @functools.wraps(make_kernel)
    def run(dims: Sequence[tvm.ir.Expr], *facts: object) -> tirx.PrimFunc:
        sizes = [d.name if isinstance(d, tvm.ir.Var) else getattr(d, "value", d) for d in dims]
        if any(isinstance(size, tvm.ir.Expr) for size in sizes):  # such as 2 * n
            return alone(dims, *facts)
        return remembered(tuple(sizes), *facts)

    return run


_PARSED: dict[tuple, tvm.IRModule | tirx.PrimFunc] = {}


def from_source(
    text: str, names: dict[str, object] | None = None, *, check_well_formed: bool = True
) -> tvm.IRModule | tirx.PrimFunc:
    """What TVM's parser makes of `text`. The same text gives the same function, or a new module of the same functions.

    names: objects that the text may use by these names; without them it has I, R and T. Parsing takes 20 ms and more,
    so the result is remembered, unless one of these objects is not a module, a number or a string.
    """
    given = (names or {}).items()
    simple = all(isinstance(value, ModuleType | int | float | str) for _, value in given)
    key = text, check_well_formed, *((name, repr(value)) for name, value in given)
    found = _PARSED.get(key) if simple else None
    if found is None:
        parse = parse_alone(tvm.script.from_source)
        found = parse(text, names, check_well_formed=check_well_formed)
        if simple:
            _PARSED[key] = found
    return found.clone() if isinstance(found, tvm.IRModule) else found


@parse_alone
def import_intrinsics() -> None:
    """Import TVM's tensor intrinsics, which dlight's rules for matrix products import when they first need them.

    They are nearly 250 functions. `import` parses them below its own callers, in half a minute; this runs the same
    files one after the other, in a few seconds.
    """
    if INTRINSICS in sys.modules:
        return
    package = module_from_spec(find_spec(INTRINSICS))
    sys.modules[INTRINSICS] = package
    try:
        for name in sorted(one.name for one in iter_modules(package.__path__)):
            _execute_module(f"{INTRINSICS}.{name}")
        package.__spec__.loader.exec_module(package)
    except BaseException:  # then `import` does it, and says what is wrong
        for name in [one for one in sys.modules if one.startswith(INTRINSICS)]:
            del sys.modules[name]
        return
    tvm.s_tir.tensor_intrin = package


def _execute_module(name: str) -> None:
    """Run the file of the module `name`, unless another one has imported it, without a caller from importlib."""
    if name in sys.modules:
        return
    module = module_from_spec(find_spec(name))
    sys.modules[name] = module
    exec(module.__spec__.loader.get_code(name), module.__dict__)
    setattr(sys.modules[INTRINSICS], name.rpartition(".")[2], module)
