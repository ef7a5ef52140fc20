"""The checks of chapter 9: each phase of the pipeline, the whole of it, and what its order is worth."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir.transform import Pass
from tvm.target import Target

from chapters.ch09_the_compiler.check_programs import (
    EPILOGUES,
    FOREIGN,
    Between,
    Constants,
    Counter,
    Sampler,
    Sizes,
    halve,
    linear,
    named_like_a_product,
    product,
    relu_then_sum,
    third,
)
from chapters.ch09_the_compiler.check_queries import (
    count_calls,
    count_launches,
    has_dimension,
    has_loop,
    nests,
    operators,
    storage_sizes,
    symbols,
    unscheduled,
    vector_lengths,
)
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.judge import judge_pass, observe_pass
from chapters.checking.programs import attributes_as_text, kernels, run_kernel
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.decoder import llama_reference
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.decoder.llama_generator import Generator, random_weights
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.ir.relax_effects import relax_functions
from chapters.kit.passes.planned_storage import read_plan
from chapters.runner.loading import last_line
from solutions.ch09_the_compiler import pipeline as reference

LESSON = "chapters/ch09_the_compiler/lesson.md"
HOW = Section(LESSON, "How it works")
ATTACH = Section(LESSON, "Attach")
ORDER = Section(LESSON, "Graph, then lower")
SCHEDULE = Section(LESSON, "Schedule")
NOT_FIRE = Section(LESSON, "When it must not fire")
BREAK = Section(LESSON, "Break it")

LIMITS = {"test_9_5_same_tokens": 60, "test_9_6_agrees_with_the_compiler": 60}

SMALL = LlamaConfig(64, 96, 1, 4, 2, 16, 72, 80)
BOUNDS = {"seq_len": 80, "context_window": 80}


@functools.cache
def make_model(dtype: str = "float32", functions: tuple[str, ...] = ("prefill", "decode")):
    """A decoder of one small layer, as it is exported."""
    return decoder(SMALL, dtype, functions)[0]


def run_passes(passes: Sequence[Pass], mod: tvm.IRModule) -> tvm.IRModule:
    """A copy of `mod` after `passes`."""
    with QUICK:
        return tvm.transform.Sequential(list(passes))(mod.clone())


def phases(*names: str) -> list[Pass]:
    """The reference's passes of the phases `names`, or of all, for the small decoder."""
    found = reference.phases(QUICK, variable_bounds=BOUNDS, metadata={"vocab_size": 72})
    return [one for name in names or found for one in found[name]]


@functools.cache
def attach_model() -> tvm.IRModule:
    return run_passes(phases("attach"), make_model())


@functools.cache
def lower_model() -> tvm.IRModule:
    """The decoder before the schedule phase, by the reference."""
    return run_passes(phases("attach", "graph and lower"), make_model())


def name_passes(passes: object, whose: str) -> list[str]:
    """The names of a list of passes, or what is wrong with it."""
    is_list = isinstance(passes, list) and all(isinstance(one, Pass) for one in passes)
    given = (
        [getattr(one, "__name__", type(one).__name__) for one in passes]
        if isinstance(passes, list)
        else passes
    )
    what = f"{whose} did not return a list of passes."
    wanted = "[Pass(…), …], each one made by calling its class"
    why = "A phase is a list, so that `phases` can put the lists together in order."
    HOW.that(is_list, what, expected=wanted, yours=repr(given)[:300], why=why)
    return [one.info.name for one in passes]


# --- 9.1 ------------------------------------------------------------------------------------------

EXACT = "A kernel of constant size needs the exact number; a bound only says at most."


def bind(impl, mod: tvm.IRModule, **sizes: int) -> tvm.IRModule:
    """`mod` after BindKnownSizes: without the dimensions of `sizes`, and as it was if it has none of them."""
    before = symbols(mod)
    known = any(name in sizes for names in before.values() for name in names)
    whose = f"BindKnownSizes({sizes})"

    def binds_all(result: tvm.IRModule) -> None:
        ATTACH.equal(
            symbols(result),
            {name: [s for s in all_ if s not in sizes] for name, all_ in before.items()},
            f"After {whose}, other symbolic dimensions are left than those without a size.",
            why=EXACT,
        )

    title = "a module" + " without such a dimension" * (not known)
    why = "One set of sizes serves models with fewer functions, so a name that nothing has is ignored."
    looks = {"stays": not known, "runs": False, "why": why, "read": ATTACH}
    fires = binds_all if known else None
    return judge_pass(impl.BindKnownSizes(sizes), mod, whose, title, fires=fires, **looks)


def test_9_1_binds_where_it_is(impl) -> None:
    """every function that has a dimension gets its number, private ones too"""
    for mod in (Sizes, Between):
        bind(impl, mod, vocab_size=500)
    bind(impl, Sizes, vocab_size=500, hidden=0, nowhere=3)


def test_9_1_the_number(impl) -> None:
    """the number is in the types, also in that of the result"""
    result = bind(impl, Sizes, vocab_size=500)
    shape = [int(d) if isinstance(d, tirx.IntImm) else str(d) for d in result["head"].ret_ty.shape]
    what = "After BindKnownSizes({'vocab_size': 500}), the result of `head` has another shape."
    ATTACH.equal(
        shape, ["n", 500], what, why="The number replaces the dimension wherever a type names it."
    )


