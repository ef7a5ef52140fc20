"""Asks what a pass has attached: attributes of functions, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import relax, tirx

from chapters.checking import expect
from chapters.checking.expect import Section

A_PASS = Section("chapters/ch01_walk_the_ir/lesson.md", "A pass is a function")


def to_python(value: object) -> object:
    """An attribute's value in Python's own types."""
    if isinstance(value, dict | tvm_ffi.Map):
        return {str(key): to_python(one) for key, one in value.items()}
    if isinstance(value, list | tuple | tvm_ffi.Array):
        return [to_python(one) for one in value]
    return value


def attributes(mod: tvm.IRModule) -> dict[str, dict[str, object]]:
    """The attributes of every function of `mod`, by the function's name."""
    return {
        gvar.name_hint: {
            key: to_python(value) for key, value in sorted(dict(func.attrs or {}).items())
        }
        for gvar, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint)
    }


def _read_module_facts(mod: tvm.IRModule) -> object:
    """What the module itself carries besides its functions: its attributes, and the names of its global infos."""
    return {"attrs": to_python(dict(mod.attrs or {})), "global_infos": sorted(mod.global_infos)}


def keeps_module_facts(
    after: tvm.IRModule,
    before: tvm.IRModule,
    whose: str,
    why: str = "IRModule(functions) keeps only the functions. `mod.clone()` copies what belongs to the module too.",
) -> None:
    """`after` has the attributes and the global infos of `before`, the module that the pass `whose` was given."""
    what = f"{whose} lost or changed the attributes or the global infos of the module itself."
    A_PASS.equal(_read_module_facts(after), _read_module_facts(before), what, why=why)


def check_attaches(
    transform: Callable,
    mod: tvm.IRModule,
    whose: str,
    extra: Callable[[str], dict],
    read: Section,
    read_not: Section | None = None,
    settles: bool = True,
) -> tvm.IRModule:
    """`transform(mod)` differs from `mod` in that each Relax function has the attributes `extra(name)` too.

    A second run changes nothing, if it `settles`. read: where to read on; read_not: about what must get no attribute.
    """
    result = expect.apply(transform, mod, whose)
    before, after = attributes(mod), attributes(result)
    read.equal(list(after), list(before), f"Your {whose} added or removed functions.")
    wanted = mod.clone()
    kinds = {relax.Function: "the Relax function", tirx.PrimFunc: "the PrimFunc"}
    for gvar, func in mod.functions_items():
        name = gvar.name_hint
        more = extra(name) if isinstance(func, relax.Function) else {}
        kind = kinds.get(type(func), "the external function")
        _check_attributes(
            f"{kind} `{name}`", before[name], more, after[name], whose, read, read_not
        )
        if more:
            wanted[gvar] = func.with_attrs(more)
    keeps_module_facts(result, mod, f"Your {whose}")
    why = "An attach pass adds a fact. It must not change what the functions compute."
    read.same_ir(result, wanted, f"Your {whose} changed more than attributes.", why=why)
    if settles:
        expect.runs_twice_the_same(transform, result, whose)
    return result


def _check_attributes(
    who: str,
    before: dict,
    more: dict,
    after: dict,
    whose: str,
    read: Section,
    read_not: Section | None,
) -> None:
    wanted = {**before, **more}
    shown = {"expected": repr(wanted), "yours": repr(after)}
    for key in wanted:
        why = "Another pass attached this attribute, and a third one will read it. Keep it."
        what = f"Your {whose} removed the attribute `{key}` of {who}."
        read.that(key in after or key not in before, what, why=why, **shown)
        why = "If a function lacks the attribute, later passes do not know the fact about it."
        read.that(key in after, f"Your {whose} did not attach `{key}` to {who}.", why=why, **shown)
    for key in after:
        what = f"Your {whose} attached `{key}` to {who}, which must not get it."
        why = "A later pass acts on every attribute that it finds. Here the fact is not about this function."
        (read_not or read).that(key in wanted, what, why=why, **shown)
    for key, value in wanted.items():
        what = f"Your {whose} gave {who} a wrong value of `{key}`."
        read.that(  # 1 == True in Python, and two attributes in the IR
            isinstance(after[key], bool) == isinstance(value, bool),
            what,
            expected=repr(value),
            yours=f"{after[key]!r}, a{'' if isinstance(after[key], bool) else 'n'} {type(after[key]).__name__}",
            why="True and 1 are different attributes: two modules that differ in this are not equal.",
        )
        read.equal(after[key], to_python(value), what)
