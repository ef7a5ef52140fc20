"""The checks of chapter 9: each phase of the pipeline, the pipeline, and what its order is worth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx
from tvm.ir.transform import Pass
from tvm.s_tir import SBlock
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.target import Target

from chapters.toolkit.decoder import llama_reference
from chapters.toolkit.decoder.llama import decoder
from chapters.toolkit.decoder.llama_config import LlamaConfig
from chapters.toolkit.decoder.llama_generator import Generator, random_weights
from chapters.toolkit.ir.tensor_ir import nodes
from chapters.toolkit.pipeline.gemv_within_bounds import has_whole_blocks
from chapters.toolkit.pipeline.planned_storage import lower, read_plan
from chapters.toolkit.pipeline.reduction_once import repeats_a_reduction
from solutions.ch09_the_compiler import pipeline as reference
from tests.harness import expect
from tests.harness.failure import CheckFailed
from tests.harness.loading import last_line

LESSON = "chapters/ch09_the_compiler/lesson.md"
ATTACH = f"{LESSON}, “Attach”"
ORDER = f"{LESSON}, “Graph, then lower”"
SCHEDULE = f"{LESSON}, “Schedule”"
MEMORY = f"{LESSON}, “Memory, then VM”"
NOT = f"{LESSON}, “When it must not fire”"
BREAK = f"{LESSON}, “Break it”"
MEASURE = f"{LESSON}, “Measure it”"

LIMITS = {"test_9_7_same_tokens": 60, "test_9_8_agrees_with_the_compiler": 60}

LLVM = Target({"kind": "llvm", "opt-level": 0})  # checked for what it computes, not for its speed
CUDA = Target(
    {
        "kind": "cuda",
        "arch": "sm_90a",
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
    }
)
SMALL = LlamaConfig(64, 96, 1, 4, 2, 16, 72, 80)
BOUNDS = {"seq_len": 80, "context_window": 80}


@functools.cache
def model(dtype: str = "float32", functions: tuple[str, ...] = ("prefill", "decode")):
    """A decoder of one small layer, as it is exported."""
    return decoder(SMALL, dtype, functions)[0]


def through(passes: Sequence[Pass], mod: tvm.IRModule, target: Target = LLVM) -> tvm.IRModule:
    """A copy of `mod` after `passes`, inside `target`."""
    with target:
        return tvm.transform.Sequential(list(passes))(mod.clone())


@functools.cache
def lowered(dtype: str = "float32", kind: str = "llvm") -> tvm.IRModule:
    """The decoder before the schedule phase, by the reference."""
    target = LLVM if kind == "llvm" else CUDA
    phases = reference.phases(target, variable_bounds=BOUNDS, metadata={"vocab_size": 72})
    return through([*phases["attach"], *phases["graph and lower"]], model(dtype), target)


@functools.cache
def scheduled() -> tvm.IRModule:
    """The decoder before the memory phase, by the reference, for llvm."""
    return through(reference.schedule_phase(LLVM, BOUNDS), lowered())


def names(passes: object, whose: str) -> list[str]:
    """The names of a list of passes, or what is wrong with it."""
    is_list = isinstance(passes, list) and all(isinstance(one, Pass) for one in passes)
    given = (
        [getattr(one, "__name__", type(one).__name__) for one in passes]
        if isinstance(passes, list)
        else passes
    )
    expect.that(
        is_list,
        f"{whose} did not return a list of passes.",
        expected="[Pass(…), …], each one made by calling its class",
        yours=repr(given)[:300],
    )
    return [one.info.name for one in passes]


def kernels(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """The PrimFuncs of `mod` by name."""
    return {
        gvar.name_hint: func
        for gvar, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def launches(mod: tvm.IRModule, name: str) -> int:
    """How many calls of kernels the Relax function `name` holds, in any form; computing shapes is not one."""
    found = 0

    def visit(expr) -> None:
        nonlocal found
        if isinstance(expr, relax.Call):
            operands = (expr.op, *expr.args)
            callees = [e for e in operands if isinstance(e, tvm.ir.GlobalVar)]
            kernel = bool(callees) and isinstance(mod[callees[0]], tirx.PrimFunc)
            found += kernel and not callees[0].name_hint.startswith("shape_func")

    relax.analysis.post_order_visit(mod[name].body, visit)
    return found


# --- 9.1 ------------------------------------------------------------------------------------------


@I.ir_module
class Sizes:
    """One symbol in several places, functions without it, a kernel, a private function."""

    @T.prim_func
    def kernel(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
        for i in range(4):
            y[i] = x[i]

    @R.function
    def head(x: R.Tensor(("n", 8), "float32"), w: R.Tensor(("vocab_size", 8), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            out = R.matmul(x, R.permute_dims(w))
            R.output(out)
        return out

    @R.function(private=True)
    def score(x: R.Tensor(("n", "vocab_size"), "float32")):
        with R.dataflow():
            out = R.nn.softmax(x)
            R.output(out)
        return out

    @R.function
    def plain(x: R.Tensor(("n", 8), "float32")):
        with R.dataflow():
            out = R.nn.relu(x)
            R.output(out)
        return out


@I.ir_module
class Between:
    """The symbol appears in no parameter."""

    @R.function
    def found(x: R.Tensor("float32", ndim=1)):
        vocab_size = T.int64()
        y = R.match_cast(x, R.Tensor((vocab_size,), "float32"))
        return R.nn.relu(y)


def symbols(mod: tvm.IRModule) -> dict[str, list[str]]:
    """The names of the symbolic dimensions of each Relax function."""
    return {
        gvar.name_hint: sorted(
            {
                *(v.name for v in relax.analysis.defined_symbolic_vars(func)),
                *(v.name for v in relax.analysis.free_symbolic_vars(func)),
            }
        )
        for gvar, func in mod.functions_items()
        if isinstance(func, relax.Function)
    }


EXACT = "A bound says at most; a kernel of constant size can only be made from an exact value."


def test_9_1_binds_where_it_is(impl) -> None:
    """every function that has the dimension gets the number, private ones too"""
    for mod in (Sizes, Between):
        expected = {
            name: [s for s in all_ if s != "vocab_size"] for name, all_ in symbols(mod).items()
        }
        result = expect.apply(impl.BindKnownSizes({"vocab_size": 500}), mod, "BindKnownSizes")
        expect.equal(
            symbols(result),
            expected,
            "The symbolic dimensions that are left are not those without a known size.",
            why=EXACT,
            read=ATTACH,
        )


def test_9_1_the_number(impl) -> None:
    """the number stands in the types, of the result too"""
    result = expect.apply(impl.BindKnownSizes({"vocab_size": 500}), Sizes, "BindKnownSizes")
    shape = [int(d) if isinstance(d, tirx.IntImm) else str(d) for d in result["head"].ret_ty.shape]
    expect.equal(shape, ["n", 500], "The result of `head` has another shape.", read=ATTACH)


def test_9_1_leaves_the_rest(impl) -> None:
    """functions without the dimension and PrimFuncs stay the same objects; attributes stay"""
    result = expect.apply(
        impl.BindKnownSizes({"vocab_size": 500, "nowhere": 3}), Sizes, "BindKnownSizes"
    )
    for name in ("plain", "kernel"):
        expect.that(
            tvm_ffi.structural_equal(result[name], Sizes[name], map_free_vars=True),
            f"BindKnownSizes changed `{name}`, which has no dimension to bind.",
            read=ATTACH,
        )
    expect.equal(
        result["head"].attrs["num_input"], 1, "BindKnownSizes lost an attribute of `head`."
    )
    expect.equal(
        sorted(g.name_hint for g in result.get_global_vars()),
        sorted(g.name_hint for g in Sizes.get_global_vars()),
        "BindKnownSizes added or removed functions.",
    )


def test_9_1_nothing_known(impl) -> None:
    """without sizes, and with sizes that no function has, nothing changes"""
    for sizes in ({}, {"nowhere": 3}):
        result = expect.apply(impl.BindKnownSizes(sizes), Sizes, "BindKnownSizes")
        expect.same_ir(
            result, Sizes, "BindKnownSizes changed a module that has nothing to bind.", why=EXACT
        )


def test_9_1_twice(impl) -> None:
    """run again it changes nothing"""
    once = impl.BindKnownSizes({"vocab_size": 500})(Sizes.clone())
    expect.runs_twice_the_same(impl.BindKnownSizes({"vocab_size": 500}), once, "BindKnownSizes")


def observe_9_1(impl):
    def look(mod: tvm.IRModule, sizes: dict) -> str:
        given = mod.clone()
        result = impl.BindKnownSizes(sizes)(given)
        unchanged = tvm_ffi.structural_equal(given, mod)
        return f"{symbols(result)} {sorted(kernels(result))} {unchanged}"

    return [
        lambda: look(Sizes, {"vocab_size": 500}),
        lambda: look(Sizes, {"n": 3, "vocab_size": 500}),
        lambda: look(Sizes, {"nowhere": 3}),
        lambda: look(Between, {"vocab_size": 500}),
    ]


# --- 9.2 ------------------------------------------------------------------------------------------

BLACKWELL = Target({"kind": "cuda", "arch": "sm_100a"})


@I.ir_module
class Serving:
    """Entry points, and a call of a kernel that needs padding."""

    @R.function
    def decode(
        x: R.Tensor(("batch_size", 8), "float32"), w: R.Tensor(("vocab_size", 8), "float32")
    ):
        with R.dataflow():
            y = R.call_dps_packed(
                "cutlass.groupwise_scaled_gemm_e4m3fn_e4m3fn",
                (x,),
                out_ty=R.Tensor((16, 8), "float32"),
            )
            out = R.matmul(y, R.permute_dims(w))
            R.output(out)
        return out

    @R.function
    def embed(x: R.Tensor(("batch_size", 8), "float32")):
        with R.dataflow():
            out = R.nn.relu(x)
            R.output(out)
        return out


@T.prim_func(s_tir=True)
def halve(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in range(4):
        with T.sblock("halve"):
            vi = T.axis.spatial(4, i)
            y[vi] = x[vi] * T.float32(0.5)


@T.prim_func
def third(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in range(4):
        y[i] = x[i] * T.float32(0.333)


def attach(impl, metadata: dict, stages: int = 2) -> tvm.IRModule:
    """Serving after attach_phase."""
    passes = impl.attach_phase(
        BLACKWELL,
        {"batch_size": 16},
        {"decode": ["batch_size"]},
        stages,
        {"halve": halve},
        metadata,
    )
    names(passes, "attach_phase")
    return expect.apply(lambda mod: through(passes, mod, BLACKWELL), Serving, "attach_phase")


def attached(mod: tvm.IRModule, name: str) -> dict[str, str]:
    """The attributes of a Relax function, as text."""
    return {key: str(value) for key, value in sorted(dict(mod[name].attrs or {}).items())}


def test_9_2_every_fact_arrives(impl) -> None:
    """bounds, hints, stages, the kernel and the planner's attribute stand in the module"""
    result = attach(impl, {})
    decode = attached(result, "decode")
    for key, value, what in (
        ("tir_var_upper_bound", "16", "the bounds"),
        ("relax.rewrite_cuda_graph.capture_symbolic_vars", "batch_size", "the capture hints"),
        ("pipeline_parallel_stages", "2", "the number of stages"),
        ("relax.memory_plan_dynamic_func_output", "True", "the planner's attribute"),
    ):
        expect.that(
            value in decode.get(key, ""),
            f"After attach_phase `decode` lacks {what}.",
            expected=f"attribute {key} with {value}",
            yours="\n".join(f"{k}: {v}" for k, v in decode.items()),
            why="A pass downstream asks for it; where it is missing, memory or launches are lost, without an error.",
            read=ATTACH,
        )
    expect.has_function(result, "halve", "attach_phase")


