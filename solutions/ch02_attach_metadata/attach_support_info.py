"""Chapter 2: passes that attach what only the caller knows, and a reader for the one attribute that TVM ignores.

No pass here changes a computation. Each attaches a fact that the IR does not contain, such as a bound or a number of
stages. A pass further down the pipeline reads the fact and uses it.

The names, attributes and constructor arguments are those of MLC-LLM's `compiler_pass/attach_support_info.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from chapters.ch02_attach_metadata.given import (
    ENTRY_POINTS,
    AttachSequenceLengthPaddingFactor,  # noqa: F401  the sixth pass; chapter 9 takes it from here
    Crossing,
    Value,
    computed,
    require_bound,
    sent,
    tensors,
)
from chapters.kit.ir.relax_effects import bindings_of

# --- attributes of Relax functions ----------------------------------------------------------------


def map_relax_functions(
    mod: tvm.IRModule, rewrite: Callable[[str, relax.Function], relax.Function]
) -> tvm.IRModule:
    """Return a new module in which each Relax function `func`, named `name`, is `rewrite(name, func)`.

    Other functions, the GlobalVars and the attributes of the module stay as they are. So does `mod`.
    """
    # BEGIN exercise 2.1 (about 5 lines): rewrite the Relax functions of a copy of `mod`
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = rewrite(gvar.name_hint, func)
    return result
    # END exercise 2.1


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    """Attach an upper bound for each symbolic size, so that memory can be planned before the program runs.

    variable_bounds: name of a variable -> its largest value. The memory planner reads it as inclusive, and
    AdjustMatmulOrder as exclusive. A value of 0 or less means "unknown" and is dropped: a recurrent model has a context
    length of -1.

    Every Relax function, private ones too, gets `tir_var_upper_bound` (a dict, empty if no bound is left) and
    `tir_non_negative_var` (["vocab_size"]). They replace earlier values of these two attributes. Other attributes stay.
    The pass does not change the caller's dict, and a later change to that dict does not change the pass.
    """

    def __init__(self, variable_bounds: Mapping[str, int]):
        # BEGIN exercise 2.1 (1 line): keep the bounds that are positive
        self.bounds = {name: bound for name, bound in variable_bounds.items() if bound > 0}
        # END exercise 2.1
        self.non_negative = ["vocab_size"]

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        # BEGIN exercise 2.1 (about 3 lines): attach both attributes to every Relax function
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": self.non_negative}
        return map_relax_functions(mod, lambda _name, func: func.with_attrs(attrs))
        # END exercise 2.1


@tvm.transform.module_pass(opt_level=0, name="AttachAdditionalPrimFuncs")
class AttachAdditionalPrimFuncs:
    """Add PrimFuncs that the compiled library must contain although no Relax function calls them.

    functions: name -> PrimFunc. Each is added under its name, with this name as its `global_symbol`. The caller's
    PrimFunc stays as it is, and may be added under several names.

    Raises ValueError, with the name, if the module has another function of that name: a different PrimFunc, a Relax
    function or an external one. Replacing it would change what its callers compute. The same PrimFunc may be there
    already; a difference in `global_symbol` does not count.
    """

    def __init__(self, functions: Mapping[str, tirx.PrimFunc]):
        self.functions = dict(functions)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for name, func in self.functions.items():
            public = func.with_attr("global_symbol", name)
            if name in result and not tvm_ffi.structural_equal(
                result[name].with_attr("global_symbol", name), public
            ):
                raise ValueError(
                    f"The module already has another function {name!r}, which other functions may call: "
                    "add the PrimFunc under a name that is free."
                )
            result[name] = public
        return result


@tvm.transform.module_pass(opt_level=0, name="AttachMemoryPlanAttr")
class AttachMemoryPlanAttr:
    """Let the memory planner plan outputs of symbolic shape too.

    Every Relax function gets `relax.memory_plan_dynamic_func_output` = True. The planner removes the attribute after
    reading it. The module that the pass is given stays as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        name = "relax.memory_plan_dynamic_func_output"
        return map_relax_functions(mod, lambda _name, func: func.with_attr(name, True))