def test_9_1_leaves_the_rest(impl) -> None:
    """functions without the dimension and PrimFuncs stay the same objects; attributes stay"""
    result = bind(impl, Sizes, vocab_size=500, nowhere=3)
    for name in ("plain", "kernel"):
        what = f"BindKnownSizes changed `{name}`, which has no dimension to bind."
        why = "Only Relax functions that have one of the dimensions get a number."
        same = tvm_ffi.structural_equal(result[name], Sizes[name], map_free_vars=True)
        ATTACH.that(same, what, expected="the same function", why=why)
    what = "After BindKnownSizes, the attributes of the module are others."
    why = "The module's attributes and global infos are for later passes. `mod.clone()` keeps them."
    ATTACH.equal(attributes_as_text(result.attrs), attributes_as_text(Sizes.attrs), what, why=why)
    what = "BindKnownSizes lost the attribute num_input of `head`."
    why = "Attributes tell later passes what the types do not, here how many parameters are inputs."
    ATTACH.equal(result["head"].attrs["num_input"], 1, what, why=why)
    found = sorted(g.name_hint for g in result.get_global_vars())
    what = "BindKnownSizes added or removed functions."
    why = "It changes types, not the set of functions."
    ATTACH.equal(found, sorted(g.name_hint for g in Sizes.get_global_vars()), what, why=why)


def test_9_1_nothing_known(impl) -> None:
    """without sizes, and with sizes that no function has, nothing changes"""
    for sizes in ({}, {"nowhere": 3}):
        bind(impl, Sizes, **sizes)


def observe_9_1(impl):
    sizes = {"vocab_size": 500}, {"n": 3, "vocab_size": 500, "hidden": 1}, {"nowhere": 3}
    passes = [
        observe_pass(lambda one=one: impl.BindKnownSizes(one), Sizes, runs=False) for one in sizes
    ]
    between = observe_pass(lambda: impl.BindKnownSizes(sizes[0]), Between, runs=False)
    return [probe for probes in (*passes, between) for probe in probes]


# --- 9.2 ------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)  # most checks of 9.2 look at the same result
def lower_by(impl, mod: tvm.IRModule | None = None) -> tvm.IRModule:
    """The small decoder, or `mod`, after graph_and_lower."""
    passes = impl.graph_and_lower(QUICK)
    name_passes(passes, "graph_and_lower")
    given = mod or attach_model()
    result = expect.apply(lambda one: run_passes(passes, one), given, "graph_and_lower")
    for name in expect.public_functions(given):
        expect.has_function(result, name, "graph_and_lower")
    return result


def test_9_2_everything_is_a_kernel(impl) -> None:
    """no operator is left, and no function that is never called"""
    result = lower_by(impl)
    what = "After graph_and_lower, `decode` still calls operators."
    ORDER.equal(
        operators(result, "decode"), [], what, why="The virtual machine calls kernels only."
    )
    functions = relax_functions(result)
    called = [g.name_hint for f in functions.values() for g in relax.analysis.all_global_vars(f)]
    left = sorted(set(kernels(result)) - set(called))
    left += [name for name, func in functions.items() if "Primitive" in (func.attrs or {})]
    what = "After graph_and_lower, functions are left that are never called, or groups that are not kernels yet."
    why = "A function that is never called would still be scheduled and compiled. FuseTIR makes kernels of groups."
    ORDER.equal(left, [], what, why=why)


def test_9_2_no_transpose(impl) -> None:
    """no kernel transposes a weight"""
    ORDER.equal(
        sorted(name for name in kernels(lower_by(impl)) if "transpose" in name),
        [],
        "After graph_and_lower, kernels are left that transpose a weight at every step.",
        why="FuseTransposeMatmul looks for the operators permute_dims and matmul. Behind LegalizeOps these are calls "
        "of kernels, and a pass that finds no match reports no error.",
    )


def test_9_2_sums_and_norms(impl) -> None:
    """every residual sum is part of its norm's kernel"""
    found = sorted(n for n in kernels(lower_by(impl)) if "add" in n and "add_norm" not in n)
    what = "After graph_and_lower, a residual sum is not part of the kernel of its norm."
    why = "FuseAddRMSNorm looks for the operators add and rms_norm. It found no such pair at its place in the list."
    ORDER.equal(found, [], what, why=why)


def test_9_2_launches(impl) -> None:
    """elementwise operators have become one kernel: as few launches as the reference"""
    want, result = (count_launches(lower_by(one), "decode") for one in (reference, impl))
    what = f"After graph_and_lower, a decode step of one layer launches {result} kernels."
    why = "FuseOps groups kernels that AnnotateTIROpPattern has described, and FuseTIR makes one kernel of each group."
    ORDER.that(result <= want, what, expected=f"{want} or fewer", why=why)


