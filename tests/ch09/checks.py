"""The checks of chapter 9: each phase of the pipeline, the pipeline, and what its order is worth."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir.transform import Pass
from tvm.s_tir import SBlock
from tvm.target import Target

from chapters.kit.cases.guarded import QUICK, run_compiled
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder import llama_reference
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.decoder.llama_generator import Generator, random_weights
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.pipeline.gemv_within_bounds import has_whole_blocks
from chapters.kit.pipeline.planned_storage import lower, read_plan
from chapters.kit.pipeline.reduction_once import repeats_a_reduction
from chapters.runner.loading import last_line
from solutions.ch09_the_compiler import pipeline as reference
from tests.ch09.look import (
    attributes,
    calls_of,
    has_dimension,
    has_loop,
    kernels,
    launches,
    nests,
    operators,
    relax_functions,
    shuffles,
    sizes_of,
    symbols,
    unscheduled,
    uses_tensor_cores,
)
from tests.ch09.programs import (
    EPILOGUES,
    FOREIGN,
    Between,
    Branches,
    Constants,
    Counter,
    Sampler,
    Serving,
    Sizes,
    columns,
    halve,
    linear,
    product,
    relu_then_sum,
    third,
)
from tests.support import expect
from tests.support.expect import Section

LESSON = "chapters/ch09_the_compiler/lesson.md"
HOW = Section(LESSON, "How it works")
ATTACH = Section(LESSON, "Attach")
ORDER = Section(LESSON, "Graph, then lower")
SCHEDULE = Section(LESSON, "Schedule")
MEMORY = Section(LESSON, "Memory, then VM")
NOT_FIRE = Section(LESSON, "When it must not fire")
BREAK = Section(LESSON, "Break it")
MEASURE = Section(LESSON, "Measure it")

LIMITS = {"test_9_8_same_tokens": 60, "test_9_9_agrees_with_the_compiler": 60}

SMALL = LlamaConfig(64, 96, 1, 4, 2, 16, 72, 80)
BOUNDS = {"seq_len": 80, "context_window": 80}


@functools.cache
def model(dtype: str = "float32", functions: tuple[str, ...] = ("prefill", "decode")):
    """A decoder of one small layer, as it is exported."""
    return decoder(SMALL, dtype, functions)[0]


def through(passes: Sequence[Pass], mod: tvm.IRModule, target: Target = QUICK) -> tvm.IRModule:
    """A copy of `mod` after `passes`, inside `target`."""
    with target:
        return tvm.transform.Sequential(list(passes))(mod.clone())


def phases(target: Target, *names: str) -> list[Pass]:
    """The reference's passes of the phases `names`, or of all, for the small decoder."""
    found = reference.phases(target, variable_bounds=BOUNDS, metadata={"vocab_size": 72})
    return [one for name in names or found for one in found[name]]


@functools.cache
def attached_model() -> tvm.IRModule:
    return through(phases(QUICK, "attach"), model())


@functools.cache
def lowered(target: Target = QUICK) -> tvm.IRModule:
    """The decoder before the schedule phase, by the reference; for a GPU in float16."""
    dtype = "float32" if target is QUICK else "float16"
    return through(phases(target, "attach", "graph and lower"), model(dtype), target)


@functools.cache
def two_activations() -> tvm.IRModule:
    """Two batches of products, the first with a bias, then a mean; before the schedule phase, by the reference."""
    mod = relax_module("""
def main(x: (2, 5, 8), y: (2, 8, 16), b: (16,), z: (2, 16, 32)):
    out = R.mean(R.matmul(R.add(R.matmul(x, y), b), z), axis=[-1])
""")
    return through(phases(QUICK, "attach", "graph and lower"), mod)


@functools.cache
def scheduled(target: Target = QUICK) -> tvm.IRModule:
    """The decoder before the memory phase, by the reference."""
    return through(reference.schedule_phase(target, BOUNDS), lowered(target), target)


def names(passes: object, whose: str) -> list[str]:
    """The names of a list of passes, or what is wrong with it."""
    is_list = isinstance(passes, list) and all(isinstance(one, Pass) for one in passes)
    given = (
        [getattr(one, "__name__", type(one).__name__) for one in passes]
        if isinstance(passes, list)
        else passes
    )
    what = f"{whose} did not return a list of passes."
    wanted = "[Pass(…), …], each one made by calling its class"
    expect.that(is_list, what, expected=wanted, yours=repr(given)[:300])
    return [one.info.name for one in passes]


# --- 9.1 ------------------------------------------------------------------------------------------

EXACT = "A bound says at most; a kernel of constant size can only be made from an exact value."


def bound(impl, mod: tvm.IRModule, **sizes: int) -> tvm.IRModule:
    """`mod` after BindKnownSizes."""
    return expect.apply(impl.BindKnownSizes(sizes), mod, "BindKnownSizes")


def test_9_1_binds_where_it_is(impl) -> None:
    """every function that has the dimension gets the number, private ones too"""
    for mod in (Sizes, Between):
        ATTACH.equal(
            symbols(bound(impl, mod, vocab_size=500)),
            {name: [s for s in all_ if s != "vocab_size"] for name, all_ in symbols(mod).items()},
            "The symbolic dimensions that are left are not those without a known size.",
            why=EXACT,
        )


def test_9_1_the_number(impl) -> None:
    """the number is in the types, also in that of the result"""
    result = bound(impl, Sizes, vocab_size=500)
    shape = [int(d) if isinstance(d, tirx.IntImm) else str(d) for d in result["head"].ret_ty.shape]
    ATTACH.equal(shape, ["n", 500], "The result of `head` has another shape.")


def test_9_1_leaves_the_rest(impl) -> None:
    """functions without the dimension and PrimFuncs stay the same objects; attributes stay"""
    result = bound(impl, Sizes, vocab_size=500, nowhere=3)
    for name in ("plain", "kernel"):
        what = f"BindKnownSizes changed `{name}`, which has no dimension to bind."
        ATTACH.that(tvm_ffi.structural_equal(result[name], Sizes[name], map_free_vars=True), what)
    what = "BindKnownSizes lost an attribute of `head`."
    expect.equal(result["head"].attrs["num_input"], 1, what)
    found = sorted(g.name_hint for g in result.get_global_vars())
    what = "BindKnownSizes added or removed functions."
    expect.equal(found, sorted(g.name_hint for g in Sizes.get_global_vars()), what)


def test_9_1_nothing_known(impl) -> None:
    """without sizes, and with sizes that no function has, nothing changes"""
    for sizes in ({}, {"nowhere": 3}):
        what = "BindKnownSizes changed a module that has nothing to bind."
        expect.same_ir(bound(impl, Sizes, **sizes), Sizes, what, why=EXACT)


def test_9_1_twice(impl) -> None:
    """run again it changes nothing"""
    once = impl.BindKnownSizes({"vocab_size": 500})(Sizes.clone())
    expect.runs_twice_the_same(impl.BindKnownSizes({"vocab_size": 500}), once, "BindKnownSizes")


def observe_9_1(impl):
    def look(mod: tvm.IRModule, **sizes: int) -> str:
        given = mod.clone()
        result = impl.BindKnownSizes(sizes)(given)
        unchanged = tvm_ffi.structural_equal(given, mod)
        return f"{symbols(result)} {sorted(kernels(result))} {unchanged}"

    return [
        lambda: look(Sizes, vocab_size=500),
        lambda: look(Sizes, n=3, vocab_size=500),
        lambda: look(Sizes, nowhere=3),
        lambda: look(Between, vocab_size=500),
    ]


