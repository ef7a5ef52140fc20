"""Chapter 1: walk over a module to measure it, then walk over it to rewrite it.

A visitor counts calls, launches and bytes. They make up the scoreboard that every later chapter uses. A mutator then
makes the first rewrite of the course, and two more passes show what a pass must not do.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Op
from tvm.relax.expr_functor import PyExprMutator, mutator, visitor

from chapters.ch01_walk_the_ir.given import (
    FREE,
    BindingVisitor,
    CallVisitor,
    call_name,
    element_bits,
    extents,
    to_kernels,
    weighed,
)
from chapters.kit.ir.relax_effects import IN_PLACE, calls_in
from chapters.kit.measure.pass_trace import LAUNCHING
from chapters.kit.measure.scoreboard import Row, Scoreboard

# --- calls ----------------------------------------------------------------------------------------


@visitor
class CallCounter(CallVisitor):
    """Counts the calls in every function it visits. `self.calls` maps each `call_name` to its count."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def visit_call_(self, call: relax.Call) -> None:
        """Count `call`, and the calls inside its arguments."""
        # BEGIN exercise 1.1 (2 lines): count this call, then go on into it
        self.calls[call_name(call)] += 1
        super().visit_call_(call)
        # END exercise 1.1


def count_calls(mod: tvm.IRModule) -> dict[str, int]:
    """Count the calls in all Relax functions of `mod`; returns a dict from `call_name` to the number of calls.

    Counts calls in private functions, in both branches of an `if`, in a function defined inside another, and in
    another call's arguments. Does not look into PrimFuncs, nor into the arithmetic in shapes. Returns {} for a module
    without Relax functions.
    """
    # BEGIN exercise 1.1 (about 5 lines): one counter over every Relax function
    counter = CallCounter()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            counter.visit_expr(func)
    return dict(counter.calls)
    # END exercise 1.1


# --- bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """The bytes that one call reads and writes. `var`: the variable bound to its result; `call`: its `call_name`."""

    var: str
    call: str
    read: int
    written: int


