"""Chapter 9: the passes of all chapters, and TVM's for the rest, as one compiler: the pipeline "fusion_by_hand".

The phases stand here in the order in which they run: facts that only the caller knows (attach), fusion of operators and
operators into kernels (graph and lower), fast kernels (schedule), a place for each tensor (memory), calls that the
virtual machine executes (vm). Each phase is a list of passes. `phases` returns the lists in order, and
`fusion_pipeline` makes one pass of them, under a name that `relax.get_pipeline` knows.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.relax import transform
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.ch09_the_compiler import given
from chapters.ch09_the_compiler.given import (
    each_unscheduled,
    memory_phase,
    product_first,
    register,
    tiled,
)
from chapters.kit.cpu.nt_matmul import has_product, reads_only_its_own
from chapters.kit.ir.reductions import is_reduction
from chapters.kit.passes.fold_read_only_constants import FoldReadOnlyConstants
from chapters.kit.schedules.apply_cpu_fallback import ApplyCPUFallback
from chapters.kit.schedules.apply_gpu_fallback import ApplyGPUFallback
from chapters.kit.schedules.gemv_within_bounds import GEMVWithinBounds
from chapters.kit.schedules.matmul_on_tensor_cores import MatmulOnTensorCores
from chapters.kit.schedules.reduction_once import ReductionOnce
from chapters.kit.schedules.run_small_kernels_serially import RunSmallKernelsSerially
from chapters.kit.schedules.schedule_linear_layers import ScheduleLinearLayers
from chapters.kit.schedules.tile_products import TileProducts
from chapters.kit.schedules.whole_warps import WholeWarps
from chapters.runner.earlier import earlier

ch3, ch4, ch7 = (earlier(number) for number in (3, 4, 7))

# --- attach: what only the caller knows -----------------------------------------------------------


@tvm.transform.module_pass(opt_level=0, name="BindKnownSizes")
class BindKnownSizes:
    """Put numbers in place of symbolic dimensions whose size is known, in all Relax functions, private ones too.

    sizes: name of a dimension -> its size. The dimension may stand in a parameter, in the result or between. A function
    without such a dimension stays the same object, and so does every PrimFunc. A name that no function has is ignored,
    because one set of sizes serves models with fewer functions. The module that is given stays as it is.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self.sizes = dict(sizes)
        if None in self.sizes.values():  # TVM crashes if it binds None
            raise TypeError(f"BindKnownSizes got {self.sizes}: leave out a size that is not known")

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        # BEGIN exercise 9.1 (about 7 lines): bind, in each Relax function, the sizes that it has
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                own = relax.analysis.defined_symbolic_vars(func)
                known = {var: self.sizes[var.name] for var in own if var.name in self.sizes}
                result[gvar] = func.bind_symbolic_vars(known) if known else func
        return result
        # END exercise 9.1


# --- graph and lower: operators, then kernels -----------------------------------------------------


