"""The checks of chapter 2: what the six passes attach, and what their readers make of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain, combinations

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from chapters.toolkit.decoder.llama import decoder
from chapters.toolkit.pipeline.captured_kernels import captured
from chapters.toolkit.pipeline.planned_storage import planned
from tests.harness import expect
from tests.harness.failure import CheckFailed

LESSON = "chapters/ch02_attach_metadata/lesson.md"
HOW = f"{LESSON}, “How it works”"
NOT = f"{LESSON}, “When it must not fire”"
READERS = f"{LESSON}, “See it”"

BOUNDS = "tir_var_upper_bound"
NON_NEGATIVE = "tir_non_negative_var"
PLAN_OUTPUT = "relax.memory_plan_dynamic_func_output"
HINTS = "relax.rewrite_cuda_graph.capture_symbolic_vars"
STAGES = "pipeline_parallel_stages"
FACTOR = "seqlen_padding_factor"

LIMITS = {"test_2_8_agrees_with_the_compiler": 60}


# --- modules to attach to -------------------------------------------------------------------------


@I.ir_module
class Mixed:
    """No function called main, one of every kind; `prefill` is a kernel here, not the model's function."""

    I.module_attrs({"model": "mixed"})

    @T.prim_func(s_tir=True, private=True)
    def prefill(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            with T.sblock("twice"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj] * T.float32(2)

    @R.function(private=True)
    def helper(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        y = R.exp(x)  # no dataflow block
        return y

    @R.function
    def decode(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        R.func_attr({"num_input": 1})
        cls = Mixed
        with R.dataflow():
            y = R.call_tir(cls.prefill, (x,), out_ty=R.Tensor((4, 8), "float32"))
            z = cls.helper(y)
            R.output(z)
        return z

    @R.function
    def decode_step(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n", "m"), "float32"):
        with R.dataflow():
            y = R.tanh(x)
            R.output(y)
        return y


Mixed["sampler"] = relax.ExternFunc("runtime.sampler")


@T.prim_func(s_tir=True)
def halve(a: T.Buffer((6,), "float32"), b: T.Buffer((6,), "float32")):
    for i in range(6):
        with T.sblock("halve"):
            vi = T.axis.spatial(6, i)
            b[vi] = a[vi] * T.float32(0.5)


@T.prim_func(s_tir=True, private=True)
def shift(a: T.Buffer((6,), "float32"), b: T.Buffer((6,), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in range(6):
        with T.sblock("shift"):
            vi = T.axis.spatial(6, i)
            b[vi] = a[vi] + T.float32(3)


@cache
def _batch_decode() -> tvm.IRModule:
    return decoder("tiny", functions=["batch_decode"])[0]


def _elementwise(*names: str) -> tvm.IRModule:
    """main(x) of five element-wise calls on a tensor whose symbolic dimensions are `names`."""
    builder = relax.BlockBuilder()
    shape = [*(tirx.Var(name, "int64") for name in names), 16]
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for op in (relax.op.exp, relax.op.tanh, relax.op.sqrt, relax.op.negative):
                y = builder.emit(op(y))
            out = builder.emit_output(relax.op.add(y, x))
        builder.emit_func_output(out)
    return builder.get()


# --- attributes, as plain values ------------------------------------------------------------------


def plain(value: object) -> object:
    """An attribute's value in Python's own types."""
    if isinstance(value, dict | tvm_ffi.Map):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | tvm_ffi.Array):
        return [plain(one) for one in value]
    return value


def attributes(mod: tvm.IRModule) -> dict[str, dict[str, object]]:
    """The attributes of every function of `mod`, by the function's name."""
    return {
        gvar.name_hint: {key: plain(value) for key, value in sorted(dict(func.attrs or {}).items())}
        for gvar, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint)
    }


def _of_the_module(mod: tvm.IRModule) -> dict[str, object]:
    """The attributes that the module itself carries, besides those of its functions."""
    return {str(key): plain(value) for key, value in dict(mod.attrs or {}).items()}


def _kind(func: object) -> str:
    return {relax.Function: "the Relax function", tirx.PrimFunc: "the PrimFunc"}.get(
        type(func), "the external function"
    )


def attaches(
    transform: Callable, mod: tvm.IRModule, whose: str, extra: Callable[[str, object], dict]
) -> tvm.IRModule:
    """`transform(mod)` differs from `mod` in that each function has the attributes `extra(name, func)` too."""
    result = expect.apply(transform, mod, whose)
    before, after = attributes(mod), attributes(result)
    expect.equal(list(after), list(before), f"{whose} added or removed functions.", read=HOW)
    wanted = mod.clone()
    for gvar, func in mod.functions_items():
        name, more = gvar.name_hint, extra(gvar.name_hint, func)
        _attributes_are(f"{_kind(func)} `{name}`", before[name], more, after[name], whose)
        if more:
            wanted[gvar] = func.with_attrs(more)
    expect.equal(
        _of_the_module(result),
        _of_the_module(mod),
        f"{whose} lost or changed what belongs to the module itself: its own attributes.",
        why="IRModule(functions) knows nothing but its functions. `mod.clone()` copies the rest too.",
        read="chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”",
    )
    expect.same_ir(
        result,
        wanted,
        f"{whose} changed more than attributes.",
        why="An attach pass adds a fact; what the functions compute is none of its business.",
        read=HOW,
    )
    return result


def _attributes_are(who: str, before: dict, more: dict, after: dict, whose: str) -> None:
    wanted = {**before, **more}
    for key in wanted:
        if key not in after:
            lost = key in before
            raise CheckFailed(
                f"{whose} {'lost' if lost else 'did not attach'} `{key}` {'of' if lost else 'to'} {who}.",
                expected=repr(wanted),
                yours=repr(after),
                why="An attribute that was there belongs to another pass; keep it."
                if lost
                else "A function without the attribute is treated as if nothing were known about it.",
                read=HOW,
            )
    for key in after:
        if key not in wanted:
            raise CheckFailed(
                f"{whose} attached `{key}` to {who}, which must not have it.",
                expected=repr(wanted),
                yours=repr(after),
                why="A reader downstream believes every attribute it finds.",
                read=NOT,
            )
    for key, value in wanted.items():
        expect.that(  # 1 == True in Python, and two attributes in the IR
            isinstance(after[key], bool) == isinstance(value, bool),
            f"{whose} gave {who} another value of `{key}`.",
            expected=repr(value),
            yours=f"{after[key]!r}, a{'' if isinstance(after[key], bool) else 'n'} {type(after[key]).__name__}",
            why="A reader may take either for the same, but two modules that differ in it are not equal.",
            read=HOW,
        )
        expect.equal(
            after[key],
            plain(value),
            f"{whose} gave {who} another value of `{key}`.",
            read=HOW,
        )


def is_registered(a_pass: tvm.transform.Pass, name: str) -> None:
    """The pass has the name and the optimisation level that the pipeline expects."""
    expect.equal(
        (a_pass.info.name, int(a_pass.info.opt_level)),
        (name, 0),
        "The pass is not registered under the name and level that instruments and printouts show.",
        why="A pass of a higher level is skipped silently where PassContext(opt_level=…) is below it.",
    )


def _told(transform: Callable, mod: tvm.IRModule) -> str:
    """For observers: what a pass attached, to which module, and whether it wrote on its input."""
    given = mod.clone()
    result = transform(given)
    return f"{attributes(result)} {plain(dict(result.attrs or {}))} input {attributes(given)}"


# --- 2.1 ------------------------------------------------------------------------------------------


def _bounds(bounds: dict[str, int]) -> Callable[[str, object], dict]:
    more = {BOUNDS: bounds, NON_NEGATIVE: ["vocab_size"]}
    return lambda _name, func: more if isinstance(func, relax.Function) else {}


def test_2_1_attaches_to_every_relax_function(impl) -> None:
    """both attributes, on every Relax function, and on nothing else"""
    bounds = {"n": 64, "m": 7}
    a_pass = impl.AttachVariableBounds(dict(bounds))
    attaches(a_pass, Mixed, "AttachVariableBounds", _bounds(bounds))
    attaches(a_pass, _elementwise("n"), "AttachVariableBounds", _bounds(bounds))


def test_2_1_drops_what_is_no_bound(impl) -> None:
    """a bound of -1 or 0 says nothing, and is not passed on"""
    given = {"n": 64, "max_seq_len": -1, "zero": 0, "one": 1}
    kept = {"n": 64, "one": 1}
    attaches(impl.AttachVariableBounds(given), Mixed, "AttachVariableBounds", _bounds(kept))
    expect.equal(
        given,
        {"n": 64, "max_seq_len": -1, "zero": 0, "one": 1},
        "AttachVariableBounds changed the dict it was given.",
        why="The caller uses one dict of bounds for several passes.",
        read=NOT,
    )


def test_2_1_without_any_bound(impl) -> None:
    """with no bound left, the attributes are there and the map is empty"""
    for bounds in ({}, {"max_seq_len": -1}):
        attaches(impl.AttachVariableBounds(bounds), Mixed, "AttachVariableBounds", _bounds({}))


def test_2_1_keeps_its_own_bounds(impl) -> None:
    """what the caller does with the dict afterwards does not reach the pass"""
    bounds = {"n": 64}
    a_pass = impl.AttachVariableBounds(bounds)
    bounds["n"] = 1
    attaches(a_pass, Mixed, "AttachVariableBounds", _bounds({"n": 64}))


def test_2_1_newer_bounds_win(impl) -> None:
    """run again it changes nothing; run with other bounds it replaces the old ones"""
    once = impl.AttachVariableBounds({"n": 64})(Mixed.clone())
    expect.runs_twice_the_same(impl.AttachVariableBounds({"n": 64}), once, "AttachVariableBounds")
    attaches(impl.AttachVariableBounds({"m": 5}), once, "AttachVariableBounds", _bounds({"m": 5}))


def test_2_1_map_relax_functions(impl) -> None:
    """map_relax_functions calls rewrite(name, func) for Relax functions and takes what it returns"""
    seen = []

    def rewrite(name: str, func: relax.Function) -> relax.Function:
        seen.append((name, isinstance(func, relax.Function)))
        return func if name == "helper" else func.with_attr("seen", name)

    attaches(
        lambda mod: impl.map_relax_functions(mod, rewrite),
        Mixed,
        "map_relax_functions",
        lambda name, _: {"seen": name} if name in ("decode", "decode_step") else {},
    )
    expect.equal(
        sorted(seen),
        [("decode", True), ("decode_step", True), ("helper", True)],
        "map_relax_functions did not call rewrite once for each Relax function.",
        read=HOW,
    )


def test_2_1_the_planner_knows_the_sizes(impl) -> None:
    """with the bounds, only what depends on vocab_size keeps a symbolic size in the decoder"""
    mod = impl.AttachVariableBounds({"batch_size": 8, "context_window": 64})(_batch_decode())
    before, after = planned(_batch_decode()), planned(mod)
    left = [str(s) for s in after.symbolic if "vocab_size" not in str(s)]
    expect.that(
        not left and len(after.storages) < len(before.storages),
        "The memory planner does not know more about batch_decode than before your pass.",
        expected="constant sizes for all storage but that of vocab_size, and fewer storages",
        yours=str(after),
        why="StaticPlanBlockMemory reads tir_var_upper_bound from the function whose variables it bounds.",
        read=READERS,
    )


def test_2_1_is_registered(impl) -> None:
    """it is the pass AttachVariableBounds of level 0"""
    is_registered(impl.AttachVariableBounds({}), "AttachVariableBounds")


def observe_2_1(impl):
    def aliased() -> str:
        bounds = {"n": 9, "m": 3}
        a_pass = impl.AttachVariableBounds(bounds)
        bounds["m"] = 4
        return _told(a_pass, _elementwise("n", "m"))

    return [
        lambda: _told(impl.AttachVariableBounds({"n": 64, "k": -1, "z": 0}), Mixed),
        lambda: _told(impl.AttachVariableBounds({}), Mixed),
        lambda: _told(impl.AttachVariableBounds({"k": -1}), _elementwise("n")),
        aliased,
    ]


# --- 2.2 ------------------------------------------------------------------------------------------


def _add(impl, functions: dict, mod: tvm.IRModule, whose: str = "AttachAdditionalPrimFuncs"):
    """The module after the pass, which must hold all it held and each function under its public name."""
    result = expect.apply(impl.AttachAdditionalPrimFuncs(functions), mod, whose)
    wanted = mod.clone()
    for name, func in functions.items():
        expect.that(
            name in result,
            f"{whose} did not add `{name}`.",
            yours=", ".join(gvar.name_hint for gvar in result.get_global_vars()),
        )
        expect.equal(
            plain(dict(result[name].attrs)).get("global_symbol"),
            name,
            f"`{name}` does not have its name as `global_symbol`.",
            why="A PrimFunc without global_symbol is private: dead-code elimination removes it, as nothing calls it.",
            read=READERS,
        )
        wanted[name] = func.with_attr("global_symbol", name)
    expect.same_ir(
        result,
        wanted,
        f"{whose} changed more than it was asked to add.",
        why="Added functions keep their body and their other attributes; all other functions stay.",
        read=HOW,
    )
    return result


def test_2_2_adds_public_functions(impl) -> None:
    """each PrimFunc is added under its name, with global_symbol, all else as it was"""
    _add(impl, {"cut_in_half": halve, "shift": shift}, Mixed)
    _add(impl, {}, Mixed)
    _add(impl, {"only": shift}, tvm.IRModule())


def test_2_2_leaves_the_callers_function(impl) -> None:
    """the caller's PrimFunc stays as it is, and may be added under two names"""
    before = str(halve.attrs)
    _add(impl, {"first": halve, "second": halve}, Mixed)
    expect.equal(
        str(halve.attrs), before, "AttachAdditionalPrimFuncs changed the PrimFunc it was given."
    )


def test_2_2_refuses_a_name_that_is_taken(impl) -> None:
    """another function of that name is not replaced"""
    taken = {
        "prefill": "another PrimFunc",
        "decode": "a Relax function",
        "sampler": "an external function",
    }
    for name, what in taken.items():
        given = Mixed.clone()
        try:
            impl.AttachAdditionalPrimFuncs({"fine": shift, name: halve})(given)
        except ValueError as error:
            expect.that(
                name in str(error),
                "The ValueError does not name the function that is in the way.",
                expected=f"a sentence with {name!r} in it",
                yours=str(error),
            )
            expect.unchanged(given, Mixed, "AttachAdditionalPrimFuncs")
            continue
        raise CheckFailed(
            f"AttachAdditionalPrimFuncs replaced `{name}`, {what} of the module.",
            expected="a ValueError that names it",
            why="Its callers would go on calling that name, and compute something else; "
            "TVM's `mod[name] = func` says nothing.",
            read=NOT,
        )


def test_2_2_same_function_already_there(impl) -> None:
    """the same PrimFunc under its own name is no clash: it only becomes public"""
    mod = Mixed.clone()
    mod["shift"] = shift
    once = _add(impl, {"shift": shift}, mod)
    expect.runs_twice_the_same(
        impl.AttachAdditionalPrimFuncs({"shift": shift}), once, "AttachAdditionalPrimFuncs"
    )


def test_2_2_survives_and_runs(impl) -> None:
    """dead-code elimination keeps the function, and the compiled library runs it"""
    mod = _add(impl, {"cut_in_half": halve}, _elementwise("n"))
    executable = tvm.compile(relax.transform.DeadCodeElimination()(mod), target="llvm")
    kernel = executable.jit().get_function("cut_in_half", query_imports=True)
    x = np.random.default_rng(2).standard_normal(6).astype("float32")
    out = tvm.runtime.tensor(np.full(6, np.nan, "float32"))
    kernel(tvm.runtime.tensor(x), out)
    expect.close(out.numpy(), x / 2, "The added kernel does not compute what it should.")


def test_2_2_is_registered(impl) -> None:
    """it is the pass AttachAdditionalPrimFuncs of level 0"""
    is_registered(impl.AttachAdditionalPrimFuncs({}), "AttachAdditionalPrimFuncs")


def observe_2_2(impl):
    def add(functions: dict, mod: tvm.IRModule) -> str:
        given = mod.clone()
        try:
            result = impl.AttachAdditionalPrimFuncs(functions)(given)
        except ValueError as error:  # its words are the answer's own
            named = [name for name in functions if name in str(error)]
            return f"refused for {named}, input {attributes(given)}"
        bodies = {name: result[name].body.script()[:400] for name in functions}
        return f"{attributes(result)} {bodies} input {attributes(given)}"

    def add_again() -> str:
        mod = Mixed.clone()
        mod["shift"] = shift
        return add({"shift": shift}, mod)

    return [
        lambda: add({"first": halve, "second": shift}, Mixed),
        lambda: add({"prefill": shift}, Mixed),
        lambda: add({"decode": shift}, Mixed),
        lambda: add({"sampler": shift}, Mixed),
        add_again,
    ]


# --- 2.3 ------------------------------------------------------------------------------------------


def _plan_output(_name: str, func: object) -> dict:
    return {PLAN_OUTPUT: True} if isinstance(func, relax.Function) else {}


def test_2_3_returns_a_new_module(impl) -> None:
    """the module it was given is unchanged, and the returned one has the attribute"""
    for mod in (Mixed, _elementwise("n")):
        attaches(impl.AttachMemoryPlanAttr(), mod, "AttachMemoryPlanAttr", _plan_output)


def test_2_3_passes_the_compilers_own_test(impl) -> None:
    """TVM's testing.immutable_module has nothing to object"""
    with tvm.transform.PassContext(config={"testing.immutable_module": True}):
        result = impl.AttachMemoryPlanAttr()(Mixed.clone())
    expect.returns_module(result, "AttachMemoryPlanAttr")


def test_2_3_twice(impl) -> None:
    """run again it changes nothing"""
    once = impl.AttachMemoryPlanAttr()(Mixed.clone())
    expect.runs_twice_the_same(impl.AttachMemoryPlanAttr(), once, "AttachMemoryPlanAttr")


def test_2_3_the_output_is_planned(impl) -> None:
    """with it, the planner leaves no tensor of the decoder to be allocated at run time"""
    before = planned(_batch_decode())
    after = planned(impl.AttachMemoryPlanAttr()(_batch_decode()))
    expect.that(
        before.unplanned and not after.unplanned,
        "The planner still leaves the logits of batch_decode to be allocated at run time.",
        yours=str(after),
        read=READERS,
    )


def test_2_3_is_registered(impl) -> None:
    """it is the pass AttachMemoryPlanAttr of level 0"""
    is_registered(impl.AttachMemoryPlanAttr(), "AttachMemoryPlanAttr")


def observe_2_3(impl):
    return [
        lambda: _told(impl.AttachMemoryPlanAttr(), Mixed),
        lambda: _told(impl.AttachMemoryPlanAttr(), _elementwise("n")),
    ]


# --- 2.4 ------------------------------------------------------------------------------------------


def _hinted(hints: dict[str, list[str]]) -> Callable[[str, object], dict]:
    def extra(name: str, func: object) -> dict:
        return {HINTS: hints[name]} if isinstance(func, relax.Function) and name in hints else {}

    return extra


def _hint(impl, hints: dict) -> tvm.transform.Pass:
    return impl.AttachCUDAGraphSymbolicCaptureHints(hints)


def test_2_4_attaches_to_the_named_functions(impl) -> None:
    """each Relax function that has hints gets its own, in their order; the others get none"""
    hints = {"decode_step": ["n", "m"], "helper": ["n"], "prefill": ["n"]}
    mod = Mixed
    attaches(_hint(impl, hints), mod, "AttachCUDAGraphSymbolicCaptureHints", _hinted(hints))
    swapped = {"decode_step": ["m", "n"]}
    attaches(_hint(impl, swapped), mod, "AttachCUDAGraphSymbolicCaptureHints", _hinted(swapped))


def test_2_4_ignores_functions_that_are_not_there(impl) -> None:
    """a hint for a function the model does not have is no error"""
    for hints in ({}, {"batch_decode": ["batch_size"]}, {"sampler": ["n"], "decode": ["n"]}):
        attaches(_hint(impl, hints), Mixed, "AttachCUDAGraphSymbolicCaptureHints", _hinted(hints))


def test_2_4_keeps_its_own_hints(impl) -> None:
    """what the caller does with the dict and its lists afterwards does not reach the pass"""
    hints = {"decode": ["n"]}
    a_pass = _hint(impl, hints)
    hints["decode"].append("m")
    hints["helper"] = ["n"]
    attaches(a_pass, Mixed, "AttachCUDAGraphSymbolicCaptureHints", _hinted({"decode": ["n"]}))


def test_2_4_twice(impl) -> None:
    """run again it changes nothing"""
    once = _hint(impl, {"decode": ["n"]})(Mixed.clone())
    expect.runs_twice_the_same(
        _hint(impl, {"decode": ["n"]}), once, "AttachCUDAGraphSymbolicCaptureHints"
    )


def test_2_4_more_kernels_are_captured(impl) -> None:
    """with bounds attached, the hints let RewriteCUDAGraph capture most of the decoder"""
    sizes = {"batch_size": 8, "context_window": 64}
    bounded = _batch_decode().clone()
    bounded["batch_decode"] = bounded["batch_decode"].with_attr(BOUNDS, sizes)
    before = captured(bounded, "batch_decode")
    after = captured(_hint(impl, {"batch_decode": list(sizes)})(bounded), "batch_decode")
    expect.that(
        2 * after.captured > after.kernels and after.captured > before.captured,
        "RewriteCUDAGraph captures no more of batch_decode than without your hints.",
        expected=f"more than half of its {before.kernels} kernels",
        yours=f"{after.captured}, and {before.captured} without the hints",
        read=READERS,
    )


def test_2_4_is_registered(impl) -> None:
    """it is registered as AttachCUDAGraphCaptureHints, shorter than the class, of level 0"""
    is_registered(_hint(impl, {}), "AttachCUDAGraphCaptureHints")


def observe_2_4(impl):
    def aliased() -> str:
        hints = {"decode": ["n"]}
        a_pass = _hint(impl, hints)
        hints["decode"].append("m")
        return _told(a_pass, Mixed)

    return [
        lambda: _told(_hint(impl, {"decode_step": ["n", "m"], "prefill": ["n"]}), Mixed),
        lambda: _told(_hint(impl, {"batch_decode": ["n"]}), Mixed),
        aliased,
    ]


# --- 2.5 ------------------------------------------------------------------------------------------

ENTRY_POINTS = {
    f"{batch}{phase}{suffix}"
    for batch in ("", "batch_")
    for phase in ("prefill", "decode", "verify")
    for suffix in ("", "_to_last_hidden_states")
} - {"verify", "verify_to_last_hidden_states"}

NO_ENTRY_POINTS = (
    "embed",
    "get_logits",
    "create_kv_cache",
    "batch_select_last_hidden_states",
    "batch_get_logits",
    "prefill_with_images",
    "decode_step",
    "predecode",
    "verify",
)


@cache
def _many_functions() -> tvm.IRModule:
    names = chain(sorted(ENTRY_POINTS), NO_ENTRY_POINTS)
    return tvm.IRModule(
        {name: _elementwise("n")["main"].with_attr("global_symbol", name) for name in names}
    )


def _staged(stages: int) -> Callable[[str, object], dict]:
    def extra(name: str, func: object) -> dict:
        is_entry = isinstance(func, relax.Function) and name in ENTRY_POINTS
        return {STAGES: stages} if is_entry else {}

    return extra


def test_2_5_marks_the_ten_entry_points(impl) -> None:
    """the ten entry points and no other function, whatever its name begins with"""
    for stages in (1, 4):
        a_pass = impl.AttachPipelineParallelStages(stages)
        attaches(a_pass, _many_functions(), "AttachPipelineParallelStages", _staged(stages))


def test_2_5_leaves_a_kernel_of_that_name(impl) -> None:
    """a PrimFunc that is called prefill has no stages"""
    a_pass = impl.AttachPipelineParallelStages(3)
    once = attaches(a_pass, Mixed, "AttachPipelineParallelStages", _staged(3))
    expect.runs_twice_the_same(a_pass, once, "AttachPipelineParallelStages")


def test_2_5_is_registered(impl) -> None:
    """it is the pass AttachPipelineParallelStages of level 0"""
    is_registered(impl.AttachPipelineParallelStages(1), "AttachPipelineParallelStages")


def observe_2_5(impl):
    return [
        lambda: _told(impl.AttachPipelineParallelStages(4), _many_functions()),
        lambda: _told(impl.AttachPipelineParallelStages(3), Mixed),
    ]


# --- 2.6 ------------------------------------------------------------------------------------------


@I.ir_module
class Chain:
    """a is used two stages on, d is a view by another name, and w is a parameter used everywhere."""

    @R.function
    def main(x: R.Tensor((3, 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(
        (3, 16), "float32"
    ):
        with R.dataflow():
            a = R.exp(x)
            b = R.matmul(a, w)
            c = R.tanh(b)
            d = c
            e = R.add(d, d)
            f = R.matmul(e, w)
            out = R.add(f, a)
            R.output(out)
        return out


@I.ir_module
class Packed:
    """Fields of a tuple, a tuple made and taken apart, a result of two stages, weights in a tuple."""

    @R.function
    def main(
        x: R.Tensor(("n", 8), "float16"), weights: R.Tuple(R.Tensor((8, 8), "float16"))
    ) -> R.Tuple(R.Tensor(("n", 4), "float16"), R.Tensor(("n", 4), "float32")):
        with R.dataflow():
            w = weights[0]
            y = R.matmul(x, w)
            halves = R.split(y, 2, axis=1)
            left = halves[0]
            right = halves[1]
            small = R.exp(left)
            pair = (small, right)
            again = pair[1]
            z = R.matmul(x, w)
            wide = R.astype(again, "float32")
            R.output(small, wide, z)
        return (small, wide)


@I.ir_module
class Branches:
    """Several blocks, a branch that uses a tensor of an earlier stage, and a result known early."""

    @R.function
    def main(x: R.Tensor((5,), "float32"), choose: R.Tensor((), "bool")) -> R.Tuple(
        R.Tensor((5,), "float32"), R.Tensor((5,), "float32")
    ):
        first = R.exp(x)
        unused = R.sin(x)  # noqa: F841
        with R.dataflow():
            second = R.tanh(x)
            R.output(second)
        if choose:  # noqa: SIM108
            third = R.negative(first)
        else:
            third = R.add(x, x)
        return (second, third)


@I.ir_module
class Casts:
    """A constant with a name, and a match_cast, which names the tensor that it checks."""

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            two = R.const(2.0, "float32")
            a = R.exp(x)
            known = R.match_cast(a, R.Tensor((4,), "float32"))
            b = R.multiply(known, two)
            out = R.add(b, two)
            R.output(out)
        return out


def _captured() -> tvm.IRModule:
    """Two functions inside a function: one uses a tensor it was not given, the other calls the first."""

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        a = R.exp(x)

        @R.function
        def add_a(y: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            add_aed = R.add(y, a)
            return add_aed

        b = R.tanh(x)
        also = add_a

        @R.function
        def add_again(z: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            once: R.Tensor((4,), "float32") = add_a(z)
            again: R.Tensor((4,), "float32") = add_a(once)
            return again

        c: R.Tensor((4,), "float32") = also(b)
        d: R.Tensor((4,), "float32") = add_again(c)
        return d

    return tvm.IRModule({"main": main})


def _named(func: relax.Function, *names: str) -> list[relax.Var]:
    found = {b.var.name: b.var for block in func.body.blocks for b in block.bindings}
    return [found[name] for name in names]


def _crossings(impl, mod: tvm.IRModule, name: str, *starts: str) -> list[tuple]:
    func = mod[name]
    result = impl.crossing_tensors(func, _named(func, *starts))
    expect.that(
        isinstance(result, list),
        f"crossing_tensors returned {type(result).__name__}, not a list of Crossing.",
        expected="a list, empty where nothing crosses",
    )
    return [(c.name, c.shape, str(c.ty.dtype), c.from_stage, c.to_stages) for c in result]


def _crosses(impl, mod: tvm.IRModule, starts: tuple, expected: list[tuple], why: str) -> None:
    cut = " and before ".join(starts)
    got = _crossings(impl, mod, "main", *starts)
    if got != expected:
        raise CheckFailed(
            f"crossing_tensors is wrong where the function is cut before {cut}."
            if starts
            else "crossing_tensors is wrong where the function is one stage.",
            expected=_lines(expected),
            yours=_lines(got) + "\nin\n" + mod["main"].script(),
            why=why,
            read=f"{LESSON}, “A reader of our own”",
        )


def _lines(crossings: list[tuple]) -> str:
    return (
        "\n".join(
            f"{name} {shape} {dtype}: stage {made} to {', '.join(map(str, used))}"
            for name, shape, dtype, made, used in crossings
        )
        or "nothing crosses"
    )


def test_2_6_one_stage(impl) -> None:
    """a function that is not cut sends nothing"""
    for mod in (Chain, Branches):
        _crosses(impl, mod, (), [], "A tensor that only its own stage uses never leaves it.")


def test_2_6_to_later_stages(impl) -> None:
    """what a later stage uses crosses, also past a stage, once however often it is used"""
    f32 = "float32"
    _crosses(
        impl,
        Chain,
        ("c",),
        [("a", (3, 16), f32, 0, (1,)), ("b", (3, 16), f32, 0, (1,))],
        "Stage 1 uses b at once and a at the very end.",
    )
    _crosses(
        impl,
        Chain,
        ("c", "f"),
        [
            ("a", (3, 16), f32, 0, (2,)),
            ("b", (3, 16), f32, 0, (1,)),
            ("e", (3, 16), f32, 1, (2,)),
        ],
        "a skips a stage: stage 1 has to hand it on although it does nothing with it.",
    )
    _crosses(
        impl,
        Chain,
        ("b", "f"),
        [("a", (3, 16), f32, 0, (1, 2)), ("e", (3, 16), f32, 1, (2,))],
        "Stages 1 and 2 both use a: one tensor, one entry, two stages.",
    )


def test_2_6_names_are_not_tensors(impl) -> None:
    """a second name for a tensor makes no second tensor; parameters are everywhere"""
    f32 = "float32"
    _crosses(
        impl,
        Chain,
        ("e",),
        [("a", (3, 16), f32, 0, (1,)), ("c", (3, 16), f32, 0, (1,))],
        "`d = c` computes nothing: what stage 1 needs is c. w is a parameter, which every stage is given.",
    )
    _crosses(
        impl,
        Casts,
        ("b",),
        [("a", (4,), f32, 0, (1,))],
        "`known` is a, checked: a match_cast computes nothing. two is a constant, which every stage has.",
    )


def test_2_6_empty_stages(impl) -> None:
    """more stages than calls: a variable that begins two stages leaves the first of them empty"""
    f32 = "float32"
    _crosses(
        impl,
        Chain,
        ("c", "c", "f"),
        [
            ("a", (3, 16), f32, 0, (3,)),
            ("b", (3, 16), f32, 0, (2,)),
            ("e", (3, 16), f32, 2, (3,)),
        ],
        "Stage 1 ends where it begins, so c stands in stage 2. even_starts cuts so where there are few calls.",
    )


def test_2_6_tuples(impl) -> None:
    """of a tuple, the fields that are used cross, each as itself"""
    f16 = "float16"
    halves = ("halves[1]", ("n", 4), f16, 0, (1,))
    small = ("small", ("n", 4), f16, 0, (1,))
    why = "halves[0] is used up in its own stage. weights is a parameter, and so is a field taken from it."
    _crosses(impl, Packed, ("pair",), [halves, small], why)
    _crosses(impl, Packed, ("z",), [halves, small], why)
    first = ("halves[0]", ("n", 4), f16, 0, (1,))
    _crosses(impl, Packed, ("left",), [first, halves], "Stage 1 uses both fields.")


def test_2_6_branches_and_results(impl) -> None:
    """an `if` uses what stands in its branches; the last stage returns the result"""
    f32 = "float32"
    _crosses(
        impl,
        Branches,
        ("third",),
        [("first", (5,), f32, 0, (1,)), ("second", (5,), f32, 0, (1,))],
        "first is used in a branch. second is part of the result, which the last stage returns.",
    )
    _crosses(
        impl,
        Branches,
        ("unused", "third"),
        [("first", (5,), f32, 0, (2,)), ("second", (5,), f32, 1, (2,))],
        "Nothing uses `unused`, so nobody sends it.",
    )


CAPTURED = [("a", (4,), "float32", 0, (1, 2)), ("b", (4,), "float32", 0, (1,))]
CAPTURED.append(("c", (4,), "float32", 1, (2,)))


def test_2_6_captured(impl) -> None:
    """what a function inside the function captures is used where that function is called"""
    _crosses(
        impl,
        _captured(),
        ("c", "d"),
        CAPTURED,
        "add_a uses a, which stands in no call of the last two stages: relax.analysis.free_vars(function) names what "
        "a function captures. add_again captures add_a, and so a; `also` is add_a by another name.",
    )


def test_2_6_decoder(impl) -> None:
    """cut before its second layer, the decoder sends one hidden state, and its whole cache"""
    mod = _batch_decode()
    got = _crossings(impl, mod, "batch_decode", "rms_norm2")
    shapes = sorted(((shape, to) for _, shape, _, _, to in got), key=str)
    cache = (3, 2, "batch_size", "context_window", 4, 16)
    expected = sorted([(("batch_size", 1, 128), (1,)), (cache, (1,))], key=str)
    expect.equal(
        shapes,
        expected,
        "crossing_tensors finds other tensors than these where batch_decode is cut before its second layer.",
        why="A layer takes the hidden state; the cache is one tensor, which every layer writes to and hands on.",
        read=f"{LESSON}, “A reader of our own”",
    )


def observe_2_6(impl):
    plain = _observe_plain_2_6(impl)

    def captured() -> str:
        """Asked only of an answer right in all else: other mistakes do not depend on inner functions."""
        from solutions.ch02_attach_metadata import attach_support_info as reference

        right = _observe_plain_2_6(reference)
        if [str(probe()) for probe in plain] != [str(probe()) for probe in right]:
            return "something else comes first"
        return str(_crossings(impl, _captured(), "main", "c", "d"))

    return [*plain, captured]


def _observe_plain_2_6(impl):
    return [
        lambda: _crossings(impl, Chain, "main", "c", "f"),
        lambda: _crossings(impl, Chain, "main", "b", "f"),
        lambda: _crossings(impl, Chain, "main", "e"),
        lambda: _crossings(impl, Packed, "main", "z"),
        lambda: _crossings(impl, Packed, "main", "left"),
        lambda: _crossings(impl, Branches, "main", "unused", "third"),
        lambda: _crossings(impl, Casts, "main", "b"),
        lambda: _crossings(impl, Chain, "main", "c", "c", "f"),
    ]


# --- 2.7 ------------------------------------------------------------------------------------------

GEMM = "cutlass.groupwise_scaled_gemm_e4m3fn_e4m3fn"
BMM = "cutlass.groupwise_scaled_bmm_e4m3fn_e4m3fn"


def _target(arch: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": "cuda", "arch": arch})


def _calling(kernel: str, private: bool = False, inside_if: bool = False) -> tvm.IRModule:
    """A module with a PrimFunc, a harmless function, and one that calls `kernel` by call_dps_packed."""
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    choose = relax.Var("choose", relax.TensorType((), "bool"))
    call = relax.op.call_dps_packed(kernel, [x], out_ty=relax.TensorType((4, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("quantized", [x, choose], private=private):
        if inside_if:
            call = relax.If(choose, relax.op.exp(relax.op.add(call, x)), x)
        builder.emit_func_output(builder.emit(call))
    mod = Mixed.clone()
    mod.update(builder.get())
    return mod


def _factor(impl, target: tvm.target.Target, mod: tvm.IRModule, metadata: dict) -> dict:
    """`metadata` after the pass, which must leave the module as it is."""
    whose = "AttachSequenceLengthPaddingFactor"
    result = expect.apply(impl.AttachSequenceLengthPaddingFactor(target, metadata), mod, whose)
    expect.same_ir(result, mod, f"{whose} changed the IR.", why="Its output is the dict.", read=HOW)
    return metadata


def test_2_7_notes_the_factor(impl) -> None:
    """on sm_100a, either kernel asks for a multiple of 4; other entries of the dict stay"""
    tag = tvm.target.Target("nvidia/nvidia-b100")
    for target in (_target("sm_100a"), tag):
        for kernel in (GEMM, BMM):
            expect.equal(
                _factor(impl, target, _calling(kernel), {"model_type": "llama"}),
                {"model_type": "llama", FACTOR: 4},
                f"metadata is not what it should be after a call of {kernel}.",
                read=NOT,
            )


def test_2_7_finds_every_call(impl) -> None:
    """a call in a private function or inside an `if` counts"""
    for private, inside_if in ((True, False), (False, True), (True, True)):
        place = " ".join(
            ["in a private function"] * private + ["in a branch of an `if`"] * inside_if
        )
        expect.equal(
            _factor(impl, _target("sm_100a"), _calling(GEMM, private, inside_if), {}),
            {FACTOR: 4},
            f"The call {place} was not found.",
            why="The kernel runs wherever it is called from: a visitor starts from every Relax function of the "
            "module, and walks through branches by itself.",
            read=HOW,
        )


def test_2_7_leaves_other_targets(impl) -> None:
    """other targets, other kernels: the dict stays as it is"""
    others = [_target("sm_90a"), _target("sm_100"), tvm.target.Target("llvm")]
    for target in others:
        expect.equal(
            _factor(impl, target, _calling(GEMM), {}),
            {},
            f"metadata was filled for the target {target}.",
            why="On other targets the kernel has no such need; padding would be wasted work for every call.",
            read=NOT,
        )
    for kernel in ("cutlass.group_gemm", GEMM + "_v2", "runtime.sampler"):
        expect.equal(
            _factor(impl, _target("sm_100a"), _calling(kernel), {FACTOR: 6}),
            {FACTOR: 6},
            f"metadata was filled for the kernel {kernel}.",
            read=NOT,
        )


def _pure_packed() -> tvm.IRModule:
    """A call of the kernel by R.call_pure_packed."""
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        call = relax.op.call_pure_packed(GEMM, x, ty_args=relax.TensorType((4, 8), "float32"))
        builder.emit_func_output(builder.emit(call))
    return builder.get()


def test_2_7_plain_call_of_the_kernel(impl) -> None:
    """a call by another convention than call_dps_packed does not count"""
    expect.equal(
        _factor(impl, _target("sm_100a"), _pure_packed(), {}),
        {},
        "A call through R.call_pure_packed was counted.",
        why="The specification names call_dps_packed: only there is the output, which must be padded too, "
        "allocated by the caller.",
        read=NOT,
    )


def test_2_7_keeps_the_factor_that_was_there(impl) -> None:
    """a factor already there is kept: the result is a multiple of both"""
    for before, after in ((6, 12), (8, 8), (1, 4), (3, 12)):
        metadata = {FACTOR: before}
        for _ in range(2):
            _factor(impl, _target("sm_100a"), _calling(BMM), metadata)
        expect.equal(
            metadata,
            {FACTOR: after},
            f"A factor of {before} was there before; the result must be a multiple of it and of 4.",
            why="Somebody else wrote it because another kernel needs it.",
            read=NOT,
        )


def test_2_7_is_registered(impl) -> None:
    """it is the pass AttachSequenceLengthPaddingFactor of level 0"""
    a_pass = impl.AttachSequenceLengthPaddingFactor(_target("sm_100a"), {})
    is_registered(a_pass, "AttachSequenceLengthPaddingFactor")


def observe_2_7(impl):
    cases = [
        ("sm_100a", _calling(GEMM), {"model_type": "llama"}),
        ("sm_100a", _calling(GEMM, private=True), {}),
        ("sm_100a", _calling(GEMM, inside_if=True), {}),
        ("sm_100a", _calling(GEMM + "_v2"), {}),
        ("sm_100a", _calling("cutlass.group_gemm"), {}),
        ("sm_90a", _calling(BMM), {}),
        ("sm_100a", _pure_packed(), {}),
        ("sm_100a", _calling(BMM), {FACTOR: 6}),
    ]

    def look(arch: str, mod: tvm.IRModule, metadata: dict) -> str:
        filled = dict(metadata)
        impl.AttachSequenceLengthPaddingFactor(_target(arch), filled)(mod.clone())
        return str(filled)

    return [lambda case=case: look(*case) for case in cases]


# --- 2.8, 2.9, 2.10 -------------------------------------------------------------------------------


def _subsets(names: tuple[str, ...]) -> list[frozenset[str]]:
    sizes = range(len(names) + 1)
    return [frozenset(c) for size in sizes for c in combinations(names, size)]


def _compiler_captures(dims: frozenset, hints: frozenset, bounds: frozenset, flag: bool) -> bool:
    mod = _elementwise(*sorted(dims))
    func = mod["main"].with_attr(BOUNDS, {name: 64 for name in bounds})
    mod["main"] = func.with_attr(HINTS, sorted(hints))
    return captured(mod, "main", flag).captured > 0


def _choices() -> list[tuple]:
    names = ("m", "n")
    return [
        (dims, hints, bounds, flag)
        for dims in _subsets(names)
        for hints in _subsets(names)
        for bounds in _subsets(names)
        for flag in (False, True)
    ]


def test_2_8_agrees_with_the_compiler(impl) -> None:
    """for every combination of dimensions, hints, bounds and flag, the answer is RewriteCUDAGraph's"""
    for dims, hints, bounds, flag in _choices():
        yours = impl.is_captured(set(dims), set(hints), set(bounds), flag)
        right = _compiler_captures(dims, hints, bounds, flag)
        if bool(yours) != right:
            given = ", ".join(
                f"{name} {set(names) or 'none'}"
                for name, names in (("dims", dims), ("hints", hints), ("bounds", bounds))
            )
            raise CheckFailed(
                f"RewriteCUDAGraph {'captures' if right else 'captures nothing'} where your answer is {yours!r}.",
                expected=f"{right} for {given}, use_cuda_graph {flag}: run just now",
                yours=repr(yours),
                why="A captured kernel must find its tensors at the same addresses and in the same sizes in "
                "every replay. A bound makes the storage of a symbolic dimension static, a hint allows one graph "
                "for each value of it; where no dimension is symbolic there is nothing to bound or to hint.",
                read=READERS,
            )


def observe_2_8(impl):
    def answers(symbolic: bool) -> str:
        chosen = [choice for choice in _choices() if bool(choice[0]) == symbolic]
        return str([bool(impl.is_captured(*map(set, c[:3]), c[3])) for c in chosen])

    return [lambda: answers(True), lambda: answers(False)]


LARGEST = (
    "Go through `batch_decode` operator by operator: every result that is no output is planned. What has the most "
    "bytes, and what of its shape is a bound?"
)
PLANNED = {
    "largest": LARGEST,
    "largest_at_batch_16": LARGEST,
    "symbolic": "A storage keeps a symbolic size where a dimension of its tensor has no bound. Which of the decoder's "
    "symbolic sizes have none, and what has such a dimension?",
}


def test_2_9_prediction_holds(impl) -> None:
    """the predicted bytes are those the planner allocates"""
    yours = impl.predicted_storage()
    plans = {}
    for batch in (8, 16):
        mod = _batch_decode().clone()
        bounds = {"batch_size": batch, "context_window": 64}
        mod["batch_decode"] = mod["batch_decode"].with_attr(BOUNDS, bounds)
        plans[batch] = planned(mod)
    measured = {
        "largest": max(s.size for s in plans[8].constant),
        "largest_at_batch_16": max(s.size for s in plans[16].constant),
        "symbolic": len(plans[8].symbolic),
    }
    expect.that(
        isinstance(yours, dict) and set(measured) <= set(yours),
        "predicted_storage does not return a dict of three numbers.",
        expected=", ".join(repr(key) for key in measured),
        yours=repr(yours)[:200],
    )
    for key, value in measured.items():
        expect.predicted(
            yours[key],
            value,
            f"The planner says otherwise about {key!r}.",
            why=PLANNED[key],
            read=f"{LESSON}, “Measure it”",
        )


def observe_2_9(impl):
    return [
        lambda: impl.predicted_storage()["largest"],
        lambda: impl.predicted_storage()["largest_at_batch_16"],
        lambda: impl.predicted_storage()["symbolic"],
    ]


def _runs(mod: tvm.IRModule, name: str, array: np.ndarray, bounds: dict) -> str:
    """ "" if function `name` runs on `array` with `bounds` on every function, else the error."""
    bounded = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            bounded[gvar] = func.with_attr(BOUNDS, bounds)
    try:
        expect.run(bounded, name, [array])
    except Exception as error:
        return str(error).split("\nStack trace")[0].strip()
    return ""


def test_2_10_the_bound_is_true_of_prefill(impl) -> None:
    """prefill runs on 64 rows with the bound, score on its array without it"""
    mod, array = impl.lying_bound()
    expect.returns_module(mod, "lying_bound()[0]")
    expect.well_formed(mod, "lying_bound")
    names = [gvar.name_hint for gvar in mod.get_global_vars()]
    for name in ("prefill", "score"):
        expect.that(
            name in names,
            f"The module has no function `{name}`.",
            expected="the functions prefill and score",
            yours=", ".join(names),
        )
    shape = [str(d) for d in mod["prefill"].params[0].ty.shape]
    expect.that(
        shape[0] == "seq_len",
        "prefill does not take R.Tensor((seq_len, 16), float32).",
        yours=str(mod["prefill"].params[0].ty),
    )
    rows = np.random.default_rng(1).standard_normal((64, 16)).astype("float32")
    for name, given, bounds in (("prefill", rows, {"seq_len": 64}), ("score", array, {})):
        error = _runs(mod, name, np.asarray(given), bounds)
        expect.that(
            not error,
            f"{name} does not run {'with the bound that is true of it' if bounds else 'without bounds'}.",
            yours=error,
        )


def test_2_10_the_bound_is_false_of_score(impl) -> None:
    """the same bound makes the VM refuse score"""
    mod, array = impl.lying_bound()
    error = _runs(mod, "score", array, {"seq_len": 64})
    if "storage allocation failure" in error:
        return
    if error:
        raise CheckFailed("The VM refused, but not because storage is too small.", yours=error)
    sizes = planned(mod)
    raise CheckFailed(
        "score runs with the bound too.",
        expected="“storage allocation failure”",
        yours=f"an array of shape {array.shape}; without the bound the planner allocates\n{sizes}",
        why="The bound is attached to every function and found by the variable's name, in the function's signature. It "
        "matters where the planner allocates: tensors inside the function, not its output. Storage comes in whole "
        "pages of 4096 bytes, so an array only a little too large may still fit.",
        read=f"{LESSON}, “Break it”",
    )


def observe_2_10(impl):
    def storages_of_score() -> bool:
        plan = planned(impl.lying_bound()[0])
        return any(s.planned for s in plan.storages if s.function == "score")

    return [
        lambda: f"planned inside: {storages_of_score()}",
        lambda: f"rows called {impl.lying_bound()[0]['score'].params[0].ty.shape[0]}",
        lambda: f"more rows than the bound: {impl.lying_bound()[1].shape[0] > 64}",
    ]