def test_9_2_padding_reaches_the_caller(impl) -> None:
    """the padding factor is written into the caller's own dict"""
    metadata = {"model": "llama"}
    attach(impl, metadata)
    expect.equal(
        metadata.get("seqlen_padding_factor"),
        4,
        "The caller's metadata has no seqlen_padding_factor.",
        why="The dict is that pass's output: a runtime reads it when the module is long compiled.",
        read=ATTACH,
    )


def test_9_2_vocabulary(impl) -> None:
    """a vocabulary that the metadata names is bound; without it the dimension stays"""
    for metadata, left in (({"vocab_size": 500}, []), ({}, ["vocab_size"])):
        found = symbols(attach(impl, dict(metadata)))["decode"]
        expect.equal(
            [name for name in found if name == "vocab_size"],
            left,
            f"With metadata {metadata} the vocabulary of `decode` is "
            + ("still symbolic." if metadata else "bound."),
            why="It is the number of rows of the largest weight, and chapter 3's schedules want a number.",
            read=ATTACH,
        )


def test_9_2_bounds_are_not_sizes(impl) -> None:
    """a dimension that is bounded stays symbolic, also where the metadata speaks of it"""
    found = symbols(attach(impl, {"vocab_size": 500, "batch_size": 16}))["decode"]
    expect.equal(
        found,
        ["batch_size"],
        "The symbolic dimensions of `decode` are not those that only have a bound.",
        why=EXACT,
        read=ATTACH,
    )