def test_9_2_sorts_and_samples(impl) -> None:
    """a running sum, a sort and a sample become kernels too"""
    left = operators(lower_by(impl, Sampler), "sample")
    what = f"After graph_and_lower, operators are left for which LegalizeOps has no kernel: {', '.join(left)}."
    why = "DispatchSampling makes a running sum and a kernel of a sample. DispatchSortScan makes kernels of sorts and "
    why += "running sums. So the first comes before the second."
    ORDER.equal(left, [], what, why=why)


def test_9_2_constants(impl) -> None:
    """what depends on constants alone is computed once, at compile time, unless a kernel updates it in place"""
    why = "FoldReadOnlyConstants computes what depends on constants alone. It comes before FuseOps, which would fuse "
    why += "that with kernels that read x."
    try:
        found = sorted(kernels(lower_by(impl, Constants)))
    except tvm.error.InternalError as error:
        what = f"With this graph_and_lower, a model with constants does not compile: {last_line(error)[:200]}"
        raise ORDER.failed(what, expected="FoldReadOnlyConstants before FuseOps", why=why) from None
    what = f"After graph_and_lower, `main` computes its constants in every run, with {', '.join(found)}."
    wanted = "one kernel, which adds a constant to x"
    ORDER.that(not any("full" in name for name in found), what, expected=wanted, why=why)
    found = sorted(kernels(lower_by(impl, Counter)))
    what = "After graph_and_lower, a tensor that a kernel updates in place is a constant of the module."
    why = "All runs then share one tensor, and the second run begins with what the first one wrote. TVM's FoldConstant "
    why += "does that; FoldReadOnlyConstants does not."
    ORDER.that("full" in found, what, expected="a kernel `full` in each run", why=why)


def test_9_2_nothing_unused(impl) -> None:
    """functions that nobody calls are gone, those that the library must export stay, and so do the passes"""
    passes = [
        name_passes(one.graph_and_lower(QUICK), "graph_and_lower") for one in (reference, impl)
    ]
    missing = sorted(set(passes[0]) - set(passes[1]))
    what = f"A pass is missing from graph_and_lower: {', '.join(missing)}."
    why = "The exercise asks for another order of the same passes. This decoder may not need one of them, but other "
    why += "models do."
    ORDER.that(not missing, what, expected="the same passes", why=why)
    mod = Sampler.clone()
    mod["halve"] = halve.with_attr("global_symbol", "halve")
    found = sorted(gvar.name_hint for gvar in lower_by(impl, mod).get_global_vars())
    left = [name for name in found if "relu" in name or name == "unused"]
    what = f"After graph_and_lower, functions are left that are never called: {', '.join(left)}."
    why = "They would still be scheduled and compiled. DeadCodeElimination removes private functions that are never "
    why += "called, and the kernels that only they call."
    ORDER.equal(left, [], what, why=why)
    what = "After graph_and_lower, the public PrimFunc `halve` is gone."
    why = "No function of the module calls it. But the program that loads the library does, by its `global_symbol`."
    ORDER.that("halve" in found, what, expected="a function called halve", why=why)


def test_9_2_same_numbers(impl) -> None:
    """the lowered decoder computes what the exported one does"""
    expected, got = (compute_logits(one) for one in (attach_model(), lower_by(impl)))
    what = "After graph_and_lower, the logits of a prefill are other numbers."
    why = "The passes change how the logits are computed, not what they are."
    ORDER.close(got, expected, what, rtol=1e-4, atol=1e-4, why=why)


def compute_logits(mod: tvm.IRModule) -> np.ndarray:
    """Logits of a prefill of three tokens, on random weights."""
    weights = random_weights(SMALL)
    parameters = decoder(SMALL, "float32", ["prefill"])[1]
    random = np.random.default_rng(0)
    vm = expect.machine(mod)
    x = random.standard_normal((1, 3, SMALL.hidden_size), dtype="float32")
    cache = np.zeros((1, 2, 1, 8, SMALL.num_key_value_heads, SMALL.head_dim), "float32")
    arguments = [tvm.runtime.tensor(a) for a in (x, np.zeros(1, "int32"), cache)]
    packed = [tvm.runtime.tensor(weights[name]) for name, _, _ in parameters]
    return vm["prefill"](*arguments, packed)[0].numpy()


def observe_9_2(impl):
    def make() -> Callable[[tvm.IRModule], tvm.IRModule]:
        return functools.partial(run_passes, impl.graph_and_lower(QUICK))

    return [
        lambda: str(sorted(one.info.name for one in impl.graph_and_lower(QUICK))),
        *observe_pass(make, attach_model(), Sampler, Constants, Counter, runs=False),
    ]


# --- 9.3 ------------------------------------------------------------------------------------------


def run_on_random(func: tirx.PrimFunc) -> np.ndarray:
    """The last buffer after running `func` on random numbers, compiled for llvm."""
    random = np.random.default_rng(1)
    given = [(p.dtype, [int(d) for d in p.shape]) for p in func.params]
    arrays = [random.standard_normal(shape).astype(str(dtype)) for dtype, shape in given]
    arrays[-1][...] = np.nan
    return run_kernel(func, *arrays)


