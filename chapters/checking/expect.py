"""What the checks ask of an answer, each as one function that raises CheckFailed with a message that teaches.

For a pass the questions come in the order of `apply`: does it return a module, is the module it was given unchanged, is
its result well-formed; then, in the check itself: does it fire, does it leave alone what it must, same numbers, same
result when run twice, lower cost.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from chapters.kit.cases.guard_zones import compile_once
from chapters.kit.ir.ir_diff import diff
from chapters.kit.ir.relax_effects import relax_functions
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import last_line

PURITY = (
    "A pass is a function from module to module. Other passes, caches and the caller's own `before` still hold the "
    "module it was given."
)

NEXT = "The next pass is called with what this one returns, also when there was nothing to change."
MOST_LINES = 60  # of a program that is shown whole


def equal(yours: object, expected: object, what: str, **more: object) -> None:
    """`yours == expected`, or fail with `what` and CheckFailed's other fields."""
    if yours != expected:
        raise CheckFailed(what, expected=repr(expected), yours=repr(yours), **more)


def that(condition: bool, what: str, **more: object) -> None:
    """`condition` holds, or fail with `what` and CheckFailed's other fields."""
    if not condition:
        raise CheckFailed(what, **more)


def predicted(yours: object, counted: float, what: str, **more: object) -> None:
    """A learner's prediction is the number `counted`, or fail with `what`.

    The message says neither the number, which is the answer, nor whether it is larger or smaller, by which the number
    could be found without a thought. CheckFailed's `why` says how to find it.
    """
    try:
        right, wanted = bool(yours == counted), "another number"
        bool(yours > counted)
    except (TypeError, ValueError):  # None, a text, an array
        right, wanted = False, "a number"
    if not right:
        raise CheckFailed(what, expected=wanted, yours=repr(yours)[:200], **more)


def has_keys(yours: object, keys: Iterable[str], what: str) -> None:
    """`yours` is a dict with these keys and no others."""
    right = isinstance(yours, dict) and set(yours) == set(keys)
    expected = f"a dict with the keys {', '.join(map(repr, keys))}"
    that(right, what, expected=expected, yours=repr(yours)[:200])


def returns(
    result: object,
    kind: type | tuple[type, ...],
    whose: str,
    named: str,
    *,
    expected: str = "",
    **more: object,
) -> None:
    """`whose` returned a `kind`, which a message calls `named`: "a dict". expected: the same, with details."""
    if not isinstance(result, kind):
        forgotten = "a `return` is missing, or one branch has none" if result is None else ""
        raise CheckFailed(
            f"{whose} returned {'None' if result is None else type(result).__name__}, not {named}.",
            expected=expected or named,
            yours=forgotten or repr(result)[:200],
            **more,
        )


def returns_module(result: object, whose: str, *, why: str = "") -> None:
    """`result` is an IRModule; the message says so if it is None."""
    returns(result, tvm.IRModule, whose, "an IRModule", why=why)


def has_function(mod: tvm.IRModule, name: str, whose: str) -> None:
    """`mod` holds a function called `name`."""
    known = sorted(gv.name_hint for gv in mod.get_global_vars())
    that(
        name in known,
        f"{whose} gave a module without a function `{name}`.",
        expected=f"a function called {name}",
        yours=", ".join(known) or "an empty module",
    )


def public_functions(mod: tvm.IRModule) -> list[str]:
    """The names of the Relax functions with the attribute `global_symbol`."""
    functions = relax_functions(mod).items()
    return [name for name, func in functions if "global_symbol" in (func.attrs or {})]


def keeps_public_functions(mod: tvm.IRModule, before: tvm.IRModule, whose: str, read: str) -> None:
    """`mod` has the public functions of `before`."""
    names, wanted = (set(public_functions(one)) for one in (mod, before))
    lost = wanted - names
    first = min(lost or names - wanted, default="")
    that(
        names == wanted,
        f"{whose} gave a module {'without the' if lost else 'with the new'} public function `{first}`.",
        expected=f"the public functions of the given module: {', '.join(sorted(wanted))}",
        yours=f"the public functions: {', '.join(sorted(names)) or 'none'}",
        why="A caller finds a public function by its name. A function is public if its attributes have "
        "`global_symbol`, so one that replaces another needs the attributes of that one.",
        read=read,
    )