# --- 9.2 ------------------------------------------------------------------------------------------

BLACKWELL = Target({"kind": "cuda", "arch": "sm_100a"})


def attach_passes(impl, metadata: dict, stages: int) -> list[Pass]:
    """attach_phase for Serving."""
    bounds, hints = {"batch_size": 16}, {"decode": ["batch_size"]}
    return impl.attach_phase(BLACKWELL, bounds, hints, stages, {"halve": halve}, metadata)


def attach(impl, metadata: dict) -> tvm.IRModule:
    """Serving after attach_phase."""
    passes = attach_passes(impl, metadata, 2)
    names(passes, "attach_phase")
    return expect.apply(lambda mod: through(passes, mod, BLACKWELL), Serving, "attach_phase")


def test_9_2_every_fact_arrives(impl) -> None:
    """bounds, hints, stages, the kernel and the planner's attribute stand in the module"""
    result = attach(impl, {})
    decode = attributes(result, "decode")
    for key, value, what in (
        ("tir_var_upper_bound", "16", "the bounds"),
        ("relax.rewrite_cuda_graph.capture_symbolic_vars", "batch_size", "the capture hints"),
        ("pipeline_parallel_stages", "2", "the number of stages"),
        ("relax.memory_plan_dynamic_func_output", "True", "the planner's attribute"),
    ):
        said = f"After attach_phase `decode` lacks {what}."
        wanted = f"attribute {key} with {value}"
        yours = "\n".join(f"{k}: {v}" for k, v in decode.items())
        why = "A later pass asks for it. Without it the program needs more memory or launches, and there is no error."
        ATTACH.that(value in decode.get(key, ""), said, expected=wanted, yours=yours, why=why)
    expect.has_function(result, "halve", "attach_phase")


def test_9_2_padding_reaches_the_caller(impl) -> None:
    """the padding factor is written into the caller's own dict"""
    metadata = {"model": "llama"}
    attach(impl, metadata)
    what = "The caller's metadata has no seqlen_padding_factor."
    why = "The dict is the output of that pass: a runtime reads it after compilation."
    ATTACH.equal(metadata.get("seqlen_padding_factor"), 4, what, why=why)


def test_9_2_vocabulary(impl) -> None:
    """a vocabulary that the metadata names is bound; without it the dimension stays"""
    for metadata, left in (({"vocab_size": 500}, []), ({}, ["vocab_size"])):
        found = symbols(attach(impl, dict(metadata)))["decode"]
        ATTACH.equal(
            [name for name in found if name == "vocab_size"],
            left,
            f"With metadata {metadata} the vocabulary of `decode` is "
            + ("still symbolic." if metadata else "bound."),
            why="It is the number of rows of the largest weight, and chapter 5's schedules want a number.",
        )


def test_9_2_bounds_are_not_sizes(impl) -> None:
    """a dimension that is bounded stays symbolic, also where the metadata speaks of it"""
    found = symbols(attach(impl, {"vocab_size": 500, "batch_size": 16}))["decode"]
    what = "The symbolic dimensions of `decode` are not those that only have a bound."
    ATTACH.equal(found, ["batch_size"], what, why=EXACT)


def test_9_2_sizes_come_first(impl) -> None:
    """the vocabulary is bound before any other pass sees the module"""
    first = attach_passes(impl, {"vocab_size": 500}, 2)[:1]
    left = symbols(through(first, Serving, BLACKWELL))["decode"]
    what = "Another pass runs before BindKnownSizes."
    why = "The other passes are told what is known of each dimension. A size that is exact is no dimension any more, "
    why += "so it is bound before anything else looks."
    wanted = "after the first pass, no dimension vocab_size"
    yours = ", ".join(names(first, "attach_phase"))
    ATTACH.that("vocab_size" not in left, what, expected=wanted, yours=f"first {yours}", why=why)


def observe_9_2(impl):
    def look(metadata: dict, stages: int) -> str:
        result = through(attach_passes(impl, metadata, stages), Serving, BLACKWELL)
        facts = {name: attributes(result, name) for name in ("decode", "embed")}
        return f"{facts} {symbols(result)} {sorted(kernels(result))} {metadata}"

    def after_the_first() -> str:
        first = attach_passes(impl, {"vocab_size": 500}, 2)[:1]
        return str(symbols(through(first, Serving, BLACKWELL)))

    return [
        after_the_first,
        lambda: look({}, 1),
        lambda: look({"vocab_size": 500}, 3),
        lambda: look({"batch_size": 16}, 1),
    ]


# --- 9.3 ------------------------------------------------------------------------------------------


def lower_by(impl, mod: tvm.IRModule | None = None) -> tvm.IRModule:
    """The small decoder, or `mod`, after graph_and_lower."""
    passes = impl.graph_and_lower(QUICK)
    names(passes, "graph_and_lower")
    given = mod or attached_model()
    return expect.apply(lambda one: through(passes, one), given, "graph_and_lower")


def test_9_3_everything_is_a_kernel(impl) -> None:
    """no operator is left, and no function that is never called"""
    result = lower_by(impl)
    ORDER.equal(operators(result, "decode"), [], "`decode` still calls operators.")
    functions = relax_functions(result)
    called = [g.name_hint for f in functions.values() for g in relax.analysis.all_global_vars(f)]
    left = sorted(set(kernels(result)) - set(called))
    left += [name for name, func in functions.items() if "Primitive" in (func.attrs or {})]
    what = "Functions are left that are never called."
    ORDER.equal(left, [], what, why="They would be scheduled and compiled although they never run.")


def test_9_3_no_transpose(impl) -> None:
    """no kernel transposes a weight"""
    ORDER.equal(
        sorted(name for name in kernels(lower_by(impl)) if "transpose" in name),
        [],
        "Weights are still transposed, at every step.",
        why="FuseTransposeMatmul looks for permute_dims and matmul. After LegalizeOps these are calls of kernels, and "
        "a pass that finds no match reports no error.",
    )


def test_9_3_sums_and_norms(impl) -> None:
    """every residual sum is part of its norm's kernel"""
    found = sorted(n for n in kernels(lower_by(impl)) if "add" in n and "add_norm" not in n)
    what = "A residual sum is a separate kernel."
    ORDER.equal(found, [], what, why="FuseAddRMSNorm found no sum with its norm.")


def test_9_3_launches(impl) -> None:
    """elementwise operators have become one kernel: as few launches as the reference"""
    want, result = (launches(lower_by(one), "decode") for one in (reference, impl))
    what = f"A decode step of one layer launches {result} kernels."
    why = "FuseOps joins what AnnotateTIROpPattern has described; FuseTIR makes one kernel of what it joined."
    ORDER.that(result <= want, what, expected=f"{want} or fewer", why=why)


def test_9_3_sorts_and_samples(impl) -> None:
    """a running sum, a sort and a sample become kernels too"""
    left = operators(lower_by(impl, Sampler), "sample")
    what = f"Operators are left that LegalizeOps does not know: {', '.join(left)}."
    why = "LegalizeOps has no kernel for these. DispatchSampling makes of a sample a running sum and a kernel, "
    why += "DispatchSortScan makes kernels of sorts and running sums. Both look for operators: they come before, in "
    why += "this order."
    ORDER.equal(left, [], what, why=why)