def judge_kernel(
    transform: Callable[[tirx.PrimFunc], tirx.PrimFunc],
    func: tirx.PrimFunc,
    whose: str,
    title: str,
    *,
    fires: Callable[[tirx.PrimFunc], None] | None = None,
    stays: bool = False,
    why: str = "",
) -> tirx.PrimFunc:
    """`transform(func)`, looked at as `judge_pass` looks at a module; the first look that is not right fails.

    It is a PrimFunc; it is `func` if it `stays`, else `fires` says that it has fired; its attributes are there; it
    computes the same numbers, on a result that holds NaN.
    """
    func = func.with_attr("mine", 7)
    try:
        result = transform(func)
    except s_tir.ScheduleError as error:
        raise NOT_FIRE.failed(
            f"A refusal of a schedule comes out of {whose} as an exception, for {title}.",
            expected="the function that was given",
            yours=last_line(error)[:300],
            why="A refusal says that this kernel must not be scheduled like this. The exception would end the "
            "compilation of all others. Another pass can schedule this one.",
        ) from None
    given = "The pass around it puts what you return into the module, in place of `func`."
    SCHEDULE.returns(result, tirx.PrimFunc, whose, "a PrimFunc", why=given)
    if stays:
        what, wanted = f"{whose} changed {title}.", "the function that was given"
        same = tvm_ffi.structural_equal(result, func)
        NOT_FIRE.that(same, what, expected=wanted, yours=result.script(), why=why)
        return result
    if fires:
        fires(result)
    missing = sorted(set(dict(func.attrs)) - set(dict(result.attrs or {})))
    what = f"{whose} lost attributes of the function: {', '.join(missing)}."
    said = "`tirx.noalias`, for one, tells LLVM that the buffers do not overlap."
    wanted, yours = (", ".join(sorted(dict(one.attrs or {}))) for one in (func, result))
    SCHEDULE.that(not missing, what, expected=wanted, yours=yours or "no attributes", why=said)
    what = f"After {whose}, {title} gives other numbers."
    said = "Neither a fusion nor a schedule may change the result."
    exact = run_on_random(func)
    SCHEDULE.close(run_on_random(result), exact, what, rtol=1e-4, atol=1e-4, why=said)
    return result


def judge_fused(impl, func: tirx.PrimFunc, title: str, **looks) -> tirx.PrimFunc:
    return judge_kernel(impl.fuse_its_epilogue, func, "fuse_its_epilogue", title, **looks)


def test_9_3_fires(impl) -> None:
    """a sum with a bias, and one with a maximum, become one nest, which is not called scheduled"""
    for kind in ("bias", "clipped"):
        title = f"a product with the epilogue “{kind}”"
        is_one = functools.partial(check_one_nest, title=title)
        once = judge_fused(impl, product(kind), title, fires=is_one)
        SCHEDULE.that(
            "tirx.is_scheduled" not in once.attrs,
            "fuse_its_epilogue marks the fused kernel as scheduled.",
            expected="the attributes that it had",
            yours=", ".join(sorted(dict(once.attrs))),
            why="Only its epilogue was fused. It still has no threads, vectors or tiles, and later schedules skip a "
            "kernel that is marked.",
        )
        why = "A fused kernel has one block, so there is no epilogue left."
        judge_fused(impl, once, "a kernel that is fused already", stays=True, why=why)


def check_one_nest(func: tirx.PrimFunc, title: str) -> None:
    what = f"After fuse_its_epilogue, {title} is not one loop nest."
    why = "Chapter 7 can fuse it: an addition goes into the init, anything else is applied after the last step."
    SCHEDULE.equal(nests(func), 1, what, why=why)


def test_9_3_fires_on_the_scores(impl) -> None:
    """the decoder's attention scores, of symbolic size, become one nest"""
    check_one_nest(
        impl.fuse_its_epilogue(kernels(lower_model())["attention_scores"]), "attention_scores"
    )


LEFT = {
    "a kernel of three blocks": product("gate and relu"),
    "a reduction of a reduction": product("row sums"),
    "a kernel that chapter 7 refuses": product("shifted"),
    "a reduction without an epilogue": product("alone"),
    "an elementwise block and a reduction behind it": relu_then_sum(),
    "a kernel of three blocks, of which the last two could be fused": relu_then_sum(bias=True),
}


def test_9_3_leaves_the_rest(impl) -> None:
    """three blocks, two reductions, a refusal, no epilogue at all: the function as it was"""
    why = "Only a reduction and the one block behind it are fused. A kernel of more blocks has a schedule that needs "
    why += "all of them, and a kernel that chapter 7 refuses is right as it is."
    for title, func in LEFT.items():
        judge_fused(impl, func, title, stays=True, why=why)


def observe_9_3(impl):
    def describe(func: tirx.PrimFunc) -> str:
        result = impl.fuse_its_epilogue(func)
        return f"{nests(result)} {sorted(dict(result.attrs))} {result.script()}"

    funcs = product("bias"), product("clipped"), *LEFT.values(), kernels(lower_model())["rms_norm"]
    return [lambda func=func: describe(func) for func in funcs]


# --- 9.4 ------------------------------------------------------------------------------------------