def is_program(mod: object, whose: str, *names: str) -> None:
    """`mod` is a well-formed module with functions called `names`, which an answer `whose` was asked to make."""
    returns_module(mod, whose)
    for name in names:
        has_function(mod, name, whose)
    well_formed(mod, whose)


def outcome(
    transform: Callable[[tvm.IRModule], object], mod: tvm.IRModule, arrays: Sequence[np.ndarray]
) -> tuple[str, object]:
    """("numbers", the results of main after `transform`), or where that failed and TVM's last line."""
    where = "the pass raised"
    try:
        after = transform(mod.clone())
        where = "ill-formed"
        relax.analysis.well_formed(after)
        where = "does not run"
        return "numbers", call(machine(after), "main", arrays)
    except Exception as error:
        return where, last_line(error)


def unchanged(mod: tvm.IRModule, before: tvm.IRModule, whose: str) -> None:
    """`mod`, which was given to a pass, still equals `before`, its copy from before the call."""
    if tvm_ffi.structural_equal(mod, before):
        return
    raise CheckFailed(
        f"{whose} changed the module it was given.",
        expected="the given module as it was, and the change in the module you return",
        yours="the given module, before and after your pass:\n" + str(diff(before, mod)),
        why=PURITY,
        read="chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”",
    )


def well_formed(mod: tvm.IRModule, whose: str, why: str = "") -> None:
    """TVM's own checker accepts `mod`. why: is said after what is known of the violation."""
    try:
        relax.analysis.well_formed(mod)
    except Exception as error:
        name, text = _find_faulty(mod)
        said = re.sub(
            r"Function 0x[0-9a-f]+", f"`{name}`" if name else "A function", last_line(error)
        )
        raise CheckFailed(
            f"{whose} returned a module that is not well-formed: {said}",
            expected="every variable defined before it is used, every type in place",
            yours=text,
            why=f"{_explain(str(error))} {why}".strip(),
        ) from None


def _find_faulty(mod: tvm.IRModule) -> tuple[str, str]:
    """Name and text of the first Relax function that is not well-formed alone, else "" and the module; not too long."""
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and not relax.analysis.check_well_formed(func):
            return gvar.name_hint, script(func)
    return "", script(mod)


def script(program: tvm.IRModule | relax.Function) -> str:
    """The text of a program, cut where it is long."""
    lines = program.script().splitlines()
    left = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"... {left} more lines"] if left > 0 else [])])


def _explain(violation: str) -> str:
    if "used outside DataflowBlock" in violation:
        return "A variable that leaves its dataflow block is emitted with `emit_output`, the others with `emit`."
    if "within a dataflow block" in violation:
        return "A dataflow block must not contain side effects; ToNonDataflow turns dataflow blocks into ordinary ones."
    if "annotated as pure" in violation:
        return "A call that writes into one of its arguments is impure; RemovePurityChecking turns this check off."
    return "Neither passes nor relax.build check this: such a module fails later, or computes something else."


def apply(
    transform: Callable[[tvm.IRModule], object], mod: tvm.IRModule, whose: str, why: str = ""
) -> tvm.IRModule:
    """`transform(mod)`, after asking the three questions every pass is asked.

    `whose` names the pass in messages; `why` is said of a result that is not well-formed. Exceptions of the answer pass
    through, with the program it was given as their `given`; the worker words them.
    """
    given, before = mod.clone(), mod.clone()
    try:
        result = transform(given)
    except (NotImplementedError, CheckFailed):
        raise
    except Exception as error:
        # how TVM says that a module_pass returned None
        if "return value of a module pass must be set" not in str(error):
            error.given = script(_find_failing_function(transform, before, error))
            raise
        result = None
    returns_module(result, whose, why=NEXT)
    unchanged(given, before, whose)
    well_formed(result, whose, why)
    return result


def _find_failing_function(
    transform: Callable[[tvm.IRModule], object], mod: tvm.IRModule, error: Exception
) -> tvm.IRModule | relax.Function:
    """The first function of `mod` that, alone in a module, makes `transform` raise the same error; else `mod`."""
    functions = [(g, f) for g, f in mod.functions_items() if isinstance(f, relax.Function)]
    for gvar, func in functions if len(functions) > 1 else []:
        try:
            transform(tvm.IRModule({gvar: func}))
        except Exception as again:
            if type(again) is type(error) and last_line(again) == last_line(error):
                return func
    return mod


