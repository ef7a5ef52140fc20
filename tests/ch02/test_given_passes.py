"""The passes that chapter 2 gives, and its reference where it goes further than the checks ask."""

from __future__ import annotations

import functools

import pytest
import tvm
from tvm import relax

from chapters.ch02_attach_metadata.checks import Mixed, find_variables
from chapters.ch02_attach_metadata.given import (
    ENTRY_POINTS,
    AttachSequenceLengthPaddingFactor,
    even_starts,
)
from chapters.checking.attributes import check_attaches
from chapters.checking.expect import Section
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.passes.planned_storage import plan_storage
from solutions.ch02_attach_metadata.attach_support_info import (
    AttachAdditionalPrimFuncs,
    AttachCUDAGraphSymbolicCaptureHints,
    AttachMemoryPlanAttr,
    AttachPipelineParallelStages,
    AttachVariableBounds,
    crossing_tensors,
)

PLAN_OUTPUT = "relax.memory_plan_dynamic_func_output"
HINTS = "relax.rewrite_cuda_graph.capture_symbolic_vars"
STAGES = "pipeline_parallel_stages"
FACTOR = "seqlen_padding_factor"
PAGE = Section("chapters/ch02_attach_metadata/lesson.md", "How it works")


@functools.cache
def _bounded() -> tvm.IRModule:
    mod, _ = decoder("tiny", functions=["batch_decode"])
    return AttachVariableBounds({"batch_size": 8, "context_window": 64})(mod)


def test_every_function_asks_for_its_outputs_to_be_planned():
    check_attaches(AttachMemoryPlanAttr(), Mixed, "the pass", lambda _: {PLAN_OUTPUT: True}, PAGE)
    assert (
        plan_storage(_bounded()).unplanned
        and not plan_storage(AttachMemoryPlanAttr()(_bounded())).unplanned
    )


def test_named_relax_functions_get_their_hints():
    """`prefill` is a kernel in Mixed, `sampler` an external function, and `batch_decode` no function at all."""
    hints = {"decode_step": ["m", "n"], "helper": ["n"]}
    more = {name: ["n"] for name in ("prefill", "sampler", "batch_decode")}
    a_pass = AttachCUDAGraphSymbolicCaptureHints(hints | more)
    check_attaches(
        a_pass, Mixed, "the pass", lambda f: {HINTS: hints[f]} if f in hints else {}, PAGE
    )


def test_later_changes_to_the_hints_do_not_change_the_pass():
    hints = {"decode": ["n"]}
    a_pass = AttachCUDAGraphSymbolicCaptureHints(hints)
    hints["decode"].append("m")
    hints["helper"] = ["n"]
    check_attaches(
        a_pass, Mixed, "the pass", lambda f: {HINTS: ["n"]} if f == "decode" else {}, PAGE
    )


def test_stages_belong_to_the_ten_entry_points():
    others = (
        "embed",
        "batch_get_logits",
        "prefill_with_images",
        "decode_step",
        "predecode",
        "verify",
    )
    functions = (f'def {f}(x: ("n", 16)):\n    out = R.exp(x)\n' for f in (*ENTRY_POINTS, *others))
    for mod in (relax_module("".join(functions)), Mixed):
        a_pass = AttachPipelineParallelStages(4)
        check_attaches(a_pass, mod, "it", lambda f: {STAGES: 4} if f in ENTRY_POINTS else {}, PAGE)


def test_a_function_has_at_least_one_stage():
    with pytest.raises(ValueError, match="at least 1 stage"):
        AttachPipelineParallelStages(0)


KERNELS = relax_module(
    kernel("halve(a, b)", (6,), "b[at] = a[at] * T.float32(0.5)")
    + kernel("shift(a, b)", (6,), "b[at] = a[at] + T.float32(3)")
)
HALVE = KERNELS["halve"].with_attr("global_symbol", "halve")
SHIFT = KERNELS["shift"].with_attr("tirx.noalias", True)


@pytest.mark.parametrize(
    "functions", [{"first": HALVE, "second": HALVE, "shift": SHIFT}, {"shift": SHIFT}, {}]
)
@pytest.mark.parametrize("there", [Mixed, KERNELS, tvm.IRModule()], ids=str)
def test_kernels_are_added_under_public_names(functions, there):
    """Also where the module has the same kernel, with or without a `global_symbol`."""
    mod = there.clone()
    if "shift" in mod:
        mod["shift"] = SHIFT
    before, wanted = mod.clone(), mod.clone()
    for name, func in functions.items():
        wanted[name] = func.with_attr("global_symbol", name)
    for given in (mod, wanted):  # a second run changes nothing
        tvm.ir.assert_structural_equal(AttachAdditionalPrimFuncs(functions)(given), wanted)
    tvm.ir.assert_structural_equal(mod, before)
    assert HALVE.attrs["global_symbol"] == "halve" and "global_symbol" not in SHIFT.attrs


