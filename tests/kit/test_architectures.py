"""The compiler on models that others wrote: PyTorch's numbers, and the kernels that the course's passes fuse.

They are Transformers' own classes, small and with random weights. The attention is Transformers' eager one, and the
mask is an input, because the code that makes masks is exported with operators that TVM compiles to invalid code.
"""

from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock

from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.models.from_torch import imported, outputs_of
from chapters.kit.pipeline.warn_of_fallback import scheduled_by
from solutions.ch09_the_compiler.pipeline import fusion_pipeline, phases
from solutions.ch10_imported_models.imported_models import canonicalize
from tests.kit.architectures import ARCHITECTURES, build

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[models]'")
pytest.importorskip("transformers", reason="needs Transformers: pip install -e '.[models]'")

TOLERANCE = 1e-5  # of the largest number: two layers in float32 differ by a few 1e-7, sums in another order included
NORMS = {"Llama": 5, "Mistral": 5, "Qwen2": 5, "Qwen3": 9, "Gemma 2": 9}  # others have LayerNorm
PAIRS = dict.fromkeys(NORMS, 4)  # of an add and the norm of its result, fused
# queries with keys, and weights with values: chapter 5's schedules need a constant matrix, and these have none
TWO_ACTIVATIONS = {"TileProducts"}
LINEAR = ("Linear", "Conv1D", "Conv2d")  # GPT-2's name for a linear layer, and ViT's patches
LEFT_OUT = {"BERT": 1, "ViT": 1}  # the linear layers of poolers, which read the hidden states


@pytest.fixture(params=ARCHITECTURES, scope="module")
def case(request):
    """(name, model, example inputs, the imported module, its canonical form)."""
    model, inputs = build(request.param)
    mod = imported(model, inputs)
    return request.param, model, inputs, mod, canonicalize()(mod)


@pytest.fixture(scope="module")
def kernels(case) -> tuple[tvm.IRModule, dict[str, str]]:
    """The module of kernels without schedules, and the pass that scheduled each of them."""
    mod, found = case[-1], phases(QUICK_HERE)
    lowered, first = scheduled_by(mod, found["graph and lower"], QUICK_HERE)
    _, then = scheduled_by(lowered, found["schedule"], QUICK_HERE)
    return lowered, then | first


def products(mod: tvm.IRModule) -> dict[str, bool]:
    """For each kernel with a product, whether one operand is a matrix, as the weight of a linear layer is."""
    found = {}
    for gvar, func in mod.functions_items():
        blocks = nodes(func.body, SBlock) if isinstance(func, tirx.PrimFunc) else []
        for block in blocks:
            if "matmul" in block.name_hint and len(block.reads) == 2:
                ranks = [len(region.source.shape) for region in block.reads]
                found[gvar.name_hint] = 2 in ranks
    return found


def test_numbers_are_those_of_pytorch(case):
    _, model, inputs, _, mod = case
    assert relax.analysis.check_well_formed(mod)
    executable = tvm.compile(mod, QUICK_HERE, relax_pipeline=fusion_pipeline(QUICK_HERE))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    (found,) = main(*(tvm.runtime.tensor(value.numpy()) for value in inputs))
    (expected,) = outputs_of(model, inputs)
    assert np.abs(found.numpy() - expected).max() < TOLERANCE * np.abs(expected).max()


def test_every_rms_norm_is_recognized(case, kernels):
    name, _, _, _, mod = case
    names = Counter(call.op.name for call in calls_in(mod["main"]))
    assert names["relax.nn.rms_norm"] == NORMS.get(name, 0)
    assert not names["relax.rsqrt"]
    lowered, by = kernels
    pairs = [call for call in calls_in(lowered["main"]) if by.get(called(call)) == "FuseAddRMSNorm"]
    assert len(pairs) == PAIRS.get(name, 0)


def test_every_linear_layer_is_a_scheduled_product(case, kernels):
    name, model, _, _, _ = case
    lowered, by = kernels
    is_linear = products(lowered)
    assert {by[kernel] for kernel, linear in is_linear.items() if linear} == {"ScheduleMatmuls"}
    others = {by[kernel] for kernel, linear in is_linear.items() if not linear}
    assert others == TWO_ACTIVATIONS
    layers = [m for m in model.modules() if type(m).__name__ in LINEAR]
    calls = [call for call in calls_in(lowered["main"]) if is_linear.get(called(call))]
    assert len(calls) == len(layers) - LEFT_OUT.get(name, 0)


def called(call: relax.Call) -> str:
    """The kernel that a call launches."""
    return (
        call.args[0].name_hint if call.args and isinstance(call.args[0], tvm.ir.GlobalVar) else ""
    )