def same_ir(yours: tvm.IRModule, expected: tvm.IRModule, what: str, **more: object) -> None:
    """Structural equality. Use it only where the design is forced; elsewhere compare behaviour."""
    if not tvm_ffi.structural_equal(yours, expected):
        shown = "- expected, + yours\n" + str(diff(expected, yours))
        raise CheckFailed(what, yours=shown, **more)


def runs_twice_the_same(
    transform: Callable[[tvm.IRModule], tvm.IRModule], once: tvm.IRModule, whose: str
) -> None:
    """`transform` does not change its own result `once` when it runs again."""
    said = f"{whose} changed its own result when it ran a second time."
    why = "A pipeline may run a pass again; a pass that finds nothing to do must change nothing."
    same_ir(transform(once.clone()), once, said, why=why)


def run(mod: tvm.IRModule, name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Compile `mod` for this CPU and call its function `name`, which returns one tensor."""
    (result,) = call(machine(mod), name, arrays)
    return result


def machine(mod: tvm.IRModule) -> relax.VirtualMachine:
    """`mod`, compiled for this CPU."""
    return relax.VirtualMachine(compile_once(mod), tvm.cpu())


def call(vm: relax.VirtualMachine, name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Every result of the function `name`; each array is copied into TVM's aligned memory."""
    result = vm[name](*[tvm.runtime.tensor(np.asarray(a, order="C")) for a in arrays])
    one = isinstance(result, tvm.runtime.Tensor)
    return [r.numpy() for r in ([result] if one else result)]


def close(
    yours: np.ndarray,
    expected: np.ndarray,
    what: str,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    **more: object,
) -> None:
    """Same shape and, element by element, |yours - expected| <= atol + rtol * |expected|; NaN is never close."""
    yours, expected = np.asarray(yours), np.asarray(expected)
    if yours.shape != expected.shape:
        shapes = {"expected": f"shape {expected.shape}", "yours": f"shape {yours.shape}"}
        raise CheckFailed(what, **shapes, **more)
    error = np.abs(yours.astype("float64") - expected.astype("float64"))
    bad = ~(error <= atol + rtol * np.abs(expected.astype("float64")))
    if not bad.any():
        return
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    within = f"within {rtol:g} relative and {atol:g} absolute" if rtol or atol else "exactly"
    where, rest = "", ""
    if expected.ndim:
        unknown = int(np.isnan(error[bad]).sum())
        worst = f"{unknown} of them NaN" if unknown else f"the worst by {error[bad].max():.3g}"
        where = f" at {list(first)}"
        rest = f" there; {int(bad.sum())} of {bad.size} elements are off, {worst}"
    raise CheckFailed(
        what,
        expected=f"{expected[first]:.6g}{where}, {within}",
        yours=f"{yours[first]:.6g}{rest}",
        **more,
    )


def _with_section(ask: Callable) -> Callable:
    """`ask` as a method of a Section, which is where to read on."""

    @functools.wraps(ask)
    def method(section: Section, *args: object, **more: object) -> object:
        return ask(*args, read=str(section), **more)

    return method


class Section(str):
    """Where to read on: a section of a lesson. Failures that are raised through it name that section."""

    def __new__(cls, lesson: str, heading: str):
        return super().__new__(cls, f"{lesson}, “{heading}”")

    def __reduce__(self):  # pickled as plain text, for another process
        return str, (str(self),)

    equal = _with_section(equal)
    that = _with_section(that)
    predicted = _with_section(predicted)
    close = _with_section(close)
    same_ir = _with_section(same_ir)
    returns = _with_section(returns)
    failed = _with_section(CheckFailed)  # the failure, to be raised

    def each_predicted(
        self, yours: object, counted: dict[str, float], whose: str, what: str, *, why: str
    ) -> None:
        """`yours` is a dict with the right number for each key of `counted`; `what` has {} in place of the key."""
        has_keys(yours, counted, f"{whose} does not return a dict with these numbers.")
        for key, number in counted.items():
            self.predicted(yours[key], number, what.format(key), why=why)