def observe_9_2(impl):
    def look(metadata: dict, stages: int) -> str:
        passes = impl.attach_phase(
            BLACKWELL,
            {"batch_size": 16},
            {"decode": ["batch_size"]},
            stages,
            {"halve": halve},
            metadata,
        )
        result = through(passes, Serving, BLACKWELL)
        facts = {name: attached(result, name) for name in ("decode", "embed")}
        return f"{facts} {symbols(result)} {sorted(kernels(result))} {metadata}"

    return [
        lambda: look({}, 1),
        lambda: look({"vocab_size": 500}, 3),
        lambda: look({"batch_size": 16}, 1),
    ]


# --- 9.3 ------------------------------------------------------------------------------------------


@functools.cache
def attached_model() -> tvm.IRModule:
    phases = reference.phases(LLVM, variable_bounds=BOUNDS, metadata={"vocab_size": 72})
    return through(phases["attach"], model())


def lower_by(impl, mod: tvm.IRModule | None = None) -> tvm.IRModule:
    """The small decoder after graph_and_lower."""
    passes = impl.graph_and_lower(LLVM)
    names(passes, "graph_and_lower")
    mod = attached_model() if mod is None else mod
    return expect.apply(lambda given: through(passes, given), mod, "graph_and_lower")


def operators(mod: tvm.IRModule, name: str) -> list[str]:
    """The Relax operators that `name` still calls, without the calls of kernels."""
    found: set[str] = set()

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            found.add(expr.op.name)

    relax.analysis.post_order_visit(mod[name].body, visit)
    return sorted(found - {"relax.call_tir", "relax.call_tir_inplace"})


def test_9_3_everything_is_a_kernel(impl) -> None:
    """no operator is left, and no function that nothing calls"""
    result = lower_by(impl)
    expect.equal(operators(result, "decode"), [], "`decode` still calls operators.", read=ORDER)
    used = {
        gvar.name_hint
        for _, func in result.functions_items()
        if isinstance(func, relax.Function)
        for gvar in relax.analysis.all_global_vars(func)
    }
    left = sorted(set(kernels(result)) - used)
    left += [
        gvar.name_hint
        for gvar, func in result.functions_items()
        if isinstance(func, relax.Function) and "Primitive" in (func.attrs or {})
    ]
    expect.equal(
        left,
        [],
        "Functions are left that nothing calls.",
        why="They would be scheduled and compiled all the same.",
        read=ORDER,
    )


def test_9_3_no_transpose(impl) -> None:
    """no kernel transposes a weight"""
    result = lower_by(impl)
    expect.equal(
        sorted(name for name in kernels(result) if "transpose" in name),
        [],
        "Weights are still transposed, at every step.",
        why="FuseTransposeMatmul looks for permute_dims and matmul. After LegalizeOps these are calls of kernels, and "
        "a pass that finds nothing says nothing.",
        read=ORDER,
    )


def test_9_3_sums_and_norms(impl) -> None:
    """every residual sum is part of its norm's kernel"""
    result = lower_by(impl)
    alone = sorted(n for n in kernels(result) if "add" in n and "add_norm" not in n)
    expect.equal(
        alone,
        [],
        "A residual sum is a kernel of its own.",
        why="FuseAddRMSNorm found nothing.",
        read=ORDER,
    )


def test_9_3_launches(impl) -> None:
    """elementwise operators have become one kernel: as few launches as the reference"""
    want = launches(lower_by(reference), "decode")
    result = launches(lower_by(impl), "decode")
    expect.that(
        result <= want,
        f"A decode step of one layer launches {result} kernels.",
        expected=f"{want} or fewer",
        why="FuseOps joins what AnnotateTIROpPattern has described; FuseTIR makes one kernel of what it joined.",
        read=ORDER,
    )


def test_9_3_same_numbers(impl) -> None:
    """the lowered decoder computes what the exported one does"""
    mod = lower_by(impl)
    expected, got = (logits_of(one) for one in (attached_model(), mod))
    expect.close(
        got, expected, "The logits of a prefill are others.", rtol=1e-4, atol=1e-4, read=ORDER
    )


def logits_of(mod: tvm.IRModule) -> np.ndarray:
    """Logits of a prefill of three tokens, on random weights."""
    weights = random_weights(SMALL)
    parameters = decoder(SMALL, "float32", ["prefill"])[1]
    random = np.random.default_rng(0)
    vm = relax.VirtualMachine(tvm.compile(mod, LLVM), tvm.cpu())
    x = random.standard_normal((1, 3, SMALL.hidden_size), dtype="float32")
    cache = np.zeros((1, 2, 1, 8, SMALL.num_key_value_heads, SMALL.head_dim), "float32")
    arguments = [tvm.runtime.tensor(a) for a in (x, np.zeros(1, "int32"), cache)]
    packed = [tvm.runtime.tensor(weights[name]) for name, _, _ in parameters]
    return vm["prefill"](*arguments, packed)[0].numpy()


def observe_9_3(impl):
    def look(name: str) -> str:
        result = through(impl.graph_and_lower(LLVM), attached_model())
        kinds = [type(f).__name__ for f in result.functions.values()]
        return f"{launches(result, name)} {sorted(kernels(result))} {len(kinds)} {operators(result, name)}"

    return [lambda: look("decode"), lambda: look("prefill")]


# --- 9.4 ------------------------------------------------------------------------------------------


def made(*tensors: te.Tensor, **attrs: object) -> tirx.PrimFunc:
    """A PrimFunc with attributes of its own."""
    return te.create_prim_func(list(tensors)).with_attrs({"op_pattern": 4, **attrs})


def product(kind: str) -> tirx.PrimFunc:
    """x times w transposed, (4, 6) and (5, 6), followed by `kind`."""
    x, w = te.placeholder((4, 6), name="x"), te.placeholder((5, 6), name="w")
    bias, gate = te.placeholder((5,), name="bias"), te.placeholder((4, 5), name="gate")
    k = te.reduce_axis((0, 6), name="k")
    total = te.compute((4, 5), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="total")
    if kind == "bias":
        out = te.compute((4, 5), lambda i, j: total[i, j] + bias[j], name="out")
        return made(x, w, bias, out)
    if kind == "clipped":
        out = te.compute((4, 5), lambda i, j: te.max(total[i, j], gate[i, j]), name="out")
        return made(x, w, gate, out)
    if kind == "gate and relu":  # three blocks
        mid = te.compute((4, 5), lambda i, j: total[i, j] * gate[i, j], name="mid")
        out = te.compute((4, 5), lambda i, j: tirx.max(mid[i, j], 0.0), name="out")
        return made(x, w, gate, out)
    if kind == "row sums":  # two reductions
        j = te.reduce_axis((0, 5), name="j")
        out = te.compute((4,), lambda i: te.sum(total[i, j], axis=j), name="out")
        return made(x, w, out)
    if kind == "shifted":  # reads another element: chapter 7 refuses
        out = te.compute((4, 4), lambda i, j: total[i, j + 1] + bias[j], name="out")
        return made(x, w, bias, out)
    if kind == "alone":
        return made(x, w, total)
    raise KeyError(kind)