FITS = ["alone", *EPILOGUES, "five blocks"]
OTHER_SUMS = [*FOREIGN, "row sums", "two results", "a bias and then two results"]
LONG_VECTORS = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"})
TWO_SHAPES = (3, 40)  # few rows, which chapter 5 schedules as decode, and many
WHOLE_TENSOR = (
    "Chapter 5 runs one block behind the product on each tile of sums, while these are in the cache. Each further "
    "block makes a pass over the whole result."
)


def judge_scheduled(impl, func: tirx.PrimFunc, title: str, **looks) -> tirx.PrimFunc:
    def transform(one: tirx.PrimFunc) -> tirx.PrimFunc:
        return impl.schedule_product(one, QUICK)

    return judge_kernel(transform, func, "schedule_product", title, **looks)


def is_marked(func: tirx.PrimFunc) -> bool:
    attrs = func.attrs or {}
    return "tirx.is_scheduled" in attrs and bool(int(attrs["tirx.is_scheduled"]))


def test_9_4_fires(impl) -> None:
    """a product alone and with an epilogue of one block or five gets chapter 5's vectors, and says so"""
    for kind, rows in itertools.product(FITS, TWO_SHAPES):
        title = f"the product with the epilogue “{kind}” and {rows} rows of x"

        def check_scheduled(result: tirx.PrimFunc, title=title) -> None:
            what = f"schedule_product does not schedule {title}."
            why = "The fallback then takes this kernel, and computes it element by element."
            vectors = has_loop(result, tirx.ForKind.VECTORIZED)
            SCHEDULE.that(vectors, what, yours=result.script(), why=why)
            what = f"schedule_product does not mark {title} as scheduled."
            why = "Without the attribute tirx.is_scheduled, the next pass schedules the kernel a second time."
            wanted = "attribute tirx.is_scheduled, with the value True"
            SCHEDULE.that(is_marked(result), what, expected=wanted, why=why)

        judge_scheduled(impl, linear(kind, rows), title, fires=check_scheduled)


def test_9_4_one_pass(impl) -> None:
    """an epilogue of five blocks runs on each tile, with no other pass over the result"""
    for kind, rows in itertools.product(("bias", "five blocks"), TWO_SHAPES):
        func = linear(kind, rows)
        own, want = (nests(one.schedule_product(func, QUICK)) for one in (impl, reference))
        what = f"After schedule_product, “{kind}” behind a product of {rows} rows of x leaves {own} loop nests."
        SCHEDULE.that(own <= want, what, expected=f"{want} or fewer", why=WHOLE_TENSOR)


def test_9_4_for_the_target(impl) -> None:
    """the vectors are as long as the target's registers"""
    for rows, target in itertools.product(TWO_SHAPES, (QUICK, LONG_VECTORS)):
        func, what = linear("bias", rows), f"with {rows} rows of x, for the target {target}"
        own, want = (
            vector_lengths(one.schedule_product(func, target)) for one in (impl, reference)
        )
        SCHEDULE.equal(
            own,
            want,
            f"schedule_product uses vectors of other lengths than chapter 5's schedule, {what}.",
            why="The schedule fits its vectors to the registers of `target`.",
        )


def test_9_4_leaves_other_sums(impl) -> None:
    """an epilogue that reads another sum than its own: the function as it was"""
    why = "The last block runs on a tile as soon as the sums of that tile are complete. A sum of another tile may not "
    why += "have been computed yet."
    for kind in OTHER_SUMS:
        title = f"a product with “{kind}” behind it"
        judge_scheduled(impl, linear(kind), title, stays=True, why=why)


def test_9_4_leaves_other_kernels(impl) -> None:
    """no NT_matmul, another block of that name, a block before the product: the function as it was"""
    why = "Chapter 5's schedules know one form of product. Another pass schedules this kernel."
    for title, func in {
        "a product whose block has another name": product("bias"),
        "a kernel without a product": relu_then_sum(),
        "a product with a block before it": linear("a cast before"),
        "a product with a weight of symbolic size": named_like_a_product(symbolic=True),
        "a sum of differences in a block called NT_matmul": named_like_a_product(symbolic=False),
    }.items():
        judge_scheduled(impl, func, title, stays=True, why=why)


def observe_9_4(impl):
    def describe(func: tirx.PrimFunc) -> str:
        result = impl.schedule_product(func, QUICK)
        vectors = has_loop(result, tirx.ForKind.VECTORIZED)
        same = tvm_ffi.structural_equal(result, func)
        return f"{same} {vectors} {nests(result)} {is_marked(result)} {sorted(dict(result.attrs))}"

    kinds = *FITS, *OTHER_SUMS, "a cast before"
    return [
        *(lambda kind=kind: describe(linear(kind)) for kind in kinds),
        lambda: describe(linear("bias", 3)),
        lambda: str(vector_lengths(impl.schedule_product(linear("bias"), LONG_VECTORS))),
        lambda: describe(product("bias")),
        lambda: describe(relu_then_sum()),
        *(lambda one=one: describe(named_like_a_product(symbolic=one)) for one in (True, False)),
    ]


# --- 9.5 ------------------------------------------------------------------------------------------

