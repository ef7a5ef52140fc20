"""Given in chapter 9: chapter 5's schedules for a product with its epilogue, and what stands around your phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.relax import transform
from tvm.relax.pipeline import PIPELINE_MAP
from tvm.s_tir import Schedule, ScheduleError
from tvm.target import Target

from chapters.kit.cpu.matmul_tile import has_few_rows, lanes_of, largest_divisor
from chapters.kit.cpu.nt_matmul import NAME, has_product
from chapters.kit.cpu.vectorize_transcendentals import VectorizeTranscendentals
from chapters.kit.ir.tensor_ir import innermost_blocks
from chapters.kit.passes.compare_nan import CompareNan
from chapters.kit.passes.copy_operands_before_in_place import CopyOperandsBeforeInPlace
from chapters.kit.passes.copy_returned_constants import CopyReturnedConstants
from chapters.kit.passes.name_kernels import NameKernels
from chapters.kit.passes.plan_straight_functions import PlanStraightFunctions
from chapters.kit.passes.require_threads import RequireThreads
from chapters.kit.passes.sum_in_float32 import SumInFloat32
from chapters.kit.schedules.fuse_gathered_products import FuseGatheredProducts
from chapters.kit.schedules.merge_elementwise import MergeElementwise, inline
from chapters.kit.schedules.store_names import StoreNames
from chapters.kit.schedules.unscheduled import map_unscheduled
from chapters.runner.earlier import earlier


def tiled(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return the product `func` with chapter 5's schedule; the block behind it runs on each tile of sums.

    func: an NT_matmul that chapter 5 can schedule, alone or with one block behind it, which reads of the sums only the
    one with the index that it writes. Raises ValueError if there are more blocks.
    """
    *others, (_, last) = innermost_blocks(func.body)
    if len(others) > 1:
        names = ", ".join(realize.block.name_hint for _, realize in (*others, (_, last)))
        raise ValueError(f"tiled takes a product and at most one block behind it, not {names}")
    sch, name = Schedule(earlier(5).schedule(func, target)), last.block.name_hint
    if name != NAME and has_few_rows(func, target):  # few results: one pass over them, in vectors
        *_, column = sch.get_loops(name)
        width = largest_divisor(int(sch.get(column).extent), lanes_of(func, target))
        _, lane = sch.split(column, [None, width])
        sch.vectorize(lane)
    return sch.mod["main"]


def product_first(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` with the blocks before its NT_matmul inlined into blocks behind it, or `func` itself.

    FuseOps puts a block there if a model computes a gate before the product that is multiplied by it. If the product
    itself reads such a block, `func` stays as it is.
    """
    if not has_product(func):
        return func
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    names = [sch.get(block).name_hint for block in blocks]
    try:
        for block in reversed(blocks[: names.index(NAME)]):
            inline(sch, block)
    except ScheduleError:
        return func
    found = sch.mod["main"]
    return found if has_product(found) else func  # a product that reads such a block is left alone


def each_unscheduled(name: str, rewrite: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> Pass:
    """Return a pass called `name` that replaces each PrimFunc `func` that is not scheduled yet by rewrite(func)."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def transform(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(mod, rewrite)

    return transform


def sizes_of(metadata: Mapping[str, object]) -> dict[str, int]:
    """Return the dimensions of `metadata` whose size is exact: "vocab_size". A batch size may be the largest one."""
    return {"vocab_size": metadata["vocab_size"]} if "vocab_size" in metadata else {}


def attach_facts(
    target: Target,
    variable_bounds: Mapping[str, int],
    cuda_graph_symbolic_capture_hints: Mapping[str, Sequence[str]],
    pipeline_parallel_stages: int,
    additional_tirs: Mapping[str, tirx.PrimFunc],
    metadata: MutableMapping[str, object],
) -> list[Pass]:
    """Return chapter 2's six passes. AttachSequenceLengthPaddingFactor writes into the caller's own `metadata`."""
    ch2 = earlier(2)
    return [
        ch2.AttachVariableBounds(variable_bounds),
        ch2.AttachCUDAGraphSymbolicCaptureHints(cuda_graph_symbolic_capture_hints),
        ch2.AttachPipelineParallelStages(pipeline_parallel_stages),
        ch2.AttachAdditionalPrimFuncs(additional_tirs),
        ch2.AttachMemoryPlanAttr(),
        ch2.AttachSequenceLengthPaddingFactor(target, metadata),
    ]


def memory_phase(target: Target) -> list[Pass]:
    """Return the passes that give every tensor a place: calls write into tensors, and tensors share planned storage.

    On CUDA also the pass that captures kernels with static storage into graphs, if a flag asks for graphs.
    """
    capture = [transform.RewriteCUDAGraph()] if target.kind.name == "cuda" else []
    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        PlanStraightFunctions(),
        *capture,
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
    ]


def before_fusion() -> list[Pass]:
    """Return the passes before the fusions. They keep the numbers right, however kernels are fused later.

    The first moves functions that are defined inside of others to the module: TVM's virtual machine has no others. The
    second puts tensors for elements of tuples, because FuseTIR fails at an element of an element.
    """
    return [
        transform.LambdaLift(),
        transform.CanonicalizeBindings(),
        CopyOperandsBeforeInPlace(),
        CompareNan(),
        SumInFloat32(),
        FuseGatheredProducts(),
    ]


def around_schedules(schedules: list[Pass], target: Target) -> list[Pass]:
    """Return `schedules`, after a pass that makes one block of each elementwise chain, and before `after_schedules`."""
    return [MergeElementwise(), *schedules, *after_schedules(target)]


def after_schedules(target: Target) -> list[Pass]:
    """Return the pass that writes exp, tanh, erf and sigmoid as polynomials, on a CPU. A GPU has instructions.

    For a GPU, return passes that refuse a kernel without threads, and that give each a name that is one in CUDA. On
    both, long chains of names are stored first, and constants that a function returns are copied last.
    """
    cpu = target.kind.name == "llvm"
    last = [VectorizeTranscendentals()] if cpu else [RequireThreads(), NameKernels()]
    return [StoreNames(), *last, CopyReturnedConstants()]


def vm_phase() -> list[Pass]:
    """Return the last passes: they lower the rest to calls of the virtual machine, and name the functions."""
    return [
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]


def register(name: str) -> Callable[[Callable[..., Pass]], Callable[..., Pass]]:
    """Return a decorator for a function that makes a pipeline; `relax.get_pipeline(name)` then finds it.

    TVM refuses a name that is taken. One process may import both your file and the reference, so the later import takes
    over the name.
    """
    PIPELINE_MAP.pop(name, None)
    return relax.register_pipeline(name)