@pytest.mark.parametrize("taken", ["prefill", "decode", "sampler"])  # of Mixed, one of each kind
def test_a_name_that_another_function_has_is_refused(taken):
    mod = Mixed.clone()
    with pytest.raises(ValueError, match=f"another function '{taken}'"):
        AttachAdditionalPrimFuncs({"fine": SHIFT, taken: HALVE})(mod)
    tvm.ir.assert_structural_equal(mod, Mixed)


GEMM = "cutlass.groupwise_scaled_gemm_e4m3fn_e4m3fn"
BMM = "cutlass.groupwise_scaled_bmm_e4m3fn_e4m3fn"


def _calling(kernel: str, private: bool, inside_if: bool, dps: bool) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    choose = relax.Var("choose", relax.TensorType((), "bool"))
    if dps:
        call = relax.op.call_dps_packed(kernel, [x], out_ty=x.ty)
    else:
        call = relax.op.call_pure_packed(kernel, x, ty_args=x.ty)
    builder = relax.BlockBuilder()
    with builder.function("quantized", [x, choose], private=private):
        if inside_if:
            call = relax.If(choose, relax.op.exp(relax.op.add(call, x)), x)
        builder.emit_func_output(builder.emit(call))
    mod = Mixed.clone()
    mod.update(builder.get())
    return mod


@pytest.mark.parametrize(
    ("arch", "kernel", "how", "before", "after"),
    [
        ("sm_100a", GEMM, {}, {"model_type": "llama"}, {"model_type": "llama", FACTOR: 4}),
        ("sm_100a", BMM, {}, {FACTOR: 6}, {FACTOR: 12}),
        ("sm_100a", BMM, {}, {FACTOR: 8}, {FACTOR: 8}),
        ("sm_100a", GEMM, {"private": True, "inside_if": True}, {}, {FACTOR: 4}),
        ("sm_100a", GEMM, {"dps": False}, {}, {}),
        ("sm_100a", GEMM + "_v2", {}, {FACTOR: 6}, {FACTOR: 6}),
        ("sm_90a", GEMM, {}, {}, {}),
        ("sm_100", GEMM, {}, {}, {}),
    ],
)
def test_the_runtime_is_told_what_to_pad(arch, kernel, how, before, after):
    mod = _calling(kernel, **{"private": False, "inside_if": False, "dps": True, **how})
    given, metadata = mod.clone(), dict(before)
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    result = AttachSequenceLengthPaddingFactor(target, metadata)(mod)
    assert metadata == after
    tvm.ir.assert_structural_equal(result, given)


# --- tensors that cross a cut ------------------------------------------------------------------------


def _crossing(func: relax.Function, start: str) -> list[tuple]:
    found = crossing_tensors(func, find_variables(func, start))
    return [(c.name, c.from_stage, c.to_stages) for c in found]


# `inner` captures a, is defined before k is computed, and is called last.
CLOSURE = relax_module("""
@bare
def main(x: (4,)):
    a = R.exp(x)
    @R.function
    def inner(z: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        b = R.add(a, z)
        return b
    k = R.tanh(x)
    r: R.Tensor((4,), "float32") = inner(k)
    return r
""")


def test_a_closure_uses_what_it_captures_where_it_is_called():
    func = CLOSURE["main"]
    assert _crossing(func, "r") == [("a", 0, (1,)), ("k", 0, (1,))]
    assert _crossing(func, "k") == [("a", 0, (1,))]


def test_a_function_without_calls_is_not_cut():
    only_names = relax_module("@bare\ndef main(x: (4,)):\n    y = x\n    return y")
    func = only_names["main"].with_attr("pipeline_parallel_stages", 3)
    assert even_starts(func) == []
    assert _crossing(func, "y") == []


def test_a_start_that_is_not_bound_is_refused():
    stranger = relax.Var("stranger", relax.TensorType((4,), "float32"))
    with pytest.raises(ValueError, match="No binding of the function binds stranger"):
        crossing_tensors(CLOSURE["main"], [stranger])