def relu_then_sum() -> tirx.PrimFunc:
    """An elementwise block, then a reduction: there is no epilogue."""
    x = te.placeholder((4, 6), name="x")
    k = te.reduce_axis((0, 6), name="k")
    y = te.compute((4, 6), lambda i, j: tirx.max(x[i, j], 0.0), name="y")
    return made(x, te.compute((4,), lambda i: te.sum(y[i, k], axis=k), name="out"))


def nests(func: tirx.PrimFunc) -> int:
    """How many loop nests stand side by side in `func`."""
    body = func.body.block.body
    return len(body.seq) if isinstance(body, tirx.SeqStmt) else 1


def run_kernel(func: tirx.PrimFunc) -> np.ndarray:
    """The last buffer after running `func` on random numbers, compiled for llvm."""
    random = np.random.default_rng(1)
    call = tvm.compile(func.with_attr("global_symbol", "main"), target=LLVM)["main"]
    arrays = [
        random.standard_normal([int(d) for d in p.shape]).astype(str(p.dtype)) for p in func.params
    ]
    arrays[-1][...] = np.nan
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    call(*tensors)
    return tensors[-1].numpy()


def fuse_one(impl, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """What fuse_its_epilogue makes of `func`."""
    try:
        result = impl.fuse_its_epilogue(func)
    except s_tir.ScheduleError as error:
        raise CheckFailed(
            "A refusal of chapter 7 comes out of fuse_its_epilogue as an exception.",
            expected="the function that was given",
            yours=last_line(error)[:300],
            why="A refusal says that this kernel is right as it is. It must not end the compilation of all others.",
            read=NOT,
        ) from None
    expect.that(
        isinstance(result, tirx.PrimFunc),
        f"fuse_its_epilogue returned {type(result).__name__}, not a PrimFunc.",
        expected="the fused PrimFunc, or the given one",
    )
    return result


FIRES = "Chapter 7 has three ways; an addition goes into the init, anything else is applied after the last step."


def test_9_4_fires(impl) -> None:
    """a sum with a bias, and one with a maximum, become one nest"""
    for kind in ("bias", "clipped"):
        result = fuse_one(impl, product(kind))
        expect.equal(
            nests(result),
            1,
            f"The product with epilogue “{kind}” is not one nest.",
            why=FIRES,
            read=SCHEDULE,
        )


def test_9_4_fires_on_the_scores(impl) -> None:
    """the decoder's attention scores, of symbolic size, become one nest"""
    scores = kernels(lowered())["attention_scores"]
    expect.equal(
        nests(fuse_one(impl, scores)),
        1,
        "attention_scores is not one nest.",
        why=FIRES,
        read=SCHEDULE,
    )


LEFT = {
    "gate and relu": "A kernel of three blocks was changed.",
    "row sums": "A reduction of a reduction was changed.",
    "shifted": "What chapter 7 refuses was changed.",
    "alone": "A reduction without an epilogue was changed.",
}


def test_9_4_leaves_the_rest(impl) -> None:
    """three blocks, two reductions, a refusal, no epilogue at all: the function as it was"""
    cases = {**{kind: product(kind) for kind in LEFT}, "relu first": relu_then_sum()}
    for kind, func in cases.items():
        result = fuse_one(impl, func)
        expect.that(
            tvm_ffi.structural_equal(result, func),
            LEFT.get(kind, "An elementwise block before a reduction was changed."),
            expected="the function that was given",
            yours=result.script(),
            why="A kernel of more blocks has a schedule that wants them all; one that is refused is right as it is.",
            read=NOT,
        )


def test_9_4_attributes(impl) -> None:
    """the function's attributes stay"""
    func = product("bias").with_attr("mine", 7)
    left = dict(fuse_one(impl, func).attrs)
    missing = sorted(set(dict(func.attrs)) - set(left))
    expect.equal(missing, [], "Attributes of the function are gone.", read=SCHEDULE)


def test_9_4_same_numbers(impl) -> None:
    """the fused kernels compute what the others do"""
    for kind in ("bias", "clipped"):
        func = product(kind)
        expect.close(
            run_kernel(fuse_one(impl, func)),
            run_kernel(func),
            f"The product with epilogue “{kind}” gives other numbers.",
            read=SCHEDULE,
        )


def test_9_4_twice(impl) -> None:
    """a fused function is left alone"""
    once = fuse_one(impl, product("bias"))
    expect.that(
        tvm_ffi.structural_equal(fuse_one(impl, once), once),
        "fuse_its_epilogue changed its own result.",
        read=SCHEDULE,
    )


def observe_9_4(impl):
    def look(func: tirx.PrimFunc) -> str:
        result = impl.fuse_its_epilogue(func)
        return f"{nests(result)} {sorted(dict(result.attrs))} {result.script()}"

    kinds = ("bias", "clipped", "gate and relu", "row sums", "shifted", "alone")
    return [
        *(lambda kind=kind: look(product(kind)) for kind in kinds),
        lambda: look(relu_then_sum()),
        lambda: look(kernels(lowered())["rms_norm"]),
    ]


# --- 9.5 ------------------------------------------------------------------------------------------


def schedule_by(
    impl, mod: tvm.IRModule, target: Target, bounds: dict | None = None
) -> tvm.IRModule:
    """`mod` after schedule_phase; a failing pass is a failed check."""
    passes = impl.schedule_phase(target, BOUNDS if bounds is None else bounds)
    names(passes, "schedule_phase")
    try:
        return through(passes, mod, target)
    except (tvm.s_tir.ScheduleError, tvm.error.InternalError, ValueError) as error:
        line = next((x for x in str(error).splitlines() if "rror" in x), str(error)[:200])
        raise CheckFailed(
            f"The schedule phase for {target.kind.name} fails on the decoder: {line.strip()}",
            expected="each rule finds the kernels as it knows them",
            why="dlight's rules look at a kernel's blocks. One that was rewritten before is no longer what they know: "
            "some decline, some fail.",
            read=SCHEDULE,
        ) from None


def test_9_5_nothing_left(impl) -> None:
    """every kernel is scheduled, for a CPU and for a GPU"""
    for mod, target in ((lowered(), LLVM), (lowered("float16", "cuda"), CUDA)):
        result = kernels(schedule_by(impl, mod, target))
        left = sorted(n for n, f in result.items() if "tirx.is_scheduled" not in (f.attrs or {}))
        expect.equal(
            left,
            [],
            f"Kernels are left without a schedule for {target.kind.name}.",
            why="On a GPU a kernel without threads does not compile at all.",
            read=SCHEDULE,
        )


def test_9_5_products_first(impl) -> None:
    """on a CPU the products have chapter 3's schedule, with vectors"""
    result = schedule_by(impl, lowered(), LLVM)
    plain = [n for n, f in kernels(result).items() if n.startswith("NT_matmul") and not vectors(f)]
    expect.equal(
        plain,
        [],
        "Products with a transposed weight are computed element by element.",
        why="A schedule leaves alone what is scheduled: whoever comes first, wins. So what knows most comes first.",
        read=SCHEDULE,
    )


def vectors(func: tirx.PrimFunc) -> bool:
    """Whether `func` has a vectorized loop."""
    return any(loop.kind == tirx.ForKind.VECTORIZED for loop in nodes(func.body, tirx.For))


def test_9_5_epilogues(impl) -> None:
    """on a CPU the attention scores are one nest"""
    result = kernels(schedule_by(impl, lowered(), LLVM))
    expect.equal(
        nests(result["attention_scores"]),
        1,
        "The attention scores are still two nests.",
        why="What a schedule has claimed, the epilogue's pass leaves alone.",
        read=SCHEDULE,
    )


def test_9_5_who_knows_most(impl) -> None:
    """each kernel has the schedule of the rule that knows most of it, on a CPU and on a GPU"""
    for mod, target in ((lowered(), LLVM), (lowered("float16", "cuda"), CUDA)):
        yours = kernels(schedule_by(impl, mod, target))
        best = kernels(through(reference.schedule_phase(target, BOUNDS), mod, target))
        others = sorted(
            name
            for name, func in best.items()
            if not tvm_ffi.structural_equal(yours[name].body, func.body, map_free_vars=True)
        )
        expect.equal(
            others,
            [],
            f"For {target.kind.name} a rule that knows less came first: {', '.join(others)}.",
            why="What is marked as scheduled stays so. First come the schedules that know a kernel whole, products "
            "before sums; then epilogues are fused in what is left, then sums on a CPU, and a fallback takes the rest.",
            read=SCHEDULE,
        )


def test_9_5_any_gpu(impl) -> None:
    """every target that is not a CPU gets a GPU's passes"""
    wanted = names(impl.schedule_phase(CUDA, BOUNDS), "schedule_phase")
    for kind in ("metal", "vulkan"):
        expect.equal(
            names(impl.schedule_phase(Target(kind), BOUNDS), "schedule_phase"),
            wanted,
            f"The passes for {kind} are not those for cuda.",
            why="dlight's rules for a GPU serve all kinds of them.",
            read=SCHEDULE,
        )


def test_9_5_small_kernels(impl) -> None:
    """on a CPU kernels that are small within the bounds run on one thread, others on all"""
    for bounds, threads in ((BOUNDS, False), ({}, True)):
        result = kernels(schedule_by(impl, lowered(), LLVM, bounds))
        found = any(
            loop.kind == tirx.ForKind.PARALLEL
            for loop in nodes(result["attention_scores1"].body, tirx.For)
        )
        expect.equal(
            found,
            threads,
            f"With bounds {bounds} the scores of a decode step "
            + ("wake threads." if found else "run on one thread."),
            why="Waking a thread takes microseconds; a kernel of a few thousand steps is done before. Without a bound "
            "nobody knows that it is small.",
            read=SCHEDULE,
        )


def test_9_5_within_bounds(impl) -> None:
    """on a GPU no block of threads is half outside the result it writes"""
    result = kernels(schedule_by(impl, lowered("float16", "cuda"), CUDA))
    outside = [
        n
        for n, f in result.items()
        if n.startswith("NT_matmul") and shuffles(f) and not has_whole_blocks(f)
    ]
    expect.equal(
        outside,
        [],
        "A product of 72 rows is computed 16 rows at a time, and the last block stores all 16.",
        why="dlight's GEMV in this release guards the sums and not the store: eight zeros are written beyond the end.",
        read=NOT,
    )


def test_9_5_each_sum_once(impl) -> None:
    """on a CPU no norm or softmax is computed again for each of its elements"""
    result = kernels(schedule_by(impl, lowered(), LLVM))
    again = sorted(n for n, f in result.items() if repeats_a_reduction(f))
    expect.equal(
        again,
        [],
        "Kernels add up the same row again and again: " + ", ".join(again) + ".",
        why="Where there is one row, dlight's CPU rule of this release takes its elements for rows, and computes the "
        "whole sum of squares for each. The numbers are right; the time is not.",
        read=NOT,
    )


def shuffles(func: tirx.PrimFunc) -> bool:
    """Whether a reduction axis of `func` is bound to threads: several threads add up one element."""
    loops = {
        loop.loop_var: str(loop.thread_binding.thread_tag)
        for loop in nodes(func.body, tirx.For)
        if loop.thread_binding is not None
    }
    for realize in nodes(func.body, tvm.s_tir.SBlockRealize):
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            summed = axis.iter_type == tirx.IterVar.CommReduce
            if summed and any(
                tag.startswith("thread") and _uses(value, v) for v, tag in loops.items()
            ):
                return True
    return False


def _uses(value, var) -> bool:
    return any(found.same_as(var) for found in nodes(value, tvm.ir.Var))


def observe_9_5(impl):
    def look(mod: tvm.IRModule, target: Target, bounds: dict) -> str:
        result = kernels(through(impl.schedule_phase(target, bounds), mod, target))
        facts = {}
        for name, func in sorted(result.items()):
            kinds = [(int(loop.kind), str(loop.extent)) for loop in nodes(func.body, tirx.For)]
            blocks = len(nodes(func.body, SBlock))
            scheduled = "tirx.is_scheduled" in (func.attrs or {})
            facts[name] = (scheduled, kinds, blocks, repeats_a_reduction(func))
        return str(facts)

    return [
        lambda: look(lowered(), LLVM, BOUNDS),
        lambda: look(lowered(), LLVM, {}),
        lambda: look(lowered("float16", "cuda"), CUDA, BOUNDS),
    ]


# --- 9.6 ------------------------------------------------------------------------------------------


def place_by(impl, target: Target = LLVM, graphs: bool = False) -> tvm.IRModule:
    """The scheduled decoder after memory_phase."""
    passes = impl.memory_phase(target)
    names(passes, "memory_phase")
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": graphs}):
        return expect.apply(lambda mod: through(passes, mod, target), scheduled(), "memory_phase")


def sizes_of(mod: tvm.IRModule) -> list[int]:
    """Bytes of the storages that `mod` allocates, by the VM's calls or by Relax's own."""
    found: list[int] = []
    allocations = [tvm.ir.Op.get(f"relax.{kind}.alloc_storage") for kind in ("vm", "memory")]

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and expr.op in allocations:
            size = expr.args[0].values[0]
            found.append(int(size) if isinstance(size, tirx.IntImm) else -1)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    return found


def calls_of(mod: tvm.IRModule, name: str) -> int:
    """How often the operator `name` is called in the Relax functions of `mod`."""
    found = 0

    def visit(expr) -> None:
        nonlocal found
        found += isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get(name)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    return found


def test_9_6_destinations(impl) -> None:
    """every kernel writes into a tensor that is given to it"""
    result = place_by(impl)
    left = calls_of(result, "relax.call_tir") + calls_of(result, "relax.call_tir_inplace")
    expect.equal(
        left, 0, "Calls of kernels still return tensors that nobody allocates.", read=MEMORY
    )
    left = calls_of(result, "relax.builtin.alloc_tensor")
    expect.equal(
        left,
        0,
        "Tensors are asked for that no storage was given to.",
        why="LowerAllocTensor gives every tensor that is left a storage of its own.",
        read=MEMORY,
    )


def test_9_6_tensors_share(impl) -> None:
    """tensors share storage: no more storages than the reference allocates"""
    want, found = len(sizes_of(place_by(reference))), len(sizes_of(place_by(impl)))
    expect.that(
        found <= want,
        f"{found} storages are allocated for prefill and decode of one layer.",
        expected=f"{want} or fewer",
        why="StaticPlanBlockMemory shares storage among the tensors it finds allocated and not yet freed by others: it "
        "needs destinations (CallTIRRewrite) before it, and the ends of life (KillAfterLastUse) after it.",
        read=MEMORY,
    )


def test_9_6_views(impl) -> None:
    """a reshape launches nothing"""
    result = place_by(impl)
    want, found = (launches(one, "decode") for one in (place_by(reference), result))
    expect.that(
        found <= want,
        f"A decode step of one layer launches {found} kernels.",
        expected=f"{want} or fewer: a reshape is a view of the same memory",
        why="RewriteDataflowReshape recognises them in dataflow blocks, as calls that return a tensor: it comes before "
        "ToNonDataflow and before CallTIRRewrite.",
        read=MEMORY,
    )


def test_9_6_ends_of_life(impl) -> None:
    """what is not used any more is given back"""
    found = calls_of(place_by(impl), "relax.vm.kill_object")
    found += calls_of(place_by(impl), "relax.memory.kill_tensor")
    expect.that(
        found > 0,
        "Nothing is given back before a function returns.",
        expected="KillAfterLastUse, after the plan",
        why="A prefill's scores would be kept until its logits are there.",
        read=MEMORY,
    )


def test_9_6_graphs(impl) -> None:
    """graphs are captured for CUDA, and for nothing else"""
    for target, wanted in ((CUDA, True), (LLVM, False)):
        result = place_by(impl, target, graphs=True)
        found = any("cuda_graph" in g.name_hint for g in result.get_global_vars())
        expect.equal(
            found,
            wanted,
            f"For {target.kind.name} graphs are {'captured' if found else 'not captured'}.",
            why="RewriteCUDAGraph captures what the planner made static: it stands after the plan, while storages are "
            "still to be seen.",
            read=MEMORY,
        )


def observe_9_6(impl):
    def look(target: Target, graphs: bool) -> str:
        with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": graphs}):
            result = through(impl.memory_phase(target), scheduled(), target)
        ops = (
            "relax.call_tir",
            "relax.vm.kill_object",
            "relax.memory.kill_tensor",
            "relax.reshape",
        )
        counts = [calls_of(result, name) for name in ops]
        functions = sorted(g.name_hint for g in result.get_global_vars())
        return f"{counts} {sizes_of(result)} {functions} {launches(result, 'decode')}"

    return [lambda: look(LLVM, False), lambda: look(LLVM, True), lambda: look(CUDA, True)]


# --- 9.7 ------------------------------------------------------------------------------------------

STEPS = 8


@functools.cache
def exact() -> tuple[np.ndarray, np.ndarray]:
    """STEPS greedy tokens and their logits, in float64."""
    return llama_reference.generate(SMALL, random_weights(SMALL), PROMPT, STEPS)


PROMPT = (3, 1, 4, 1, 5)


def facts() -> dict:
    """Arguments for the pipeline, fresh ones each time."""
    return {"variable_bounds": dict(BOUNDS), "metadata": {"vocab_size": SMALL.vocab_size}}


def whole(impl, mod: tvm.IRModule, target: Target = LLVM, **arguments) -> tvm.IRModule:
    """`mod` through fusion_pipeline, with no target current around it."""
    made_pass = impl.fusion_pipeline(target, **(arguments or facts()))
    expect.that(
        isinstance(made_pass, Pass),
        f"fusion_pipeline returned {type(made_pass).__name__}, not a pass.",
        expected="the function that module_pass has made a Pass of",
        why="relax.build calls what it is given on the module.",
    )
    return expect.apply(made_pass, mod, "fusion_pipeline")


def test_9_7_is_one_pass(impl) -> None:
    """it is one pass; the module given stays as it is, whatever target is current"""
    result = whole(impl, model(functions=("decode",)))
    expect.has_function(result, "decode", "fusion_pipeline")


def test_9_7_uses_its_arguments(impl) -> None:
    """bounds, metadata and kernels reach the phases"""
    result = whole(
        impl,
        model(functions=("decode",)),
        variable_bounds=dict(BOUNDS),
        metadata={"vocab_size": 72},
        additional_tirs={"halve": halve, "third": third},
    )
    for name in ("halve", "third"):
        expect.has_function(result, name, "fusion_pipeline")
    sizes = sizes_of(result)
    symbolic = [name for name, func in kernels(result).items() if has_symbol(func, "vocab_size")]
    expect.equal(
        symbolic, [], "The vocabulary is still symbolic in kernels.", why=EXACT, read=ATTACH
    )
    expect.that(
        sizes and -1 not in sizes,
        "Storage is still of symbolic size although all dimensions are bounded.",
        expected="numbers only",
        yours=str(sizes),
        why="The bounds that were given did not reach the planner.",
        read=ATTACH,
    )


def has_symbol(func: tirx.PrimFunc, name: str) -> bool:
    """Whether a buffer of `func` has a dimension called `name`."""
    shapes = [p.shape for p in func.params if tirx.is_buffer_var(p)]
    return any(isinstance(d, tvm.ir.Var) and d.name == name for shape in shapes for d in shape)


def test_9_7_reaches_the_vm(impl) -> None:
    """nothing is left for the virtual machine to refuse: all phases ran"""
    result = whole(impl, model(functions=("decode",)))
    missing = [
        name
        for name, found in {
            "graph and lower": launches(result, "decode") <= 14,
            "schedule": all("tirx.is_scheduled" in (f.attrs or {}) for f in own_kernels(result)),
            "memory": calls_of(result, "relax.call_tir") == 0,
            "vm": "global_symbol" in (result["decode"].attrs or {}),
        }.items()
        if not found
    ]
    if "graph and lower" in missing:
        own, want = (launches(lower_by(one), "decode") for one in (impl, reference))
        expect.that(
            own <= want,
            "fusion_pipeline is not to blame: your graph_and_lower, exercise 9.3, leaves too many kernels.",
            expected=f"{want} or fewer after that phase",
            yours=str(own),
            why="A pipeline is as good as its phases, and this one is made of yours.",
            read=ORDER,
        )
    expect.equal(
        missing,
        [],
        "Phases have not run, or not in their order.",
        why="`phases` has them in order; each needs what the one before it made.",
        read=f"{LESSON}, “How it works”",
    )


def own_kernels(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    """The PrimFuncs that compute tensors, without those that compute shapes."""
    return [
        func for func in kernels(mod).values() if isinstance(func.body, tvm.s_tir.SBlockRealize)
    ]


def test_9_7_for_a_gpu(impl) -> None:
    """for CUDA every kernel has threads, and the source compiles to text"""
    mod = model("float16", ("decode",))
    executable = tvm.compile(mod, CUDA, relax_pipeline=impl.fusion_pipeline(CUDA, **facts()))
    source = executable.mod.imports[0].imports[0].inspect_source()
    expect.that(source.count("__global__") >= 12, "There are fewer kernels than a layer has.")


def test_9_7_same_tokens(impl) -> None:
    """the decoder gives the tokens of NumPy in float64, and its logits"""
    tokens, logits = exact()
    generator = Generator(SMALL, target=LLVM, relax_pipeline=impl.fusion_pipeline(LLVM, **facts()))
    got = generator.generate(PROMPT, STEPS)
    expect.close(
        got.logits, logits, "The logits are not the reference's.", rtol=1e-3, atol=1e-3, read=BREAK
    )
    expect.equal(got.tokens.tolist(), tokens.tolist(), "The greedy tokens are not the reference's.")


def observe_9_7(impl):
    def look(target: Target, functions: tuple[str, ...], **arguments) -> str:
        given = model("float32", functions).clone()
        result = impl.fusion_pipeline(target, **arguments)(given)
        same = tvm_ffi.structural_equal(given, model("float32", functions))
        attrs = sorted(dict(result["decode"].attrs or {}))
        done = [("tirx.is_scheduled" in (f.attrs or {})) for f in own_kernels(result)]
        left = calls_of(result, "relax.call_tir")
        return f"{same} {attrs} {sorted(kernels(result))} {sum(done)} {sizes_of(result)} {left}"

    return [
        lambda: look(LLVM, ("decode",), **facts()),
        lambda: look(LLVM, ("decode",), additional_tirs={"halve": halve}),
        lambda: look(CUDA, ("decode",), **facts()),
    ]


# --- 9.8 ------------------------------------------------------------------------------------------

WORDS = ("same", "slower", "more memory", "fails")


def all_passes(target: Target) -> list[Pass]:
    """The reference's passes, in order."""
    phases = reference.phases(target, variable_bounds=BOUNDS, metadata={"vocab_size": 72})
    return [one for phase in phases.values() for one in phase]


def moved(name: str, where: str, anchor: str, target: Target) -> list[Pass]:
    """The reference's passes with `name` moved before the first or after the last `anchor`."""
    passes = all_passes(target)
    taken = next(one for one in passes if one.info.name == name)
    passes = [one for one in passes if not one.same_as(taken)]
    places = [n for n, one in enumerate(passes) if one.info.name == anchor]
    passes.insert(places[0] if where == "before" else places[-1] + 1, taken)
    return passes


def cost(passes: Sequence[Pass], target: Target) -> tuple[int, int] | None:
    """(launches, bytes allocated) of the decoder; None if it does not compile."""
    cpu = target.kind.name == "llvm"
    mod = model("float32", ("decode",)) if cpu else model("float16")
    planning = ("CallTIRRewrite", "StaticPlanBlockMemory")
    planned = max(n for n, one in enumerate(passes) if one.info.name in planning) + 1
    try:
        middle = through(passes[:planned], mod, target)
        rest = through(passes[planned:], middle, target)
    except (tvm.s_tir.ScheduleError, tvm.error.InternalError):
        return None
    return launches(rest, "decode"), read_plan(middle).bytes({"context_window": 80, "seq_len": 80})


def truth(change: str) -> str:
    """What the compiler says about moving a pass."""
    text, _, device = change.partition(", for ")
    target = CUDA if device == "cuda" else LLVM
    before, after = cost(all_passes(target), target), cost(moved(*text.split(), target), target)
    if after is None:
        return "fails"
    if after[0] > before[0]:
        return "slower"
    return "more memory" if after[1] > before[1] else "same"


def test_9_8_one_word_each(impl) -> None:
    """one of the four words for each change"""
    said = impl.consequences()
    expect.equal(
        sorted(said),
        sorted(reference.consequences()),
        "The keys are not the six moves that the docstring lists.",
    )
    expect.equal(
        sorted(set(said.values()) - set(WORDS)), [], f"There are words besides {', '.join(WORDS)}."
    )


def test_9_8_agrees_with_the_compiler(impl) -> None:
    """compiled with that one pass moved, the decoder does what you say"""
    for change, word in impl.consequences().items():
        expect.that(
            word == truth(change),
            f"“{change}”: the compiler disagrees.",
            expected=f"another of {', '.join(WORDS)}",
            yours=repr(word),
            why="A pass that finds nothing to do reports nothing: only the cost shows it.",
            read=ORDER,
        )


def observe_9_8(impl):
    def answers(part: slice) -> str:
        said = impl.consequences()
        return str([said.get(key) for key in list(reference.consequences())[part]])

    return [lambda: answers(slice(0, 3)), lambda: answers(slice(3, 6))]


# --- 9.9 ------------------------------------------------------------------------------------------


def counted(layers: int) -> dict[str, int]:
    """Launches of a decode step, by lowering it."""
    config = LlamaConfig(64, 96, layers, 4, 2, 16, 72, 80)
    mod = decoder(config, "float32", ["decode"])[0]
    passes = [p for name, v in reference.phases(LLVM).items() if name != "vm" for p in v]
    return {
        "default": launches(lower(mod), "decode"),
        "ours": launches(through(passes, mod), "decode"),
    }


def test_9_9_agrees_with_the_compiler(impl) -> None:
    """for one, two and five layers the compiler counts the same"""
    for layers in (1, 2, 5):
        yours = impl.launches_a_step(layers)
        expect.that(
            isinstance(yours, dict) and set(yours) == {"default", "ours"},
            "launches_a_step does not return a dict of two numbers.",
            expected='{"default": …, "ours": …}',
            yours=repr(yours)[:200],
        )
        for whose, number in counted(layers).items():
            expect.predicted(
                yours[whose],
                number,
                f"A decode step of {layers} layer{'s' if layers > 1 else ''} launches another number of kernels, "
                f"{whose!r}.",
                why="`python -m chapters trace --pipeline default --pass LegalizeOps` shows the kernels of three "
                "layers; with `fusion_by_hand` ours, before split, silu and product are joined. A reshape is a view.",
                read=MEASURE,
            )


def observe_9_9(impl):
    return [lambda n=n: impl.launches_a_step(n) for n in (1, 2, 32)]


# --- 9.10 -----------------------------------------------------------------------------------------


TWO_WORDS = replace(SMALL, vocab_size=2)


@functools.cache
def gloomy() -> dict[str, np.ndarray]:
    """Weights of a decoder with two words: one's logit is half the other's, so both may be negative."""
    weights = random_weights(TWO_WORDS)
    first = weights["lm_head.weight"][0]
    return {**weights, "lm_head.weight": np.stack([first, first / 2])}


def generated(
    mod: tvm.IRModule | None, prompt: Sequence[int], config: LlamaConfig = SMALL, weights=None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logits of the decoder, or of `mod` in its place."""
    generator = Generator(config, target=LLVM, module=mod, weights=weights)
    found = [generator.generate(one, STEPS) for one in (prompt, prompt[::-1])]
    return np.stack([f.tokens for f in found]), np.stack([f.logits for f in found])


@functools.cache
def unspoiled():
    return generated(None, PROMPT)


def spoil(impl, config: LlamaConfig = SMALL) -> tvm.IRModule:
    """The decoder after slips_through."""
    mod = decoder(config, "float32", Generator.SINGLE)[0]
    return expect.apply(impl.slips_through, mod, "slips_through")


def test_9_10_same_tokens(impl) -> None:
    """the greedy tokens stay what they were"""
    tokens, _ = generated(spoil(impl), PROMPT)
    expect.equal(
        tokens.tolist(),
        unspoiled()[0].tolist(),
        "The tokens change: a test that compares them finds this pass.",
        read=BREAK,
    )


def test_9_10_any_logits(impl) -> None:
    """the greedy tokens stay also where all logits are negative"""
    prompt = [token % 2 for token in PROMPT]
    expect.equal(
        generated(spoil(impl, TWO_WORDS), prompt, TWO_WORDS, gloomy())[0].tolist(),
        generated(None, prompt, TWO_WORDS, gloomy())[0].tolist(),
        "The tokens of another decoder change, one with two words, whose logits may both be negative.",
        why="Which logit is the largest must not depend on their signs or sizes: what you do to them has to keep the "
        "order of any numbers.",
        read=BREAK,
    )


def test_9_10_wrong_logits(impl) -> None:
    """logits are wrong by more than a tenth of the largest"""
    _, logits = generated(spoil(impl), PROMPT)
    right = unspoiled()[1]
    error = np.abs(logits - right).max() / np.abs(right).max()
    expect.that(
        bool(error > 0.1),
        "The logits are right, or nearly: there is nothing to slip through.",
        expected="an error above 0.1 of the largest logit",
        yours=f"{error:.3g}",
        why="It is numbers that a compiler has to keep; tokens are what is left of them after argmax.",
        read=BREAK,
    )


def observe_9_10(impl):
    def look(part: str) -> str:
        mod = decoder(SMALL, "float32", ["decode", "prefill"])[0]
        given = mod.clone()
        result = impl.slips_through(given)
        return f"{tvm_ffi.structural_equal(given, mod)} {result[part].script()}"

    return [lambda: look("decode"), lambda: look("prefill")]


# --- 9.11 -----------------------------------------------------------------------------------------


class Machine:
    """A machine with its own clock: calls take longer the later it is, and the first of a kind much longer."""

    def __init__(self, drift: float = 0.02, noise: Sequence[float] = ()):
        self.now, self.drift, self.log = 0.0, drift, []
        self.noise = list(noise)
        self.asked = 0

    def clock(self) -> float:
        self.asked += 1
        return self.now

    def call(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            cold = 50 if name not in self.log else 1
            extra = self.noise.pop() if self.noise and len(self.log) > 8 else 0.0
            self.log.append(name)
            self.now += seconds * cold * (1 + self.drift * len(self.log)) + extra

        return run


def race(impl, rounds: int = 12, **machine) -> tuple[dict, Machine]:
    made_machine = Machine(**machine)
    calls = {name: made_machine.call(name, s) for name, s in (("a", 1.0), ("b", 2.0), ("c", 1.0))}
    return impl.interleaved(calls, rounds, made_machine.clock), made_machine


def test_9_11_drift(impl) -> None:
    """on a machine that gets slower, equal calls come out equal and one of twice the work at twice the time"""
    found, machine = race(impl)
    expect.equal(
        sorted(found), ["a", "b", "c"], "The result does not hold one number for each call."
    )
    expect.that(
        machine.asked > 0,
        "The `clock` that was given is never asked.",
        expected="every time taken is the difference of two calls of `clock`",
        yours="times from another clock",
        why="The check measures on a machine with a clock of its own; time.perf_counter is only the default.",
        read=MEASURE,
    )
    for name, ratio in (("b", 2.0), ("c", 1.0)):
        got = found[name] / found["a"]
        expect.that(
            abs(got - ratio) < 0.12,
            f"`{name}` takes {ratio:g} times as long as `a`, and comes out at {got:.2f} times.",
            why="The machine gets slower while it is measured. Measured one after the other, whoever comes last pays.",
            read=MEASURE,
        )


def test_9_11_every_round(impl) -> None:
    """each call runs once to warm up, then once in every round, and rounds begin with different calls"""
    _, machine = race(impl, rounds=6)
    expect.equal(
        [machine.log.count(name) for name in "abc"],
        [7, 7, 7],
        "With six rounds each call runs seven times: once to warm up, then once in every round.",
    )
    rounds = [machine.log[i : i + 3] for i in range(3, 21, 3)]
    whole_rounds = all(sorted(one) == ["a", "b", "c"] for one in rounds)
    expect.that(
        whole_rounds,
        "A round does not hold every call once.",
        yours=" ".join(machine.log),
        read=MEASURE,
    )
    expect.that(
        len({one[0] for one in rounds}) > 1,
        "Every round begins with the same call.",
        why="What follows the longest call finds the caches as that one left them, every time.",
        read=MEASURE,
    )


def test_9_11_interruptions(impl) -> None:
    """one long interruption does not decide"""
    found, _ = race(impl, noise=[500.0])
    expect.that(
        max(found.values()) < 10,
        "A single interruption decides the result.",
        expected="the median of the rounds",
        yours=str(found),
        read=MEASURE,
    )


def observe_9_11(impl):
    def look(**machine) -> str:
        found, made_machine = race(impl, **machine)
        if not made_machine.asked:
            return "another clock"
        return f"{ {name: round(value, 6) for name, value in found.items()} } {made_machine.log}"

    return [lambda: look(), lambda: look(noise=[500.0]), lambda: look(rounds=5, drift=0.0)]