@tvm.transform.module_pass(opt_level=0, name="AttachCUDAGraphCaptureHints")
class AttachCUDAGraphSymbolicCaptureHints:
    """Attach the names of symbolic sizes that may be fixed in a CUDA graph, one graph per value that occurs.

    hints: name of a function -> names of variables. A Relax function named in `hints` gets
    `relax.rewrite_cuda_graph.capture_symbolic_vars`, and the others get nothing. A name that is not a Relax function of
    the module is ignored, so one set of hints also serves models with fewer functions.
    A later change to the caller's dict, or to a list in it, does not change the pass.
    """

    def __init__(self, hints: Mapping[str, Sequence[str]]):
        self.hints = {name: list(variables) for name, variables in hints.items()}

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        def attach(name: str, func: relax.Function) -> relax.Function:
            if name not in self.hints:
                return func
            return func.with_attr(
                "relax.rewrite_cuda_graph.capture_symbolic_vars", self.hints[name]
            )

        return map_relax_functions(mod, attach)


@tvm.transform.module_pass(opt_level=0, name="AttachPipelineParallelStages")
class AttachPipelineParallelStages:
    """Attach the number of stages into which a function that runs the layers is to be cut.

    pipeline_parallel_shards: the number of stages, 1 or more; each runs on its own devices. The Relax functions named
    in ENTRY_POINTS get `pipeline_parallel_stages` with this number. No other function does.
    """

    def __init__(self, pipeline_parallel_shards: int):
        if pipeline_parallel_shards < 1:
            raise ValueError(
                f"pipeline_parallel_shards is {pipeline_parallel_shards}: a function has at least 1 stage."
            )
        self.stages = pipeline_parallel_shards

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        def attach(name: str, func: relax.Function) -> relax.Function:
            if name not in ENTRY_POINTS:
                return func
            return func.with_attr("pipeline_parallel_stages", self.stages)

        return map_relax_functions(mod, attach)


# --- what to attach --------------------------------------------------------------------------------


def choose_attributes() -> dict[str, dict[str, Any]]:
    """Choose what to attach to `batch_prefill` and `batch_decode` of the tiny decoder, for the calls in CALLS.

    Returns the attributes of each function by its name, such as {"batch_decode": {"tir_var_upper_bound": {"n": 3}}}.
    measure_attributes(chosen) says what they reach, and MOST_BYTES, MOST_GRAPHS and LEAST_CAPTURED are the goal. No
    bound may be smaller than a size in CALLS. A function may be left out, and any attribute too.
    """
    # BEGIN exercise 2.2 (about 10 lines): a bound for which sizes, and a hint for which functions and sizes?
    # each function has bounds of its own; a bound on vocab_size lets the planner reuse one storage for every transpose
    decode = {"batch_size": 8, "context_window": 64, "vocab_size": 500}
    prefill = {"batch_size": 2, "context_window": 64, "seq_len": 24, "vocab_size": 500}
    return {
        "batch_decode": {
            "tir_var_upper_bound": decode,
            # three batch sizes, and six pairs with context_window; nearly every prompt has a length of its own
            "relax.rewrite_cuda_graph.capture_symbolic_vars": ["batch_size"],
        },
        "batch_prefill": {"tir_var_upper_bound": prefill},
    }
    # END exercise 2.2


# --- a reader for pipeline_parallel_stages --------------------------------------------------------