STEPS = 8
PROMPT = (3, 1, 4, 1, 5)


@functools.cache
def generate_exactly() -> tuple[np.ndarray, np.ndarray]:
    """STEPS greedy tokens and their logits, in float64."""
    return llama_reference.generate(SMALL, random_weights(SMALL), PROMPT, STEPS)


def make_facts() -> dict:
    """Arguments for the pipeline, fresh ones each time."""
    return {"variable_bounds": dict(BOUNDS), "metadata": {"vocab_size": SMALL.vocab_size}}


def run_pipeline(impl, **more) -> tvm.IRModule:
    """A decode step through fusion_pipeline, with no target current around it."""
    made_pass = impl.fusion_pipeline(QUICK, **make_facts(), **more)
    wanted = "a Pass: the function that you have decorated with module_pass"
    why = "relax.build calls the pass on the module."
    HOW.returns(made_pass, Pass, "fusion_pipeline", "a pass", expected=wanted, why=why)
    return apply_pass(made_pass, "fusion_pipeline")


def apply_pass(made_pass: Pass, whose: str) -> tvm.IRModule:
    """A decode step after `made_pass`. An exception is shown without the program, which would not explain it."""
    try:
        return expect.apply(made_pass, make_model(functions=("decode",)), whose)
    except Exception as error:
        if "Target context required" in str(error):
            raise HOW.failed(
                f"A pass inside the one that {whose} returned asks for the current target, and there is none.",
                expected="a pass that makes its target the current one while the others run",
                why="dlight's rules call Target.current(). `with target:` makes a target the current one.",
            ) from None
        error.given = ""
        raise


def test_9_5_is_one_pass(impl) -> None:
    """it is one pass; it needs no current target, and the module given stays as it is"""
    expect.has_function(run_pipeline(impl), "decode", "fusion_pipeline")


def find_threaded(mod: tvm.IRModule) -> list[str]:
    """The names of the kernels that have a GPU's threads."""
    threads = tirx.ForKind.THREAD_BINDING
    return sorted(name for name, func in kernels(mod).items() if has_loop(func, threads))


def test_9_5_takes_the_current_target(impl) -> None:
    """without a target it takes the current one, as `relax_pipeline="fusion_by_hand"` needs it"""
    made_pass = impl.fusion_pipeline(**make_facts())
    with QUICK:
        result = apply_pass(made_pass, "fusion_pipeline()")
    expect.has_function(result, "decode", "fusion_pipeline()")
    what = "The pass of fusion_pipeline(), run for llvm first, makes no kernels with threads of known sizes for CUDA."
    why = "A pass may run more than once. Each run takes the target that is current then, and the same facts."
    wanted = "kernels with threads, of a known vocab_size"
    try:
        with CUDA:
            again = apply_pass(made_pass, "fusion_pipeline()")
    except (tvm.error.InternalError, ValueError) as error:
        yours = last_line(error)[:300]
        raise HOW.failed(what, expected=wanted, yours=yours, why=why) from None
    sized = not any(has_dimension(func, "vocab_size") for func in kernels(again).values())
    HOW.that(bool(find_threaded(again)) and sized, what, expected=wanted, why=why)
    made_pass = impl.fusion_pipeline(QUICK, **make_facts())
    with CUDA:
        found = apply_pass(made_pass, "fusion_pipeline")
    what = (
        "Inside a CUDA target, fusion_pipeline(Target('llvm')) makes kernels with a GPU's threads."
    )
    why = "All passes run inside `target`. The current target counts only if `target` is None."
    HOW.equal(find_threaded(found), [], what, why=why)


def test_9_5_uses_its_arguments(impl) -> None:
    """bounds, metadata and kernels reach the phases"""
    result = run_pipeline(impl, additional_tirs={"halve": halve, "third": third})
    missing = [name for name in ("halve", "third") if name not in kernels(result)]
    what = f"After fusion_pipeline, kernels that were given as additional_tirs are missing: {', '.join(missing)}."
    why = "The caller's facts arrive as `**facts`: bounds, metadata, kernels. Pass all of them on to `phases`."
    ATTACH.that(not missing, what, expected="phases(…, **facts)", why=why)
    found = [name for name, func in kernels(result).items() if has_dimension(func, "vocab_size")]
    what = "After fusion_pipeline with a vocab_size in the metadata, kernels still have a symbolic vocab_size."
    ATTACH.equal(found, [], what, why=EXACT)
    sizes = storage_sizes(result)
    what = (
        "After fusion_pipeline with bounds for all dimensions, a storage still has a symbolic size."
    )
    why = "The bounds did not reach the memory plan. Pass all facts on to `phases`."
    ATTACH.that(sizes and -1 not in sizes, what, expected="numbers only", yours=str(sizes), why=why)