def test_9_3_constants(impl) -> None:
    """what depends on constants alone is computed once, at compile time, unless a kernel updates it in place"""
    why = "FoldReadOnlyConstants runs the kernels that read constants alone. It looks for kernels, so it comes after "
    why += "LegalizeOps, and before FuseOps, which joins them with kernels that read x."
    try:
        found = sorted(kernels(lower_by(impl, Constants)))
    except tvm.error.InternalError as error:
        what = f"A model with constants does not compile: {last_line(error)[:200]}"
        raise ORDER.failed(what, expected="FoldReadOnlyConstants before FuseOps", why=why) from None
    what = f"`main` computes its constants in every run, by {', '.join(found)}."
    wanted = "one kernel, which adds a constant to x"
    ORDER.that(not any("full" in name for name in found), what, expected=wanted, why=why)
    found = sorted(kernels(lower_by(impl, Counter)))
    what = "A tensor that a kernel updates in place was computed at compile time."
    why = "It is then one tensor for all runs: the second run begins with what the first one wrote. FoldConstant does "
    why += "that; FoldReadOnlyConstants does not."
    ORDER.that("full" in found, what, expected="a kernel `full` in each run", why=why)


def test_9_3_nothing_unused(impl) -> None:
    """functions that nobody calls are gone, those that the library must export stay, and so do the passes"""
    passes = [names(one.graph_and_lower(QUICK), "graph_and_lower") for one in (reference, impl)]
    missing = sorted(set(passes[0]) - set(passes[1]))
    what = f"A pass of the list is missing: {', '.join(missing)}."
    why = "The exercise asks for another order of the same passes. That a decoder needs one of them no more does not "
    why += "show that no model does."
    ORDER.that(not missing, what, expected="the same passes", why=why)
    mod = Sampler.clone()
    mod["halve"] = halve.with_attr("global_symbol", "halve")
    found = sorted(gvar.name_hint for gvar in lower_by(impl, mod).get_global_vars())
    left = [name for name in found if "relu" in name or name == "unused"]
    what = f"Functions are left that are never called: {', '.join(left)}."
    why = "A private function that nobody calls would be scheduled and compiled all the same. DeadCodeElimination "
    why += "removes it, with the kernels that only it calls."
    ORDER.equal(left, [], what, why=why)
    what = "A public PrimFunc is gone that no function calls."
    why = "It has a `global_symbol`: the program that loads the library calls it by that name."
    ORDER.that("halve" in found, what, expected="a function called halve", why=why)


def test_9_3_same_numbers(impl) -> None:
    """the lowered decoder computes what the exported one does"""
    expected, got = (logits_of(one) for one in (attached_model(), lower_by(impl)))
    ORDER.close(got, expected, "The logits of a prefill have changed.", rtol=1e-4, atol=1e-4)


def logits_of(mod: tvm.IRModule) -> np.ndarray:
    """Logits of a prefill of three tokens, on random weights."""
    weights = random_weights(SMALL)
    parameters = decoder(SMALL, "float32", ["prefill"])[1]
    random = np.random.default_rng(0)
    vm = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    x = random.standard_normal((1, 3, SMALL.hidden_size), dtype="float32")
    cache = np.zeros((1, 2, 1, 8, SMALL.num_key_value_heads, SMALL.head_dim), "float32")
    arguments = [tvm.runtime.tensor(a) for a in (x, np.zeros(1, "int32"), cache)]
    packed = [tvm.runtime.tensor(weights[name]) for name, _, _ in parameters]
    return vm["prefill"](*arguments, packed)[0].numpy()


def observe_9_3(impl):
    def look(name: str) -> str:
        result = through(impl.graph_and_lower(QUICK), attached_model())
        functions = len(result.functions)
        return f"{launches(result, name)} {sorted(kernels(result))} {functions} {operators(result, name)}"

    def names_of(mod: tvm.IRModule) -> str:
        result = through(impl.graph_and_lower(QUICK), mod)
        left = [operators(result, name) for name in relax_functions(result)]
        return f"{sorted(g.name_hint for g in result.get_global_vars())} {left}"

    return [
        lambda: look("decode"),
        lambda: look("prefill"),
        lambda: str(sorted(one.info.name for one in impl.graph_and_lower(QUICK))),
        *(lambda mod=mod: names_of(mod) for mod in (Sampler, Constants, Counter)),
    ]


# --- 9.4 ------------------------------------------------------------------------------------------


def run_kernel(func: tirx.PrimFunc) -> np.ndarray:
    """The last buffer after running `func` on random numbers, compiled for llvm."""
    random = np.random.default_rng(1)
    given = [(p.dtype, [int(d) for d in p.shape]) for p in func.params]
    arrays = [random.standard_normal(shape).astype(str(dtype)) for dtype, shape in given]
    arrays[-1][...] = np.nan
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return run_compiled(mod, arrays)[-1]