def crossing_tensors(func: relax.Function, starts: Sequence[relax.Var]) -> list[Crossing]:
    """Return the tensors that the stages of `func` must send each other, in the order in which they are computed.

    starts: for each stage but the first, the variable that its first binding binds. A variable that is listed twice
    begins two stages, and the first of these is empty. The last stage returns the function's result, so it uses the
    result. Every stage is given the parameters and constants, so they never cross.

    A binding that only names, packs or unpacks (`b = a`, `t = (a, b)`, `a = t[0]`, a match_cast of a variable) computes
    nothing. The tensor behind the name crosses, once, under the name of the binding that computed it. A call that
    returns a tuple computes each field, and a field crosses by itself. A call and an `if` use every variable that
    occurs in them. A call of a function defined inside `func` uses what this function captures.

    Raises ValueError for a start that no binding of `func.body` binds.
    """
    require_bound(func, starts)
    # BEGIN exercise 2.3 (about 20 lines): note for each tensor which stage computes it, and which stages use it
    held: dict[relax.Var, Value] = {}  # what each variable stands for; parameters are not in it
    stage = 0

    def value_of(expr: relax.Expr) -> Value:
        if isinstance(expr, relax.Tuple):
            return tuple(value_of(one) for one in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            whole = value_of(expr.tuple_value)
            return None if whole is None else whole[expr.index]
        if isinstance(expr, relax.Function):  # a call of it uses all that it captures
            return tuple(value_of(var) for var in relax.analysis.free_vars(expr))
        return held.get(expr) if isinstance(expr, relax.Var) else None

    for binding in bindings_of(func.body):
        stage += sum(binding.var.same_as(start) for start in starts)
        if not isinstance(binding.value, relax.Call | relax.If):
            held[binding.var] = value_of(binding.value)
            continue
        for var in relax.analysis.free_vars(binding.value):
            for tensor in tensors(held.get(var)):
                tensor.used_in.add(stage)
        held[binding.var] = computed(binding.var.name, binding.var.ty, stage)

    for tensor in tensors(value_of(func.body.body)):
        tensor.used_in.add(len(starts))
    return sent(held.values())
    # END exercise 2.3


# --- what the readers do --------------------------------------------------------------------------


def predicted_storage() -> dict[str, int]:
    """Predict what the planner allocates for `batch_decode` of the tiny decoder, in float32, with upper bounds.

    Returns three numbers. "largest": bytes of the largest storage of known size, with batch_size at most 8 and
    context_window at most 64. "largest_at_batch_16": the same with batch_size at most 16. "symbolic": how many storages
    keep a symbolic size.
    """
    # BEGIN exercise 2.4 (about 3 lines): write down the numbers before you run anything
    # a copy of the weight of gate_up_proj, which every call transposes
    gate_up_transposed = 128 * (2 * 352) * 4
    return {"largest": gate_up_transposed, "largest_at_batch_16": gate_up_transposed, "symbolic": 1}
    # END exercise 2.4


def lying_bound() -> tuple[tvm.IRModule, np.ndarray]:
    """Return a module with the functions `prefill(x)` and `score(x)`, and an array for `score`.

    Each takes one tensor R.Tensor((seq_len, 16), float32) and returns one. With the bound {"seq_len": 64} on both,
    `prefill` runs on 64 rows, and the VM refuses `score` on the array. Without the bound, `score` runs on it.
    """

    # BEGIN exercise 2.5 (about 20 lines): one name of a variable, with two meanings
    @I.ir_module
    class OneNameTwoMeanings:
        @R.function
        def prefill(x: R.Tensor(("seq_len", 16), "float32")) -> R.Tensor(
            ("seq_len", 16), "float32"
        ):
            with R.dataflow():
                out = R.nn.silu(x)
                R.output(out)
            return out

        @R.function
        def score(x: R.Tensor(("seq_len", 16), "float32")) -> R.Tensor(("seq_len", 16), "float32"):
            with R.dataflow():
                inner = R.exp(x)  # the planner reserves a storage for it; the output is not planned
                out = R.negative(inner)
                R.output(out)
            return out

    return OneNameTwoMeanings, np.ones((65, 16), "float32")
    # END exercise 2.5