def test_9_5_reaches_the_vm(impl) -> None:
    """all phases ran, so the virtual machine accepts the module"""
    result = run_pipeline(impl)
    ran = {
        "graph and lower": count_launches(result, "decode") <= 14,
        "schedule": not unscheduled(result),
        "memory": count_calls(result, "relax.call_tir") == 0,
        "vm": count_calls(result, "relax.memory.alloc_storage", "relax.memory.alloc_tensor") == 0,
    }
    if not ran["graph and lower"]:
        own, want = (count_launches(lower_by(one), "decode") for one in (impl, reference))
        what = f"Your graph_and_lower, exercise 9.2, leaves {own} kernels; the fault is not in fusion_pipeline."
        wanted = f"{want} or fewer after that phase"
        why = "fusion_pipeline runs your phases, so a mistake in one of them shows here too."
        ORDER.that(own <= want, what, expected=wanted, yours=str(own), why=why)
    missing = ", ".join(name for name, has_run in ran.items() if not has_run)
    what = f"In fusion_pipeline these phases have not run, or not in their order: {missing}."
    why = "`phases` returns them in order, and each needs what the one before it has made."
    wanted = "all passes of all phases, in the order of `phases`"
    HOW.that(not missing, what, expected=wanted, why=why)


def test_9_5_for_a_gpu(impl) -> None:
    """for CUDA every kernel has threads, and the source compiles to text"""
    mod = make_model("float16", ("decode",))
    made_pass = impl.fusion_pipeline(**make_facts())  # tvm.compile makes CUDA the current target
    try:
        executable = tvm.compile(mod, CUDA, relax_pipeline=made_pass)
    except (tvm.error.InternalError, ValueError) as error:
        raise HOW.failed(
            "tvm.compile for CUDA fails with the pass that fusion_pipeline() returns.",
            expected="a pass for the target that is current when it runs, here CUDA",
            yours=last_line(error)[:300],
            why="Without a `target`, the pass learns its target when it runs, and has to schedule the kernels for it.",
        ) from None
    for_the_gpu = executable.mod.imports[0].imports
    source = for_the_gpu[0].inspect_source() if for_the_gpu else ""
    found = source.count("__global__")
    what = f"The CUDA source that fusion_pipeline leads to has {found} kernels."
    why = "A kernel without a schedule has no threads, and is compiled for the CPU instead."
    SCHEDULE.that(found >= 12, what, expected="12 or more, for a decode step of one layer", why=why)


def test_9_5_same_tokens(impl) -> None:
    """the decoder gives the tokens of NumPy in float64, and its logits"""
    tokens, logits = generate_exactly()
    generator = Generator(
        SMALL, target=QUICK, relax_pipeline=impl.fusion_pipeline(QUICK, **make_facts())
    )
    got = generator.generate(PROMPT, STEPS)
    what = "The decoder that fusion_pipeline compiles gives other logits than NumPy in float64."
    why = "A compiler may change how logits are computed, not what they are."
    BREAK.close(got.logits, logits, what, rtol=1e-3, atol=1e-3, why=why)
    what = (
        "The decoder that fusion_pipeline compiles gives other greedy tokens than NumPy in float64."
    )
    BREAK.equal(got.tokens.tolist(), tokens.tolist(), what, why=why)


def observe_9_5(impl):
    def describe(target: Target | None, current: Target | None = None, **arguments) -> str:
        mod = make_model(functions=("decode",))
        given = mod.clone()
        made_pass = impl.fusion_pipeline(target, **arguments)
        with current or contextlib.nullcontext():
            result = made_pass(given)
        same, left = tvm_ffi.structural_equal(given, mod), count_calls(result, "relax.call_tir")
        held = sorted(dict(result["decode"].attrs)), sorted(kernels(result)), storage_sizes(result)
        return f"{same} {left} {unscheduled(result)} {held} {find_threaded(result)}"

    return [
        lambda: describe(QUICK, **make_facts()),
        lambda: describe(QUICK, additional_tirs={"halve": halve}),
        lambda: describe(None, QUICK),
        lambda: describe(None, CUDA, **make_facts()),
        lambda: describe(QUICK, CUDA, **make_facts()),
    ]


# --- 9.6 ------------------------------------------------------------------------------------------

SAYS = {  # what each word claims, so that a learner can look for it
    "same": "“same” means: the moved pass finds all that it looks for, and so does every pass behind it.",
    "slower": "“slower” means: the moved pass, or one behind it, finds less to fuse, and more kernels are launched.",
    "more memory": "“more memory” means: as many kernels are launched, but the plan sees fewer tensors that can share.",
    "fails": "“fails” means an error. A pass that finds nothing reports none; it fails on what it cannot read.",
}
WORDS = tuple(SAYS)


def move_pass(name: str, where: str, anchor: str) -> list[Pass]:
    """The reference's passes with `name` moved before the first or after the last `anchor`."""
    passes = phases()
    taken = next(one for one in passes if one.info.name == name)
    passes = [one for one in passes if not one.same_as(taken)]
    places = [n for n, one in enumerate(passes) if one.info.name == anchor]
    passes.insert(places[0] if where == "before" else places[-1] + 1, taken)
    return passes


def count_cost(passes: Sequence[Pass]) -> tuple[int, int] | None:
    """(launches, bytes allocated) of a decode step; None if it does not compile."""
    planning = ("CallTIRRewrite", "StaticPlanBlockMemory")
    planned = max(n for n, one in enumerate(passes) if one.info.name in planning) + 1
    try:
        middle = run_passes(passes[:planned], make_model("float32", ("decode",)))
        rest = run_passes(passes[planned:], middle)
    except (tvm.s_tir.ScheduleError, tvm.error.InternalError):
        return None
    return count_launches(rest, "decode"), read_plan(middle).bytes(BOUNDS)