def graph_and_lower(target: Target) -> list[Pass]:
    """Return the fusions of chapters 3 and 4, and TVM's passes that make kernels of operators, fuse them, and clean up.

    In the resulting module, Relax functions call kernels only, each residual sum is part of the kernel of its norm, no
    kernel transposes a weight, and every function is called.
    """
    # BEGIN exercise 9.2 (about 10 lines): the same passes, in an order in which each finds what it looks for
    return [
        ch4.FuseAddRMSNorm(target),
        ch3.FuseTransposeMatmul(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        FoldReadOnlyConstants(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
    # END exercise 9.2


# --- schedule: fast kernels -----------------------------------------------------------------------


def fuse_its_epilogue(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` with its epilogue fused into its reduction by chapter 7, or `func` itself.

    Fuses functions of two blocks: a reduction, and a block behind it that is not one. Returns `func` itself for all
    others, because a kernel of more blocks has a schedule that needs them, and wherever chapter 7 refuses.
    """
    # BEGIN exercise 9.3 (about 10 lines): find the two blocks, let chapter 7 decide
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if len(blocks) != 2 or not is_reduction(sch.get(blocks[0])) or is_reduction(sch.get(blocks[1])):
        return func
    try:
        ch7.fuse_epilogue(sch, *blocks)
    except ScheduleError:
        return func
    return sch.mod["main"]
    # END exercise 9.3


def FuseEpilogues() -> Pass:
    """Return the pass that calls `fuse_its_epilogue` on each PrimFunc that is not scheduled yet."""
    return each_unscheduled("FuseEpilogues", fuse_its_epilogue)


def schedule_product(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return `func` with chapter 5's schedule and marked as scheduled, or `func` itself.

    Takes functions whose first block is an NT_matmul that chapter 5 can schedule, alone or with blocks behind it. These
    are inlined into the last one, which must read of the sums only the one with the index that it writes.
    """
    # BEGIN exercise 9.4 (about 14 lines): a product first, one block behind it, which reads only its own sum
    if not has_product(func):
        return func
    sch = Schedule(func)
    product, *behind = sch.get_child_blocks(sch.get_sblock("root"))
    # a product that is not the first block is one of those behind it, and fails here: sums cannot be inlined
    try:
        for block in behind[:-1]:
            sch.compute_inline(block)
    except ScheduleError:
        return func
    sums = sch.get(product).writes[0].source
    if behind and not reads_only_its_own(sch.get(behind[-1]), sums):
        return func
    return tiled(sch.mod["main"], target).with_attr("tirx.is_scheduled", True)
    # END exercise 9.4


def ScheduleMatmuls(target: Target) -> Pass:
    """Return the pass that calls `schedule_product` on each PrimFunc that is not scheduled yet, for a CPU."""
    return each_unscheduled(
        "ScheduleMatmuls", lambda func: schedule_product(product_first(func), target)
    )


def schedule_phase(target: Target, variable_bounds: Mapping[str, int]) -> list[Pass]:
    """Return the schedules, from the most specific one to the fallback; each skips kernels that are already scheduled.

    On a CPU ("llvm"): chapter 5's products, then all other products, then sums of rows. On a GPU: chapter 8's linear
    layers, then dlight's rules. On both, the epilogues of the remaining kernels are fused next, and a fallback takes
    what is left. On a CPU, at the very end, kernels that are small within the bounds lose their threads.
    """
    if target.kind.name == "llvm":
        return [
            ScheduleMatmuls(target),
            TileProducts(target),
            dl.ApplyDefaultSchedule(ReductionOnce()),
            FuseEpilogues(),
            ApplyCPUFallback(),
            RunSmallKernelsSerially(variable_bounds),
        ]
    whole = MatmulOnTensorCores(), GEMVWithinBounds(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()
    return [
        ScheduleLinearLayers(target, variable_bounds),
        dl.ApplyDefaultSchedule(*map(WholeWarps, whole)),
        FuseEpilogues(),
        ApplyGPUFallback(),
    ]


# --- the pipeline ---------------------------------------------------------------------------------


def phases(
    target: Target,
    *,
    variable_bounds: Mapping[str, int] | None = None,
    cuda_graph_symbolic_capture_hints: Mapping[str, Sequence[str]] | None = None,
    pipeline_parallel_stages: int = 1,
    additional_tirs: Mapping[str, tirx.PrimFunc] | None = None,
    metadata: MutableMapping[str, object] | None = None,
) -> dict[str, list[Pass]]:
    """Return the passes by phase, in the order in which they run. None: no bounds, hints, kernels, or metadata."""
    bounds = variable_bounds or {}
    return {
        "attach": [
            BindKnownSizes(given.sizes_of(metadata or {})),  # before any other pass sees the module
            *given.attach_facts(
                target,
                bounds,
                cuda_graph_symbolic_capture_hints or {},
                pipeline_parallel_stages,
                additional_tirs or {},
                {} if metadata is None else metadata,
            ),
        ],
        "graph and lower": [*given.before_fusion(), *graph_and_lower(target)],
        "schedule": given.around_schedules(schedule_phase(target, bounds), target),
        "memory": memory_phase(target),
        "vm": given.vm_phase(),
    }


@register("fusion_by_hand")
def fusion_pipeline(target: Target | None = None, **facts) -> Pass:
    """Return the whole pipeline as one pass, for `tvm.compile(…, relax_pipeline=…)`.

    target: all passes run inside it; None for the target that is current when the pass runs. facts: the keyword
    arguments of `phases`. The module that is given stays as it is.
    """

    # BEGIN exercise 9.5 (about 8 lines): one module_pass around a Sequential of all phases
    @tvm.transform.module_pass(opt_level=0, name="fusion_by_hand")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        inside = target or Target.current(allow_none=False)
        passes = [one for phase in phases(inside, **facts).values() for one in phase]
        with inside:
            return tvm.transform.Sequential(passes)(mod)

    return pipeline
    # END exercise 9.5


# --- what an order costs, and what the whole is worth ---------------------------------------------


def consequences() -> dict[str, str]:
    """Return what happens to a decode step if one pass of the pipeline is moved, and the rest stays in order.

    The moves, each a key of the result:

    * "FuseTransposeMatmul after LegalizeOps"
    * "FuseAddRMSNorm after FuseTransposeMatmul"
    * "StaticPlanBlockMemory before CallTIRRewrite"
    * "KillAfterLastUse before StaticPlanBlockMemory"
    * "ToNonDataflow before FuseTransposeMatmul"
    * "LowerAllocTensor before CallTIRRewrite"

    The values: "same", nothing changes; "slower", more kernels are launched; "more memory", as many kernels, and more
    bytes are allocated; "fails", it does not compile. The decode step is compiled for "llvm".
    """
    # BEGIN exercise 9.6 (about 8 lines): one word for each move
    return {
        "FuseTransposeMatmul after LegalizeOps": "slower",
        "FuseAddRMSNorm after FuseTransposeMatmul": "same",
        "StaticPlanBlockMemory before CallTIRRewrite": "more memory",
        "KillAfterLastUse before StaticPlanBlockMemory": "more memory",
        "ToNonDataflow before FuseTransposeMatmul": "slower",
        "LowerAllocTensor before CallTIRRewrite": "fails",
    }
    # END exercise 9.6


def slips_through(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a wrong decoder that a comparison of tokens accepts: the greedy tokens are the same, the logits are not.

    mod: the decoder, not lowered yet. In the result, `prefill` and `decode` give the same greedy tokens for any prompt
    and any weights, and some logit is wrong by more than a tenth of the largest. The module given stays as it is.
    """

    # BEGIN exercise 9.7 (about 10 lines): what can you do to all logits so that the largest stays the largest?
    @mutator
    class TwiceTheLogits(PyExprMutator):
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            call = super().visit_call_(call)
            if call.op != tvm.ir.Op.get("relax.matmul") or "vocab_size" not in str(call.ty):
                return call
            return relax.op.add(call, call)

    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = TwiceTheLogits(mod).visit_expr(func)
    return result
    # END exercise 9.7