def type_bytes(ty: tvm.ir.Type, sizes: dict[str, int]) -> int:
    """Return the bytes that a value of type `ty` takes in memory.

    A tensor takes its bits, rounded up to whole bytes once: five int4 take 3 bytes. A tuple takes the sum of its
    fields. Scalars, shapes and functions take 0. `sizes` gives each symbolic variable's value by name. Raises
    ValueError where `extents` and `element_bits` do.
    """
    # BEGIN exercise 1.2 (about 6 lines): a tuple, a tensor, anything else
    if isinstance(ty, relax.TupleType):
        return sum(type_bytes(field, sizes) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return 0
    return (element_bits(ty) * math.prod(extents(ty, sizes)) + 7) // 8
    # END exercise 1.2


def tensors_read(call: relax.Call) -> list[relax.Expr]:
    """Return the arguments of `call` that are tensors, or variables that hold tuples of tensors, in order.

    A tuple written out in the call, as in `call_tir`, stands for its fields, which may be tuples again. An argument
    that is given twice is listed once.
    """
    # BEGIN exercise 1.2 (about 8 lines): look into tuples, keep tensors, no argument twice
    pending, found = list(call.args), {}
    while pending:
        argument = pending.pop(0)
        if isinstance(argument, relax.Tuple):
            pending = [*argument.fields, *pending]
        elif isinstance(argument.ty, (relax.TensorType, relax.TupleType)):
            found[argument] = True
    return list(found)
    # END exercise 1.2


@visitor
class TrafficMeter(BindingVisitor):
    """Appends the traffic of each call that it visits to `self.rows`."""

    def __init__(self, sizes: dict[str, int]):
        super().__init__()
        self.sizes = sizes
        self.rows = []

    def note(self, var: relax.Var, value: relax.Expr) -> None:
        """Append one Traffic to `self.rows` if `value`, bound to `var`, is a call; append nothing if it is not."""
        # BEGIN exercise 1.2 (about 7 lines): what does the call read, what does it write?
        if not isinstance(value, relax.Call):
            return
        read = written = 0
        if isinstance(value.op, Op) and value.op.name not in FREE:
            read = sum(type_bytes(tensor.ty, self.sizes) for tensor in tensors_read(value))
            written = type_bytes(var.ty, self.sizes)
        self.rows.append(Traffic(var.name, call_name(value), read, written))
        # END exercise 1.2


def binding_bytes(func: relax.Function, sizes: dict[str, int]) -> list[Traffic]:
    """Return the bytes that each call of `func` reads and writes, in the order of the text.

    There is one entry per binding whose value is a call, in both branches of an `if` too. Aliases, tuples and items of
    tuples have none. A call of an operator (`call_tir` is one) reads each of its tensors once and writes its result.
    These calls move 0 bytes: an operator in `FREE`; another Relax function, whose bytes are in its own list; and a
    packed function called directly, because the IR does not say what it reads or writes. An argument updated in place
    is read once and written once. Raises ValueError where `type_bytes` does.
    """
    meter = TrafficMeter(sizes)
    meter.visit_expr(func)
    return meter.rows


# --- launches, and the scoreboard -----------------------------------------------------------------


def launches(mod: tvm.IRModule) -> dict[str, int]:
    """Count the kernel launches in the code of each Relax function, after lowering; returns a dict by name.

    Every Relax function of `mod` has an entry; one that launches nothing has 0. Both branches of an `if` count. The
    launches of other functions that a function calls do not. Raises ValueError where `to_kernels` does.
    """
    # BEGIN exercise 1.3 (about 8 lines): lower, count calls function by function, keep LAUNCHING
    found = {}
    for name, func in to_kernels(mod).functions_items():
        if isinstance(func, relax.Function):
            counter = CallCounter()
            counter.visit_expr(func)
            kernels = (n for call, n in counter.calls.items() if call.split(":")[0] in LAUNCHING)
            found[name.name_hint] = sum(kernels)
    return found
    # END exercise 1.3


def scoreboard(mod: tvm.IRModule, sizes: dict[str, int] | None = None) -> Scoreboard:
    """Measure `mod`: its calls as it is, its launches and bytes after lowering to kernels.

    sizes: a value for each symbolic variable, by name. Without it, bytes are not counted. `compare` of
    chapters.kit.measure.scoreboard shows two scoreboards side by side. Raises ValueError where `type_bytes` and
    `to_kernels` do.
    """
    rows = tuple(Row(name, count) for name, count in launches(mod).items())
    if sizes is not None:
        lowered = to_kernels(mod)
        rows = tuple(weighed(row, binding_bytes(lowered[row.function], sizes)) for row in rows)
    return Scoreboard(rows, count_calls(mod))


# --- the first rewrite ----------------------------------------------------------------------------

PERMUTE_DIMS = Op.get("relax.permute_dims")


def axes_cancel(inner: list[int] | None, outer: list[int] | None) -> bool:
    """Return whether permute_dims(permute_dims(x, inner), outer) is x, for every x that has these dimensions.

    Both are what `call.attrs.axes` holds: None, which reverses all dimensions, or a list in which element i says which
    dimension of the argument becomes dimension i, and -1 is the last dimension. If both are None, the number of
    dimensions is not known here.
    """
    # BEGIN exercise 1.4 (about 8 lines): compose the two and compare with doing nothing
    if inner is None and outer is None:
        return True
    rank = len(outer if inner is None else inner)

    def full(axes):
        return list(reversed(range(rank))) if axes is None else [int(a) % rank for a in axes]

    first, second = full(inner), full(outer)
    return [first[axis] for axis in second] == list(range(rank))
    # END exercise 1.4


@mutator
class TransposeDropper(PyExprMutator):
    """Replaces permute_dims(permute_dims(x, inner), outer) by x where the two cancel, in one function."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return the expression that takes the place of `call`."""
        # BEGIN exercise 1.4 (about 14 lines): x if this and the call before it cancel, else the call
        call = super().visit_call_(call)
        if call.op != PERMUTE_DIMS:
            return call
        inner, followed = call.args[0], []
        while isinstance(inner, relax.Var) and (bound := self.lookup_binding(inner)) is not None:
            followed.append(inner)
            inner = bound
        if not isinstance(inner, relax.Call) or inner.op != PERMUTE_DIMS:
            return call
        x = inner.args[0]
        # an ordinary Var may be read after the dataflow block that binds it; a DataflowVar may not
        may_be_after = any(not isinstance(var, relax.DataflowVar) for var in followed)
        visible = not (may_be_after and isinstance(x, relax.DataflowVar))
        return x if visible and axes_cancel(inner.attrs.axes, call.attrs.axes) else call
        # END exercise 1.4


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    """A pass: permute_dims(permute_dims(x, inner), outer) becomes x where the two cancel, in Relax functions.

    Finds a pair at least where both calls are in one binding block, inside or outside of dataflow, the inner result is
    not an output of that block, and no call in the function can write into a tensor. There may be aliases of the inner
    result between the two. The inner call is removed unless something else uses it.

    The result is well-formed and computes what the module computed. A function without two transposes in a row comes
    back as it was, unused bindings included. All functions and their attributes stay, those of the module, and the
    outputs of dataflow blocks. In a function that is rewritten, other unused bindings may go, except those that print
    or check something.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Return a new module; `mod` is left as it was."""
        # BEGIN exercise 1.4 (about 14 lines): rewrite the functions in which x cannot have changed
        result = mod.clone()
        for name, func in mod.functions_items():
            if not isinstance(func, relax.Function) or relax.analysis.contains_impure_call(func):
                continue
            callees = [call.op for call in calls_in(func)]
            # another function may write into its arguments
            if any(not isinstance(op, Op) or op.name in IN_PLACE for op in callees):
                continue
            new = TransposeDropper(mod).visit_expr(func)  # one each: functions may share Vars
            if not tvm_ffi.structural_equal(new, func):
                result[name] = relax.analysis.remove_all_unused(new)
        return result
        # END exercise 1.4


# --- what a pass must not do ----------------------------------------------------------------------


@tvm.transform.module_pass(opt_level=0, name="AttachOrigin")
class AttachOrigin:
    """A pass: attaches the attribute `course.origin` to every Relax function. All else stays as it is."""

    def __init__(self, origin: str):
        self.origin = origin

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Return a new module; `mod` is left as it was."""
        # BEGIN exercise 1.5 (about 5 lines): the same, without touching the caller's module
        result = mod.clone()
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result[name] = func.with_attr("course.origin", self.origin)
        return result
        # END exercise 1.5


def predicted_launches() -> dict[str, int]:
    """Predict the launches of `main` of Small (given) and of `decode` of the course's tiny three-layer decoder."""
    # BEGIN exercise 1.6 (1 line): two numbers; write them down before you run anything
    return {"small": 7, "decode": 63}
    # END exercise 1.6


def counterexample() -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Return a module that DropAnyDoubleTranspose breaks and DropDoubleTranspose does not, and its inputs.

    The module is well-formed. Its function `main` takes the inputs, in order, and returns one tensor. The careless pass
    must change the numbers of this tensor, and not its shape.
    """
    # BEGIN exercise 1.7 (about 10 lines): which two transposes do not cancel?
    x = relax.Var("x", relax.TensorType((3, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, [1, 2, 0]))
            out = builder.emit_output(relax.op.permute_dims(turned, [1, 2, 0]))
        builder.emit_func_output(out)
    return builder.get(), [np.arange(27, dtype="float32").reshape(3, 3, 3)]
    # END exercise 1.7
