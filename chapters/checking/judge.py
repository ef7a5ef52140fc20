"""Judges what a module pass makes of one program: eight looks in order, of which the first that fails is reported."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from chapters.checking import expect
from chapters.checking.programs import arguments, attributes_as_text, poison
from chapters.kit.ir.relax_effects import calls_in, calls_of_module

# four roundings of the dtype, relative to the largest element of a result
TOLERANCE = {"float32": 8e-6, "float16": 6e-3, "bfloat16": 4.8e-2}
SAME_NUMBERS = (
    "A pass may change how a result is computed, but not the result. Expected is what the same program gives without "
    "the pass, on random arguments. Every tensor holds NaN until a kernel writes it."
)


def judge_pass(
    transform: Callable[[tvm.IRModule], object],
    mod: tvm.IRModule,
    whose: str,
    title: str,
    *,
    fires: Callable[[tvm.IRModule], None] | None = None,
    calls: Mapping[str, int] | None = None,
    count: Callable[[tvm.IRModule], Mapping[str, int]] | None = None,
    stays: bool = False,
    runs: bool = True,
    functions: Mapping[str, str] | None = None,
    settles: bool = True,
    fewer: tuple[str, Callable[[tvm.IRModule], int], int] | None = None,
    why: str = "",
    why_numbers: str = SAME_NUMBERS,
    read: str = "",
) -> tvm.IRModule:
    """`transform(mod)`, looked at eight times; the first look that is not right raises CheckFailed.

    1 It returns a module, 2 the module that it was given is unchanged, 3 the result is well-formed. 4 It fires where it
    must: `fires(result)`, a look of the chapter's own, or the result has the `calls`, by what `count` counts, which is
    an operator's name unless that is given. 5 It does not fire where it must not: if `stays`, the result is `mod`.
    6 Every public function, or each of `functions`, gives the same numbers, as `same_numbers` says; not asked if the
    program `stays`, or not `runs`. 7 A second run changes nothing more; asked if `settles`. 8 The cost fell: `fewer` is
    what is counted, how, and by how much less the result has of it.

    whose: the name of the pass. title: what the program is, after which messages name it, such as "a square weight".
    why: of the fourth, fifth and eighth look. read: where to read on.
    """
    more = {"why": why, "read": read}
    result = expect.apply(transform, mod, whose, why if stays else "")
    if fires:
        fires(result)
    if calls is not None:
        found = (count or count_operators)(result)
        here = {name: found.get(name, 0) for name in calls}
        what = f"{whose} leaves the wrong calls in {title}."
        yours = _list_times(here) + "\n" + expect.script(result)
        expect.that(here == calls, what, expected=_list_times(calls), yours=yours, **more)
    if stays:
        what = f"{whose} changes {title}, which it must leave alone."
        expect.same_ir(result, mod, what, **more)
    elif runs:
        same_numbers(mod, result, whose, title, functions, why=why_numbers, read=read)
    if settles:
        expect.runs_twice_the_same(transform, result, whose)
    if fewer:
        what_is_counted, counted, saved = fewer
        before, after = counted(mod), counted(result)
        what = f"After {whose}, {title} has {after} {what_is_counted}, and {before} without it."
        expect.that(before - after == saved, what, expected=f"{before - saved}", **more)
    return result


def count_operators(mod: tvm.IRModule) -> Counter[str]:
    """How often the Relax functions of `mod` call each operator, by its name without `relax.`."""
    ops = (call.op for call in calls_of_module(mod))
    return Counter(op.name.removeprefix("relax.") for op in ops if isinstance(op, tvm.ir.Op))


def _list_times(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {times}" for name, times in calls.items())


def same_numbers(
    before: tvm.IRModule,
    after: tvm.IRModule,
    whose: str,
    title: str,
    functions: Mapping[str, str] | None = None,
    *,
    why: str = SAME_NUMBERS,
    read: str = "",
) -> None:
    """Every public Relax function of `before` gives the same results in `after`, which the pass `whose` has made of it.

    The arguments are random; a function runs once for each value of its parameters that are one bool. Every tensor that
    `after` allocates holds poison at first, so that an element that no kernel writes shows.

    title: what the program is. functions: the functions to compare, and what each of them is.
    """
    if functions is None:
        public = expect.public_functions(before)
        functions = {f: f"{title}, in `{f}`" if len(public) > 1 else title for f in public}
    try:
        _compare(before, after, whose, functions, why, read)
    except Exception:
        # compiling one module is fast; if it fails, find the function that fails by itself
        for name in functions if len(functions) > 1 else ():
            both = (_keep_one(mod, name) for mod in (before, after))
            _compare(*both, whose, {name: functions[name]}, why, read)
        raise


def _keep_one(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """`mod` without its other public Relax functions."""
    others = set(expect.public_functions(mod)) - {name}
    return tvm.IRModule({g: f for g, f in mod.functions_items() if g.name_hint not in others})


def _compare(before, after, whose: str, functions: Mapping[str, str], why: str, read: str) -> None:
    old, new = expect.machine(before), expect.machine(after)
    new.set_instrument(_poison_what_is_allocated)
    for name, title in functions.items():
        for arrays in _with_each_choice(arguments(before[name])):
            yours, exact = (expect.call(vm, name, arrays) for vm in (new, old))
            same_results(yours, exact, whose, title, why, read)


def _poison_what_is_allocated(_func, symbol, before_run, result, *_arguments) -> None:
    """An instrument of a virtual machine."""
    if symbol == "vm.builtin.alloc_tensor" and not before_run:
        result.copyfrom(poison(np.empty(result.shape, str(result.dtype))))


def _with_each_choice(arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    """`arrays`, once for each value of those that are a single bool."""
    options = [
        [np.array(False), np.array(True)] if a.dtype == bool and not a.ndim else [a] for a in arrays
    ]
    return [list(chosen) for chosen in itertools.product(*options)]


def same_results(
    yours: list[np.ndarray], exact: list[np.ndarray], whose: str, title: str, why: str, read: str
) -> None:
    """As many results, of the same dtypes and shapes, and equal up to TOLERANCE."""
    kinds = [[f"{one.dtype} {one.shape}" for one in results] for results in (yours, exact)]
    what = f"{whose} changes the dtype or the shape of a result of {title}."
    expect.equal(*kinds, what, why=why, read=read)
    for a, b in zip(yours, exact, strict=True):
        near = TOLERANCE.get(str(b.dtype), 0.0)
        scale = max(1.0, float(np.abs(b.astype("float64")).max(initial=0.0)))
        what = f"{whose} changes the numbers of {title}."
        expect.close(a, b, what, rtol=near, atol=near * scale, why=why, read=read)


def observe_pass(
    make: Callable[[], Callable], *mods: tvm.IRModule, runs: bool = True
) -> list[Callable[[], str]]:
    """For an observer: what the pass that `make` gives makes of each of `mods`, in everything that `judge_pass` asks.

    The text names what each function calls, and the types of the results, but no variable. runs: with the numbers, in
    two digits.
    """

    def describe(mod: tvm.IRModule) -> str:
        given = mod.clone()
        after = make()(given)
        unchanged = tvm_ffi.structural_equal(given, mod)
        facts: list[object] = [unchanged, not unchanged and after.same_as(given)]
        facts.append(attributes_as_text(after.attrs))
        for gvar, func in sorted(after.functions_items(), key=lambda item: item[0].name_hint):
            facts += [gvar.name_hint, attributes_as_text(func.attrs)]
            for call in calls_in(func) if isinstance(func, relax.Function) else ():
                kernel = isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_tir"
                callee = call.args[0] if kernel else call.op
                named = getattr(callee, "name_hint", "") or getattr(callee, "name", "a closure")
                facts.append(f"{named} {call.attrs or ''} {call.ty}")
        facts.append(well_formed := relax.analysis.check_well_formed(after))
        for name in expect.public_functions(mod) if runs and well_formed else ():
            results = expect.call(expect.machine(after), name, arguments(mod[name]))
            facts += [np.round(one.astype("float64"), 2).tolist() for one in results]
        return str(facts)

    return [lambda mod=mod: describe(mod) for mod in mods]