def fuse_one(impl, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """What fuse_its_epilogue makes of `func`."""
    try:
        result = impl.fuse_its_epilogue(func)
    except s_tir.ScheduleError as error:
        what = "A refusal of chapter 7 comes out of fuse_its_epilogue as an exception."
        wanted = "the function that was given"
        why = "A refusal says that this kernel is right as it is. It must not end the compilation of all others."
        raise NOT_FIRE.failed(
            what, expected=wanted, yours=last_line(error)[:300], why=why
        ) from None
    what = f"fuse_its_epilogue returned {type(result).__name__}, not a PrimFunc."
    wanted = "the fused PrimFunc, or the given one"
    expect.that(isinstance(result, tirx.PrimFunc), what, expected=wanted)
    return result


def test_9_4_fires(impl) -> None:
    """a sum with a bias, and one with a maximum, become one nest"""
    for kind in ("bias", "clipped"):
        is_one_nest(impl, product(kind), f"The product with epilogue “{kind}”")


def test_9_4_fires_on_the_scores(impl) -> None:
    """the decoder's attention scores, of symbolic size, become one nest"""
    is_one_nest(impl, kernels(lowered())["attention_scores"], "attention_scores")


def is_one_nest(impl, func: tirx.PrimFunc, what: str) -> None:
    why = "Chapter 7 has three ways; an addition goes into the init, anything else is applied after the last step."
    SCHEDULE.equal(nests(fuse_one(impl, func)), 1, f"{what} is not one nest.", why=why)


LEFT = {
    "gate and relu": "A kernel of three blocks was changed.",
    "row sums": "A reduction of a reduction was changed.",
    "shifted": "What chapter 7 refuses was changed.",
    "alone": "A reduction without an epilogue was changed.",
}


def test_9_4_leaves_the_rest(impl) -> None:
    """three blocks, two reductions, a refusal, no epilogue at all: the function as it was"""
    cases = {what: product(kind) for kind, what in LEFT.items()}
    cases["An elementwise block before a reduction was changed."] = relu_then_sum()
    cases["A kernel of three blocks was changed, the last two of them."] = relu_then_sum(bias=True)
    for what, func in cases.items():
        result = fuse_one(impl, func)
        NOT_FIRE.that(
            tvm_ffi.structural_equal(result, func),
            what,
            expected="the function that was given",
            yours=result.script(),
            why="A kernel of more blocks has a schedule that needs all of them. A kernel that chapter 7 refuses is "
            "right as it is.",
        )


def test_9_4_attributes(impl) -> None:
    """the function's attributes stay, and it is not called scheduled"""
    func = product("bias").with_attr("mine", 7)
    attrs = dict(fuse_one(impl, func).attrs or {})
    missing = sorted(set(dict(func.attrs)) - set(attrs))
    SCHEDULE.equal(missing, [], "Attributes of the function are gone.")
    SCHEDULE.that(
        "tirx.is_scheduled" not in attrs,
        "The fused kernel is marked as scheduled.",
        expected="the attributes that it had",
        yours=", ".join(sorted(attrs)),
        why="Only its epilogue was fused: it still has no threads, no vectors and no tiles. The schedules that come "
        "after this pass leave a marked kernel as it is.",
    )


def test_9_4_same_numbers(impl) -> None:
    """the fused kernels compute what the others do"""
    for kind in ("bias", "clipped"):
        func = product(kind)
        what = f"The product with epilogue “{kind}” gives other numbers."
        SCHEDULE.close(run_kernel(fuse_one(impl, func)), run_kernel(func), what)


def test_9_4_twice(impl) -> None:
    """a fused function is left alone"""
    once = fuse_one(impl, product("bias"))
    what = "fuse_its_epilogue changed its own result."
    SCHEDULE.that(tvm_ffi.structural_equal(fuse_one(impl, once), once), what)


def observe_9_4(impl):
    def look(func: tirx.PrimFunc) -> str:
        result = impl.fuse_its_epilogue(func)
        return f"{nests(result)} {sorted(dict(result.attrs))} {result.script()}"

    kinds = ("bias", "clipped", "gate and relu", "row sums", "shifted", "alone")
    return [
        *(lambda kind=kind: look(product(kind)) for kind in kinds),
        lambda: look(relu_then_sum()),
        lambda: look(relu_then_sum(bias=True)),
        lambda: look(kernels(lowered())["rms_norm"]),
    ]


# --- 9.5 ------------------------------------------------------------------------------------------

FITS = ["alone", *EPILOGUES, "bias, relu, gate"]
TWO_SHAPES = (3, 40)  # few rows, which chapter 5 schedules as decode, and many
WHOLE_TENSOR = (
    "Chapter 5 runs one block behind the product on each tile of sums, while these are in the cache. Further blocks "
    "would each make a pass over the whole result."
)


def schedule_one(impl, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """What schedule_product makes of `func`."""
    try:
        result = impl.schedule_product(func, QUICK)
    except s_tir.ScheduleError as error:
        raise NOT_FIRE.failed(
            "A block that cannot be inlined ends the compilation.",
            expected="the function that was given",
            yours=last_line(error)[:300],
            why="compute_inline refuses a block whose result the kernel returns. The fallback schedules such a kernel.",
        ) from None
    what = f"schedule_product returned {type(result).__name__}, not a PrimFunc."
    expect.that(
        isinstance(result, tirx.PrimFunc), what, expected="the scheduled PrimFunc, or the given one"
    )
    return result


def is_marked(func: tirx.PrimFunc) -> bool:
    attrs = func.attrs or {}
    return "tirx.is_scheduled" in attrs and bool(int(attrs["tirx.is_scheduled"]))


def test_9_5_fires(impl) -> None:
    """a product alone and with an epilogue of one block or three gets chapter 5's vectors"""
    for kind in FITS:
        for rows in TWO_SHAPES:
            result = schedule_one(impl, linear(kind, rows))
            what = f"The product with epilogue “{kind}” and {rows} rows of x has no schedule."
            why = "The fallback then takes this kernel: it computes element by element, many times as long."
            SCHEDULE.that(
                has_loop(result, tirx.ForKind.VECTORIZED), what, yours=result.script(), why=why
            )


def test_9_5_one_pass(impl) -> None:
    """an epilogue of three blocks runs on each tile, with no other pass over the result"""
    for kind in ("bias", "bias, relu, gate"):
        for rows in TWO_SHAPES:
            own, want = (nests(schedule_one(one, linear(kind, rows))) for one in (impl, reference))
            what = f"The product with epilogue “{kind}” and {rows} rows of x is {own} loop nests."
            SCHEDULE.that(own <= want, what, expected=f"{want} or fewer", why=WHOLE_TENSOR)


def test_9_5_is_marked(impl) -> None:
    """a scheduled kernel says so, and keeps its other attributes"""
    for kind in FITS:
        func = linear(kind).with_attr("mine", 7)
        result = schedule_one(impl, func)
        what = f"The product with epilogue “{kind}” is scheduled, and not marked as such."
        why = "Without the attribute tirx.is_scheduled the next pass schedules the kernel a second time."
        wanted = "attribute tirx.is_scheduled, with the value True"
        SCHEDULE.that(is_marked(result), what, expected=wanted, why=why)
        missing = sorted(set(dict(func.attrs)) - set(dict(result.attrs)))
        SCHEDULE.equal(missing, [], "Attributes of the function are gone.")


def test_9_5_leaves_other_sums(impl) -> None:
    """an epilogue that reads another sum than its own: the function as it was"""
    kinds = (*FOREIGN, "a transpose between", "row sums", "two results")
    for kind, func in {kind: linear(kind) for kind in kinds}.items():
        result = schedule_one(impl, func)
        NOT_FIRE.that(
            tvm_ffi.structural_equal(result, func),
            f"A product with “{kind}” behind it was changed.",
            expected="the function that was given",
            yours=result.script(),
            why="The last block runs on a tile as soon as its sums are there. A sum of another tile may not exist yet.",
        )


def test_9_5_leaves_other_kernels(impl) -> None:
    """no NT_matmul, another block of that name, a block before the product: the function as it was"""
    cases = {
        "A product whose block has another name": product("bias"),
        "A kernel without a product": relu_then_sum(),
        "A product with a block before it": linear("a cast before"),
    }
    for what, func in cases.items():
        result = schedule_one(impl, func)
        why = "Chapter 5's schedules know one form of product. Another pass has a schedule for this kernel."
        NOT_FIRE.that(
            tvm_ffi.structural_equal(result, func),
            f"{what} was changed.",
            expected="the function that was given",
            yours=result.script(),
            why=why,
        )


def test_9_5_same_numbers(impl) -> None:
    """the scheduled kernels compute what the others do"""
    for kind in FITS:
        for rows in TWO_SHAPES:
            func = linear(kind, rows)
            what = f"The product with epilogue “{kind}” and {rows} rows of x gives other numbers."
            SCHEDULE.close(
                run_kernel(schedule_one(impl, func)), run_kernel(func), what, rtol=1e-4, atol=1e-4
            )


def observe_9_5(impl):
    def look(func: tirx.PrimFunc) -> str:
        result = impl.schedule_product(func, QUICK)
        vectors = has_loop(result, tirx.ForKind.VECTORIZED)
        same = tvm_ffi.structural_equal(result, func)
        return f"{same} {vectors} {nests(result)} {is_marked(result)} {sorted(dict(result.attrs))}"

    kinds = (*FITS, *FOREIGN, "a transpose between", "row sums", "two results", "a cast before")
    return [
        *(lambda kind=kind: look(linear(kind)) for kind in kinds),
        lambda: look(linear("bias", 3)),
        lambda: look(product("bias")),
        lambda: look(relu_then_sum()),
    ]


# --- 9.6 ------------------------------------------------------------------------------------------


def schedule_by(impl, target: Target = QUICK, bounds: dict = BOUNDS) -> dict[str, tirx.PrimFunc]:
    """The kernels of the lowered decoder after schedule_phase; a failing pass is a failed check."""
    return _schedule_by(impl, target, tuple(bounds.items()))


@functools.lru_cache(maxsize=8)  # for an answer: the checks of 9.6 ask for the same kernels
def _schedule_by(impl, target: Target, bounds: tuple) -> dict[str, tirx.PrimFunc]:
    passes = impl.schedule_phase(target, dict(bounds))
    names(passes, "schedule_phase")
    try:
        return kernels(through(passes, lowered(target), target))
    except (tvm.s_tir.ScheduleError, tvm.error.InternalError, ValueError) as error:
        line = next((x for x in str(error).splitlines() if "rror" in x), str(error)[:200])
        raise SCHEDULE.failed(
            f"The schedule phase for {target.kind.name} fails on the decoder: {line.strip()}",
            expected="each rule finds the kernels as it knows them",
            why="dlight's rules recognize a kernel by its blocks. If an earlier pass has rewritten them, some rules "
            "decline and some fail.",
        ) from None


def test_9_6_nothing_left(impl) -> None:
    """every kernel is scheduled, for a CPU and for a GPU"""
    for target in (QUICK, CUDA):
        found = schedule_by(impl, target)
        SCHEDULE.equal(
            sorted(n for n, f in found.items() if "tirx.is_scheduled" not in (f.attrs or {})),
            [],
            f"Kernels are left without a schedule for {target.kind.name}.",
            why="TVM compiles a kernel without threads for the CPU, which cannot read the GPU's memory.",
        )


def test_9_6_products_first(impl) -> None:
    """on a CPU the products have chapter 5's schedule, with vectors"""
    products = {n: f for n, f in schedule_by(impl).items() if n.startswith("NT_matmul")}
    found = [n for n, f in products.items() if not has_loop(f, tirx.ForKind.VECTORIZED)]
    what = "Products with a transposed weight are computed element by element."
    why = "A rule skips a kernel that is already scheduled, so the first rule wins. Put the most specific rule first."
    SCHEDULE.equal(found, [], what, why=why)
    layer = tvm.IRModule({"layer": linear("bias").with_attr("global_symbol", "layer")})
    result = through(impl.schedule_phase(QUICK, BOUNDS), layer)["layer"]
    SCHEDULE.that(
        has_loop(result, tirx.ForKind.VECTORIZED),
        "A product with a bias behind it is computed element by element.",
        expected="chapter 5's schedule, with vectors",
        yours=f"{nests(result)} loop nest(s), no vectors",
        why="FuseEpilogues makes one block of the product and its bias, which chapter 5's schedule does not know. So "
        "ScheduleMatmuls comes first: it takes a product together with the blocks behind it.",
    )


def test_9_6_before_epilogues(impl) -> None:
    """on a CPU a product of two activations is tiled, and a mean summed by vectors, before epilogues are fused"""
    found = kernels(through(impl.schedule_phase(QUICK, {}), two_activations(), QUICK))
    best = kernels(through(reference.schedule_phase(QUICK, {}), two_activations(), QUICK))
    same = {
        name: tvm_ffi.structural_equal(found[name].body, func.body, map_free_vars=True)
        for name, func in best.items()
    }
    SCHEDULE.that(
        same.pop("mean"),
        "The terms of a mean over rows are not added by vectors.",
        expected="ReductionOnce sees the sum and its division before FuseEpilogues does",
        why="rfactor gives each row a vector of partial sums. It refuses a sum that shares its loops with a block "
        "behind it, and that is what FuseEpilogues makes.",
    )
    for is_same in same.values():
        SCHEDULE.that(
            is_same,
            "A product of two tensors with a batch, as in attention, is not tiled.",
            expected="TileProducts sees it before FuseEpilogues and ApplyCPUFallback do",
            why="The fallback multiplies one pair of numbers at a time. A product whose sums start from an epilogue "
            "has another form than TileProducts looks for.",
        )


def test_9_6_epilogues(impl) -> None:
    """a sum that no rule takes, and what follows it, are one nest, on a CPU and on a GPU"""
    what = "The attention scores of a decode step are still two nests."
    why = "FuseEpilogues skips a kernel that is already scheduled."
    SCHEDULE.equal(nests(schedule_by(impl)["attention_scores1"]), 1, what, why=why)
    declined = tvm.IRModule({"columns": columns.with_attr("global_symbol", "columns")})
    found = kernels(through(impl.schedule_phase(CUDA, {}), declined, CUDA))["columns"]
    what = "On a GPU a sum that dlight's rules decline and the bias behind it are two launches."
    why = "FuseEpilogues makes one nest of both, and the fallback schedules what it finds. So it comes between the "
    why += "rules that know whole kernels and the fallback."
    SCHEDULE.equal(nests(found), 1, what, why=why)


def test_9_6_small_kernels(impl) -> None:
    """on a CPU kernels that are small within the bounds run on one thread, others on all"""
    for bounds, threads in ((BOUNDS, False), ({}, True)):
        scores = schedule_by(impl, QUICK, bounds)["attention_scores1"]
        found = has_loop(scores, tirx.ForKind.PARALLEL)
        SCHEDULE.equal(
            found,
            threads,
            f"With bounds {bounds} the scores of a decode step "
            + ("wake threads." if found else "run on one thread."),
            why="Waking a thread takes microseconds; a kernel of a few thousand steps ends earlier. "
            "RunSmallKernelsSerially takes threads away that a schedule has given to a kernel which is small within "
            "the bounds. So it comes after every schedule, and without bounds it knows of no kernel that it is small.",
        )


def test_9_6_who_knows_most(impl) -> None:
    """each kernel has the schedule of the most specific rule, on a CPU and on a GPU"""
    for target in (QUICK, CUDA):
        yours, best = schedule_by(impl, target), schedule_by(reference, target)
        others = sorted(
            name
            for name, func in best.items()
            if not tvm_ffi.structural_equal(yours[name].body, func.body, map_free_vars=True)
        )
        SCHEDULE.that(
            not others,
            f"For {target.kind.name}, {_some(others)} got the schedule of another rule than the one that knows most.",
            expected=f"all {len(best)} kernels as from the order that the lesson's table gives",
            why="A rule skips a kernel that is already scheduled. First come the schedules for whole kernels: "
            "products, then sums. Then epilogues are fused in the remaining kernels. The fallback comes last.",
        )


def _some(found: list[str]) -> str:
    """Up to three names of a list."""
    more = len(found) - 3
    return ", ".join(found[:3]) + (f" and {more} more kernels" if more > 0 else "")


def test_9_6_tensor_cores(impl) -> None:
    """on a GPU the prefill's linear layers are computed by chapter 8's kernel for tensor cores"""
    found, best = (
        [n for n, f in schedule_by(one, CUDA).items() if uses_tensor_cores(f)]
        for one in (impl, reference)
    )
    missing = sorted(set(best) - set(found))
    SCHEDULE.equal(
        missing,
        [],
        f"No kernel with mma.sync computes {', '.join(missing)}.",
        why="ScheduleLinearLayers skips a kernel that dlight has scheduled. dlight's rule starts its sums from zero, "
        "rounds them, and adds the bias to the rounded sum. These kernels start from the bias and round once.",
    )


def test_9_6_few_rows(impl) -> None:
    """on a GPU the bounds reach ScheduleLinearLayers: at most eight rows need no tensor cores"""
    linear_layers = {n: f for n, f in kernels(lowered(CUDA)).items() if "NT_matmul" in n}
    passes = impl.schedule_phase(CUDA, {**BOUNDS, "seq_len": 8})
    result = kernels(through(passes, tvm.IRModule(linear_layers), CUDA))
    found = sorted(n for n, f in result.items() if uses_tensor_cores(f))
    why = "With the bounds, the pass knows which numbers of rows can occur, and makes kernels for those alone."
    what = f"With the bound seq_len = 8, tensor cores compute {', '.join(found)}."
    SCHEDULE.equal(found, [], what, why=why)


def test_9_6_any_gpu(impl) -> None:
    """every target that is not a CPU gets a GPU's passes"""
    wanted = names(impl.schedule_phase(CUDA, BOUNDS), "schedule_phase")
    for kind in ("metal", "vulkan"):
        found = names(impl.schedule_phase(Target(kind), BOUNDS), "schedule_phase")
        what = f"The passes for {kind} are not those for cuda."
        SCHEDULE.equal(found, wanted, what, why="dlight's rules for a GPU serve all kinds of them.")


def test_9_6_within_bounds(impl) -> None:
    """on a GPU no block of threads is half outside the result it writes"""
    found = [
        n
        for n, f in schedule_by(impl, CUDA).items()
        if "NT_matmul" in n and shuffles(f) and not has_whole_blocks(f)
    ]
    what = "A product of 72 rows is computed 16 rows at a time, and the last block stores all 16."
    why = "dlight's GEMV in this release guards the sums and not the store: eight zeros are written beyond the end."
    NOT_FIRE.equal(found, [], what, why=why)


def test_9_6_each_sum_once(impl) -> None:
    """on a CPU no norm or softmax is computed again for each of its elements"""
    again = sorted(n for n, f in schedule_by(impl).items() if repeats_a_reduction(f))
    NOT_FIRE.equal(
        again,
        [],
        "Kernels add up the same row again and again: " + ", ".join(again) + ".",
        why="Where there is one row, dlight's CPU rule of this release takes its elements for rows, and computes the "
        "whole sum of squares for each. The numbers are right; the time is not.",
    )


def observe_9_6(impl):
    def look(target: Target, bounds: dict, mod: tvm.IRModule | None = None) -> str:
        passes = impl.schedule_phase(target, bounds)
        result = kernels(through(passes, mod or lowered(target), target))
        facts = {}
        for name, func in sorted(result.items()):
            kinds = [(int(loop.kind), str(loop.extent)) for loop in nodes(func.body, tirx.For)]
            blocks = len(nodes(func.body, SBlock))
            is_scheduled = "tirx.is_scheduled" in (func.attrs or {})
            sums = repeats_a_reduction(func), uses_tensor_cores(func)
            facts[name] = (is_scheduled, kinds, blocks, *sums)
        return str(facts)

    cases = (QUICK, BOUNDS), (QUICK, {}), (CUDA, BOUNDS), (CUDA, {**BOUNDS, "seq_len": 8})

    def biased() -> str:
        layer = tvm.IRModule({"layer": linear("bias").with_attr("global_symbol", "layer")})
        result = through(impl.schedule_phase(QUICK, BOUNDS), layer)["layer"]
        return f"{nests(result)} {has_loop(result, tirx.ForKind.VECTORIZED)}"

    cases = (QUICK, {}, two_activations()), *cases
    return [biased, *(lambda case=case: look(*case) for case in cases)]


# --- 9.7 ------------------------------------------------------------------------------------------


def with_graphs(on: bool) -> tvm.transform.PassContext:
    """The configuration in which RewriteCUDAGraph captures, or leaves the module as it is."""
    return tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": on})


def place_by(impl, target: Target = QUICK, graphs: bool = False) -> tvm.IRModule:
    """The scheduled decoder after memory_phase."""
    passes = impl.memory_phase(target)
    names(passes, "memory_phase")
    with with_graphs(graphs):
        return expect.apply(lambda mod: through(passes, mod, target), scheduled(), "memory_phase")


def test_9_7_destinations(impl) -> None:
    """every kernel writes into a tensor that is given to it"""
    result = place_by(impl)
    what = "Calls of kernels still return tensors that are not allocated anywhere."
    MEMORY.equal(calls_of(result, "relax.call_tir", "relax.call_tir_inplace"), 0, what)
    what = "Some tensors have no storage."
    why = "LowerAllocTensor gives a storage to each tensor that the plan left out."
    MEMORY.equal(calls_of(result, "relax.builtin.alloc_tensor"), 0, what, why=why)


def test_9_7_tensors_share(impl) -> None:
    """tensors share storage: no more storages than the reference allocates"""
    want, found = (len(sizes_of(place_by(one))) for one in (reference, impl))
    MEMORY.that(
        found <= want,
        f"{found} storages are allocated for prefill and decode of one layer.",
        expected=f"{want} or fewer, as tensors whose lives do not overlap share storage",
        why="The plan shares storage among tensors that are allocated and not yet freed explicitly. So "
        "CallTIRRewrite, which allocates them, comes before it, and KillAfterLastUse, which frees them, after it.",
    )


def test_9_7_views(impl) -> None:
    """a reshape launches nothing"""
    want, found = (launches(place_by(one), "decode") for one in (reference, impl))
    MEMORY.that(
        found <= want,
        f"A decode step of one layer launches {found} kernels.",
        expected=f"{want} or fewer: a reshape is a view of the same memory",
        why="RewriteDataflowReshape recognizes reshapes in dataflow blocks, as calls that return a tensor. So it comes "
        "before ToNonDataflow and before CallTIRRewrite.",
    )


def test_9_7_ends_of_life(impl) -> None:
    """a tensor is freed after its last use"""
    kills = "relax.vm.kill_object", "relax.memory.kill_tensor", "relax.memory.kill_storage"
    MEMORY.that(
        calls_of(place_by(impl), *kills) > 0,
        "No tensor is freed before a function returns.",
        expected="KillAfterLastUse, after the plan",
        why="A prefill would keep its attention scores until its logits are computed.",
    )
    want, found = (calls_of(placed_with_branches(one, QUICK), *kills) for one in (reference, impl))
    MEMORY.that(
        found >= want,
        f"In a function that has no plan, {found} tensors and storages are freed before it returns.",
        expected=f"{want} or more",
        why="Where there is no plan, LowerAllocTensor makes the storages. KillAfterLastUse frees those that are there "
        "when it runs, so it comes last.",
    )


def test_9_7_graphs(impl) -> None:
    """graphs are captured for CUDA, and for nothing else"""
    for target, wanted in ((CUDA, True), (QUICK, False)):
        result = place_by(impl, target, graphs=True)
        found = any("cuda_graph" in g.name_hint for g in result.get_global_vars())
        MEMORY.that(
            found == wanted,
            f"For {target.kind.name} graphs are {'captured' if found else 'not captured'}.",
            expected="RewriteCUDAGraph, directly behind the plan"
            if wanted
            else "no RewriteCUDAGraph",
            why="Without a graph the host launches every kernel of a decode step, one by one. RewriteCUDAGraph "
            "captures what the plan has made static."
            if wanted
            else "Graphs are CUDA's: the functions that this pass makes call a builtin that only a CUDA runtime has.",
        )


@functools.cache
def branching(target: Target) -> tvm.IRModule:
    """A scheduled function that computes before, in and after an `if`."""
    return through(phases(target, "graph and lower", "schedule"), Branches, target)


def placed_with_branches(impl, target: Target) -> tvm.IRModule:
    with with_graphs(True):
        return through(impl.memory_phase(target), branching(target), target)


BEHIND_A_BRANCH = {
    "llvm": "TVM's StaticPlanBlockMemory of this release gives such memory to tensors behind the `if`. "
    "PlanStraightFunctions plans only functions without a branch.",
    "cuda": "PlanStraightFunctions makes no plan for this function. Behind LowerAllocTensor, RewriteCUDAGraph takes "
    "its tensors for planned ones, and asks for the memory of all graphs inside one branch. It reads the plan, so it "
    "comes directly behind it.",
}


def test_9_7_branches(impl) -> None:
    """behind an `if`, no tensor lies in memory that only one branch has allocated"""
    for target in (QUICK, CUDA):
        result = placed_with_branches(impl, target)
        MEMORY.that(
            relax.analysis.check_well_formed(result),
            f"For {target.kind.name} a tensor behind an `if` lies in memory that only one branch has allocated.",
            expected="memory that is there whichever branch runs",
            why=f"If the other branch runs, the process dies. {BEHIND_A_BRANCH[target.kind.name]}",
        )


def observe_9_7(impl):
    def look(target: Target, graphs: bool) -> str:
        with with_graphs(graphs):
            result = through(impl.memory_phase(target), scheduled(), target)
        ops = ("call_tir", "vm.kill_object", "memory.kill_tensor", "reshape")
        counts = [calls_of(result, f"relax.{name}") for name in ops]
        functions = sorted(g.name_hint for g in result.get_global_vars())
        return f"{counts} {sizes_of(result)} {functions} {launches(result, 'decode')}"

    def branches(target: Target) -> str:
        result = placed_with_branches(impl, target)
        freed = calls_of(result, "relax.memory.kill_tensor", "relax.memory.kill_storage")
        return f"{relax.analysis.check_well_formed(result)} {sizes_of(result)} {freed}"

    return [
        lambda: look(QUICK, False),
        lambda: look(QUICK, True),
        lambda: look(CUDA, True),
        lambda: branches(QUICK),
        lambda: branches(CUDA),
    ]


# --- 9.8 ------------------------------------------------------------------------------------------

STEPS = 8
PROMPT = (3, 1, 4, 1, 5)


@functools.cache
def exact() -> tuple[np.ndarray, np.ndarray]:
    """STEPS greedy tokens and their logits, in float64."""
    return llama_reference.generate(SMALL, random_weights(SMALL), PROMPT, STEPS)


def facts() -> dict:
    """Arguments for the pipeline, fresh ones each time."""
    return {"variable_bounds": dict(BOUNDS), "metadata": {"vocab_size": SMALL.vocab_size}}


def whole(impl, **more) -> tvm.IRModule:
    """A decode step through fusion_pipeline, with no target current around it."""
    made_pass = impl.fusion_pipeline(QUICK, **facts(), **more)
    what = f"fusion_pipeline returned {type(made_pass).__name__}, not a pass."
    wanted = "the function that module_pass has made a Pass of"
    why = "relax.build calls what it is given on the module."
    expect.that(isinstance(made_pass, Pass), what, expected=wanted, why=why)
    return applied(made_pass, "fusion_pipeline")


def applied(made_pass: Pass, whose: str) -> tvm.IRModule:
    """A decode step after `made_pass`. What it raises is shown without the program: it says nothing about a fault."""
    try:
        return expect.apply(made_pass, model(functions=("decode",)), whose)
    except Exception as error:
        error.given = ""
        raise


def test_9_8_is_one_pass(impl) -> None:
    """it is one pass; it needs no current target, and the module given stays as it is"""
    expect.has_function(whole(impl), "decode", "fusion_pipeline")


def test_9_8_takes_the_current_target(impl) -> None:
    """without a target it takes the current one, as `relax_pipeline="fusion_by_hand"` needs it"""
    made_pass = impl.fusion_pipeline(**facts())
    with QUICK:
        result = applied(made_pass, "fusion_pipeline()")
    expect.has_function(result, "decode", "fusion_pipeline()")


def test_9_8_uses_its_arguments(impl) -> None:
    """bounds, metadata and kernels reach the phases"""
    result = whole(impl, additional_tirs={"halve": halve, "third": third})
    missing = [name for name in ("halve", "third") if name not in kernels(result)]
    what = f"The kernels that were given as additional_tirs are not in the module: {', '.join(missing)}."
    why = "What the caller knows is in `**facts`: the bounds, the metadata, the kernels. `phases` takes them all."
    ATTACH.that(not missing, what, expected="phases(…, **facts)", why=why)
    found = [name for name, func in kernels(result).items() if has_dimension(func, "vocab_size")]
    ATTACH.equal(found, [], "The vocabulary is still symbolic in kernels.", why=EXACT)
    sizes = sizes_of(result)
    what = "Storage is still of symbolic size although all dimensions are bounded."
    why = "The bounds that were given did not reach the planner."
    ATTACH.that(sizes and -1 not in sizes, what, expected="numbers only", yours=str(sizes), why=why)


def test_9_8_reaches_the_vm(impl) -> None:
    """all phases ran, so the virtual machine accepts the module"""
    result = whole(impl)
    ran = {
        "graph and lower": launches(result, "decode") <= 14,
        "schedule": not unscheduled(result),
        "memory": calls_of(result, "relax.call_tir") == 0,
        "vm": calls_of(result, "relax.memory.alloc_storage", "relax.memory.alloc_tensor") == 0,
    }
    if not ran["graph and lower"]:
        own, want = (launches(lower_by(one), "decode") for one in (impl, reference))
        what = "fusion_pipeline is not to blame: your graph_and_lower, exercise 9.3, leaves too many kernels."
        wanted = f"{want} or fewer after that phase"
        why = "fusion_pipeline runs your phases, so a fault in one of them shows here too."
        ORDER.that(own <= want, what, expected=wanted, yours=str(own), why=why)
    missing = ", ".join(name for name, has_run in ran.items() if not has_run)
    what = f"These phases have not run, or not in their order: {missing}."
    why = "`phases` has them in order; each needs what the one before it made."
    wanted = "calls of kernels with memory from the runtime: what the virtual machine executes"
    HOW.that(not missing, what, expected=wanted, why=why)


def test_9_8_for_a_gpu(impl) -> None:
    """for CUDA every kernel has threads, and the source compiles to text"""
    mod = model("float16", ("decode",))
    executable = tvm.compile(mod, CUDA, relax_pipeline=impl.fusion_pipeline(CUDA, **facts()))
    source = executable.mod.imports[0].imports[0].inspect_source()
    expect.that(
        source.count("__global__") >= 12, "The source has fewer kernels than a layer needs."
    )


def test_9_8_same_tokens(impl) -> None:
    """the decoder gives the tokens of NumPy in float64, and its logits"""
    tokens, logits = exact()
    generator = Generator(
        SMALL, target=QUICK, relax_pipeline=impl.fusion_pipeline(QUICK, **facts())
    )
    got = generator.generate(PROMPT, STEPS)
    BREAK.close(got.logits, logits, "The logits are not the reference's.", rtol=1e-3, atol=1e-3)
    expect.equal(got.tokens.tolist(), tokens.tolist(), "The greedy tokens are not the reference's.")


def observe_9_8(impl):
    def look(target: Target | None, **arguments) -> str:
        mod = model(functions=("decode",))
        given = mod.clone()
        with QUICK if target is None else contextlib.nullcontext():
            result = impl.fusion_pipeline(target, **arguments)(given)
        same, left = tvm_ffi.structural_equal(given, mod), calls_of(result, "relax.call_tir")
        facts = sorted(attributes(result, "decode")), sorted(kernels(result)), sizes_of(result)
        return f"{same} {left} {unscheduled(result)} {facts}"

    return [
        lambda: look(QUICK, **facts()),
        lambda: look(QUICK, additional_tirs={"halve": halve}),
        lambda: look(None),
        lambda: look(CUDA, **facts()),
    ]


# --- 9.9 ------------------------------------------------------------------------------------------

SAYS = {  # what each word claims, so that a learner can look for it
    "same": "Then the moved pass finds at its new place all that it looks for, and takes nothing from those behind it.",
    "slower": "Then the moved pass, or one behind it, finds less to join or to remove, and more kernels are launched.",
    "more memory": "Then as many kernels are launched, and fewer tensors share storage: the plan does not see them.",
    "fails": "A pass that finds nothing to do reports no error. It fails if it is given something that it cannot read.",
}
WORDS = tuple(SAYS)


def moved(name: str, where: str, anchor: str, target: Target) -> list[Pass]:
    """The reference's passes with `name` moved before the first or after the last `anchor`."""
    passes = phases(target)
    taken = next(one for one in passes if one.info.name == name)
    passes = [one for one in passes if not one.same_as(taken)]
    places = [n for n, one in enumerate(passes) if one.info.name == anchor]
    passes.insert(places[0] if where == "before" else places[-1] + 1, taken)
    return passes


def cost(passes: Sequence[Pass], target: Target) -> tuple[int, int] | None:
    """(launches, bytes allocated) of the decoder; None if it does not compile."""
    mod = model("float32", ("decode",)) if target is QUICK else model("float16")
    planning = ("CallTIRRewrite", "StaticPlanBlockMemory")
    planned = max(n for n, one in enumerate(passes) if one.info.name in planning) + 1
    try:
        middle = through(passes[:planned], mod, target)
        rest = through(passes[planned:], middle, target)
    except (tvm.s_tir.ScheduleError, tvm.error.InternalError):
        return None
    return launches(rest, "decode"), read_plan(middle).bytes(BOUNDS)


@functools.cache
def cost_in_order(target: Target) -> tuple[int, int] | None:
    return cost(phases(target), target)


@functools.cache
def truth(change: str) -> str:
    """What the compiler says about moving a pass."""
    text, _, device = change.partition(", for ")
    target = CUDA if device == "cuda" else QUICK
    before, after = cost_in_order(target), cost(moved(*text.split(), target), target)
    if after is None:
        return "fails"
    if after[0] > before[0]:
        return "slower"
    return "more memory" if after[1] > before[1] else "same"


def test_9_9_one_word_each(impl) -> None:
    """one of the four words for each change"""
    said = impl.consequences()
    what = "The keys are not the six moves that the docstring lists."
    expect.equal(sorted(said), sorted(reference.consequences()), what)
    what = f"There are words besides {', '.join(WORDS)}."
    expect.equal(sorted(set(said.values()) - set(WORDS)), [], what)


def test_9_9_agrees_with_the_compiler(impl) -> None:
    """compiled with that one pass moved, the decoder does what you say"""
    for change, word in impl.consequences().items():
        what = f"“{change}”: the compiler disagrees."
        others = [repr(one) for one in WORDS if one != word]
        wanted = f"{', '.join(others[:-1])} or {others[-1]}"
        ORDER.that(word == truth(change), what, expected=wanted, yours=repr(word), why=SAYS[word])


def observe_9_9(impl):
    def answers(part: slice) -> str:
        said = impl.consequences()
        return str([said.get(key) for key in list(reference.consequences())[part]])

    return [lambda: answers(slice(0, 3)), lambda: answers(slice(3, 6))]


# --- 9.10 ------------------------------------------------------------------------------------------


def counted(layers: int) -> dict[str, int]:
    """Launches of a decode step, by lowering it."""
    mod = decoder(replace(SMALL, num_hidden_layers=layers), "float32", ["decode"])[0]
    passes = [p for name, v in reference.phases(QUICK).items() if name != "vm" for p in v]
    return {
        "default": launches(lower(mod), "decode"),
        "ours": launches(through(passes, mod), "decode"),
    }


def test_9_10_agrees_with_the_compiler(impl) -> None:
    """for one, two and five layers the compiler counts the same"""
    for layers in (1, 2, 5):
        said = f"{layers} layer{'s' if layers > 1 else ''}"
        what = f"A decode step of {said} launches another number of kernels, '{{}}'."
        why = (
            "`python -m chapters trace --pipeline default --pass LegalizeOps` shows the kernels of three layers; with "
            "`fusion_by_hand` ours, before split, silu and product are joined. A reshape is a view."
        )
        yours = impl.launches_a_step(layers)
        MEASURE.each_predicted(yours, counted(layers), "launches_a_step", what, why=why)


def observe_9_10(impl):
    return [lambda n=n: impl.launches_a_step(n) for n in (1, 2, 32)]


# --- 9.11 -----------------------------------------------------------------------------------------

TWO_WORDS = replace(SMALL, vocab_size=2)


@functools.cache
def gloomy() -> dict[str, np.ndarray]:
    """Weights of a decoder with two words: one's logit is half the other's, so both may be negative."""
    weights = random_weights(TWO_WORDS)
    first = weights["lm_head.weight"][0]
    return {**weights, "lm_head.weight": np.stack([first, first / 2])}


def generated(
    generator: Generator, prompt: Sequence[int], config: LlamaConfig = SMALL, weights=None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logits of a compiled decoder, with `weights` for `config` in place of its own if they are given.

    The size of the vocabulary is symbolic, so decoders that differ only in it are one module.
    """
    if weights:
        order = [name for name, _, _ in decoder(config, "float32", Generator.SINGLE)[1]]
        generator = copy.copy(generator)
        generator.config = config
        generator.weights = [generator.to_device(weights[name]) for name in order]
    found = [generator.generate(one, STEPS) for one in (prompt, prompt[::-1])]
    return np.stack([f.tokens for f in found]), np.stack([f.logits for f in found])


@functools.cache
def unspoiled() -> Generator:
    return Generator(SMALL, target=QUICK)


@functools.lru_cache(maxsize=2)  # for an answer: all checks of 9.11 run the same
def spoiled(impl) -> Generator:
    """The decoder after slips_through."""
    mod = decoder(SMALL, "float32", Generator.SINGLE)[0]
    changed = expect.apply(impl.slips_through, mod, "slips_through")
    return Generator(SMALL, target=QUICK, module=changed)


def test_9_11_same_tokens(impl) -> None:
    """the greedy tokens stay what they were"""
    what = "The tokens change: a test that compares them finds this pass."
    found, right = (generated(one, PROMPT)[0] for one in (spoiled(impl), unspoiled()))
    BREAK.equal(found.tolist(), right.tolist(), what)


def test_9_11_any_logits(impl) -> None:
    """the greedy tokens stay also where all logits are negative"""
    other = [token % 2 for token in PROMPT], TWO_WORDS, gloomy()
    BREAK.equal(
        generated(spoiled(impl), *other)[0].tolist(),
        generated(unspoiled(), *other)[0].tolist(),
        "The tokens of a second decoder change. It has two words, and their logits may both be negative.",
        why="Which logit is the largest must not depend on their signs or sizes: your change has to keep the order of "
        "any numbers.",
    )


def test_9_11_wrong_logits(impl) -> None:
    """logits are wrong by more than a tenth of the largest"""
    logits, right = (generated(one, PROMPT)[1] for one in (spoiled(impl), unspoiled()))
    error = np.abs(logits - right).max() / np.abs(right).max()
    what = "The logits are right or nearly right, so your pass is not wrong enough."
    wanted = "an error above 0.1 of the largest logit"
    why = "A compiler has to keep the numbers. Tokens are only what argmax leaves of them."
    BREAK.that(bool(error > 0.1), what, expected=wanted, yours=f"{error:.3g}", why=why)


def observe_9_11(impl):
    def look(part: str) -> str:
        mod = decoder(SMALL, "float32", ["decode", "prefill"])[0]
        given = mod.clone()
        result = impl.slips_through(given)
        return f"{tvm_ffi.structural_equal(given, mod)} {result[part].script()}"

    return [lambda: look("decode"), lambda: look("prefill")]