@functools.cache
def cost_in_order() -> tuple[int, int] | None:
    return count_cost(phases())


@functools.cache
def find_truth(change: str) -> str:
    """What the compiler says about moving a pass."""
    before, after = cost_in_order(), count_cost(move_pass(*change.split()))
    if after is None:
        return "fails"
    if after[0] > before[0]:
        return "slower"
    return "more memory" if after[1] > before[1] else "same"


def test_9_6_one_word_each(impl) -> None:
    """one of the four words for each change"""
    said = impl.consequences()
    what = "The keys that consequences returns are not the six moves of the docstring."
    expect.has_keys(said, reference.consequences(), what)
    what = f"consequences uses words other than {', '.join(map(repr, WORDS))}."
    why = "Each of the four words says what happens to launches, bytes, or the compilation."
    ORDER.equal(sorted(set(said.values()) - set(WORDS)), [], what, why=why)


def test_9_6_agrees_with_the_compiler(impl) -> None:
    """compiled with that one pass moved, the decoder does what you say"""
    for change, word in impl.consequences().items():
        what = f"“{change}” does not have the consequence that you give, when it is compiled."
        others = [repr(one) for one in WORDS if one != word]
        wanted = f"{', '.join(others[:-1])} or {others[-1]}"
        ORDER.that(
            word == find_truth(change), what, expected=wanted, yours=repr(word), why=SAYS[word]
        )


def observe_9_6(impl):
    def answers(part: slice) -> str:
        said = impl.consequences()
        return str([said.get(key) for key in list(reference.consequences())[part]])

    return [lambda: answers(slice(0, 3)), lambda: answers(slice(3, 6))]


# --- 9.7 -----------------------------------------------------------------------------------------

TWO_WORDS = replace(SMALL, vocab_size=2)


@functools.cache
def draw_gloomy(scale: float) -> dict[str, np.ndarray]:
    """Weights of a decoder with two words: one's logit is half the other's, so both may be negative."""
    weights = random_weights(TWO_WORDS)
    first = weights["lm_head.weight"][0] * scale
    return {**weights, "lm_head.weight": np.stack([first, first / 2])}


def generate(
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
def make_unspoiled() -> Generator:
    return Generator(SMALL, target=QUICK)


@functools.lru_cache(maxsize=2)  # for an answer: all checks of 9.7 run the same
def make_spoiled(impl) -> Generator:
    """The decoder after slips_through."""
    mod = decoder(SMALL, "float32", Generator.SINGLE)[0]
    changed = expect.apply(impl.slips_through, mod, "slips_through")
    return Generator(SMALL, target=QUICK, module=changed)


def test_9_7_same_tokens(impl) -> None:
    """the greedy tokens stay what they were"""
    what = "After slips_through, the greedy tokens are others, so a test that compares tokens finds your pass."
    why = "The greedy token is the position of the largest logit, which has to stay the same."
    found, right = (generate(one, PROMPT)[0] for one in (make_spoiled(impl), make_unspoiled()))
    BREAK.equal(found.tolist(), right.tolist(), what, why=why)


def test_9_7_any_logits(impl) -> None:
    """the greedy tokens stay also where all logits are negative, far from zero, or near it"""
    for scale in (1, 1e33, 1e-30):
        other = [token % 2 for token in PROMPT], TWO_WORDS, draw_gloomy(scale)
        tokens, logits = generate(make_unspoiled(), *other)
        BREAK.equal(
            generate(make_spoiled(impl), *other)[0].tolist(),
            tokens.tolist(),
            "After slips_through, the greedy tokens of a second decoder are others. It has two words, and its logits "
            f"are from {logits.min():.3g} to {logits.max():.3g}.",
            why="The exercise asks for the same tokens with any weights. So your change has to keep the order of any "
            "two numbers, negative, large and small ones too, and they must still differ in float32.",
        )


def test_9_7_wrong_logits(impl) -> None:
    """logits are wrong by more than a tenth of the largest"""
    logits, right = (generate(one, PROMPT)[1] for one in (make_spoiled(impl), make_unspoiled()))
    error = np.abs(logits - right).max() / np.abs(right).max()
    what = "After slips_through, the logits are right or nearly right."
    wanted = "some logit wrong by more than 0.1 of the largest"
    why = (
        "The point is a pass that is clearly wrong, and that a comparison of tokens still accepts."
    )
    BREAK.that(bool(error > 0.1), what, expected=wanted, yours=f"{error:.3g}", why=why)


def observe_9_7(impl):
    def describe(part: str) -> str:
        mod = decoder(SMALL, "float32", ["decode", "prefill"])[0]
        given = mod.clone()
        result = impl.slips_through(given)
        return f"{tvm_ffi.structural_equal(given, mod)} {result[part].script()}"

    return [lambda: describe("decode"), lambda: describe("prefill")]
