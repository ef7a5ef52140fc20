"""Compiles the decoder of a file. What runs it is in run_decoder.py, and needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.target import Target
from tvm_ffi import structural_equal

from chapters.kit.chat.chat_decoder import FUNCTIONS, chat_decoder
from chapters.kit.chat.decoder_cache import Decoder
from chapters.kit.chat.weights import Weights
from chapters.kit.passes.plan_straight_functions import has_branch
from chapters.kit.passes.planned_storage import ALLOC_IN_STORAGE
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.schedules.unscheduled import needs_schedule
from chapters.kit.schedules.warn_of_fallback import trace_schedulers

Phases = Callable[..., Mapping[str, Sequence[Pass]]]  # chapter 11's function `phases`, in passes.py


def add_share_tensors(phases: Mapping[str, Sequence[Pass]]) -> list[Pass]:
    """The passes of `phases` in order, and ShareTensors behind the memory plan."""
    passes = [one for phase in phases.values() for one in phase]
    at = [str(one.info.name) for one in passes].index("KillAfterLastUse")
    passes[at:at] = [
        ShareTensors(),
        # CallTIRRewrite leaves a tuple behind each kernel with two results: it is read directly, then by nothing
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    return passes


def cache_dtype(target: Target, exact: bool) -> str:
    """The dtype of the cache of a decoder that is compiled for `target`."""
    rounds = not exact and target.kind.name == "llvm" and dot_products(target)
    return "float16" if rounds else "float32"


def compile_decoder(
    weights: Weights,
    target: Target,
    phases: Phases,
    exact: bool = False,
    functions: Sequence[str] = FUNCTIONS,
) -> Decoder:
    """The compiled decoder for `weights`.

    exact: products take x in float32, and the cache holds float32; without it 8 bits and float16, where the processor
    has instructions for products of 8 bits.
    """
    mod, names, passes = _build_decoder(weights, target, phases, exact, functions)

    @tvm.transform.module_pass(opt_level=0, name="chat")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(passes)(mod)

    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    return Decoder(executable, names, cache_dtype(target, exact), weights.lanes)


def kernel_passes(weights: Weights, target: Target, phases: Phases, exact: bool) -> dict[str, str]:
    """{kernel: the name of the pass that scheduled it}, for the decoder that `compile_decoder` compiles.

    A kernel that the model itself brings with its schedule is not in it.
    """
    mod, _, passes = _build_decoder(weights, target, phases, exact, FUNCTIONS)
    funcs = [(g.name_hint, f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    brought = {name for name, func in funcs if not needs_schedule(func)}
    _, by = trace_schedulers(mod, passes, target)
    return {name: scheduler for name, scheduler in by.items() if name not in brought}


def _build_decoder(
    weights, target, phases, exact, functions
) -> tuple[tvm.IRModule, list[str], list[Pass]]:
    """(the decoder as a module, the names of its parameters, the passes that compile it)."""
    on_gpu = target.kind.name != "llvm"
    mod, names = chat_decoder(weights, functions, cache_dtype(target, exact), on_gpu)
    bounds = {"seq_len": weights.config.context_window_size}
    return mod, names, add_share_tensors(phases(target, exact, variable_bounds=bounds))


@tvm.transform.module_pass(opt_level=0, name="ShareTensors")
class ShareTensors:
    """One `memory.alloc_tensor` for all of a function with the same storage, offset, shape and dtype.

    After planning, the layers of a decoder take turns with a few storages, and each layer makes its tensors anew: a
    decode step of a model of 30 layers makes 302, of which 10 differ. Each costs about 0.4 microseconds. Such tensors
    are never in use at the same time, because the planner gave them the same bytes. Runs after planning and before
    KillAfterLastUse, which then keeps a tensor until the last use of all. A function with an `if` stays.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        shared = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and not has_branch(func):
                shared[gvar] = _Share().visit_expr(func)
        return shared


@relax.expr_functor.mutator
class _Share(relax.PyExprMutator):
    def __init__(self):
        super().__init__(None)
        self.allocated: list[tuple[relax.Var, list]] = []  # each tensor with what makes it

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if not isinstance(call, relax.Call) or call.op != ALLOC_IN_STORAGE:
            return super().visit_var_binding_(binding)
        place = [self.visit_expr(argument) for argument in call.args]
        for tensor, taken in self.allocated:
            if place[0].same_as(taken[0]) and structural_equal(place[1:], taken[1:]):
                return self.set_var_remap(binding.var, tensor)
        super().visit_var_binding_(binding)
        self.allocated.append((self.visit_expr(binding.var), place))
