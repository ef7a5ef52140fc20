"""Code that chapter 2 provides: names that its passes look for, notes on the tensors that stages compute, the calls for
which exercise 2.2 chooses attributes, and the pass whose output is not in the IR.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

import tvm
from tvm import relax, tirx

from chapters.kit.decoder.llama import decoder
from chapters.kit.draw.table import Table
from chapters.kit.ir.relax_effects import bindings_of, calls_of_module
from chapters.kit.measure.captured_kernels import count_captured, sizes_of_graphs
from chapters.kit.passes.planned_storage import evaluate, plan_storage, tensor_bytes

# The functions that run layers of the model when a serving engine calls them. These can be cut into stages.
ENTRY_POINTS = (
    "prefill",
    "decode",
    "prefill_to_last_hidden_states",
    "decode_to_last_hidden_states",
    "batch_prefill",
    "batch_decode",
    "batch_verify",
    "batch_prefill_to_last_hidden_states",
    "batch_decode_to_last_hidden_states",
    "batch_verify_to_last_hidden_states",
)

# The kernels that need a multiple of 4 tokens on sm_100a.
PADDED_KERNELS = (
    "cutlass.groupwise_scaled_gemm_e4m3fn_e4m3fn",
    "cutlass.groupwise_scaled_bmm_e4m3fn_e4m3fn",
)


# --- the tensors of a function that is cut into stages --------------------------------------------


@dataclass(eq=False)
class Tensor:
    """A tensor that `stage` computes. `used_in` collects the stages that use it."""

    name: str
    ty: relax.TensorType
    stage: int
    used_in: set[int] = field(default_factory=set)


# What an expression stands for: a computed tensor, a tuple of values, or None if it is never sent (a parameter, a
# constant, a shape, a scalar).
Value = Tensor | tuple | None


def computed(name: str, ty: relax.Type, stage: int) -> Value:
    """Return the value of a call of type `ty`, bound to `name` in `stage`.

    It is a new Tensor, or a tuple of them named name[0], name[1], …; None if `ty` is neither a tensor nor a tuple type.
    """
    if isinstance(ty, relax.TupleType):
        return tuple(computed(f"{name}[{i}]", one, stage) for i, one in enumerate(ty.fields))
    return Tensor(name, ty, stage) if isinstance(ty, relax.TensorType) else None


def tensors(value: Value) -> Iterator[Tensor]:
    """Yield the tensors in `value`, however deep its tuples are; none for None."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for one in value:
            yield from tensors(one)


@dataclass(frozen=True)
class Crossing:
    """A tensor that must be sent: `from_stage` computes it, and the later `to_stages`, in ascending order, use it."""

    name: str
    ty: relax.TensorType
    from_stage: int
    to_stages: tuple[int, ...]

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Its dimensions: a number each, or a text for a symbolic one."""
        return tuple(int(d) if isinstance(d, tirx.IntImm) else str(d) for d in self.ty.shape)

    def bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """Return its size in bytes. `sizes` gives each symbolic dimension by name; ValueError if one is missing."""
        return evaluate(tensor_bytes(self.ty), sizes or {})


def sent(values: Iterable[Value]) -> list[Crossing]:
    """Return one Crossing per tensor in `values` that a stage after its own uses, in the order of `values`."""
    once = dict.fromkeys(tensor for value in values for tensor in tensors(value))
    found = ((t, tuple(sorted(s for s in t.used_in if s > t.stage))) for t in once)
    return [Crossing(t.name, t.ty, t.stage, later) for t, later in found if later]


# --- where stages begin ---------------------------------------------------------------------------


def even_starts(func: relax.Function) -> list[relax.Var]:
    """Return where to cut `func` into stages of equally many calls, give or take one.

    The number of stages is the attribute `pipeline_parallel_stages`; 1 without it. The result holds, for each stage but
    the first, the variable that its first binding binds. With more stages than calls, some stages are empty, and a
    variable occurs more than once. Bindings that only name, pack or unpack are not counted, because they launch
    nothing. Returns [] for a function without calls.
    """
    stages = int(func.attrs.get("pipeline_parallel_stages", 1))
    calls = [b.var for b in bindings_of(func.body) if isinstance(b.value, relax.Call)]
    return [calls[len(calls) * stage // stages] for stage in range(1, stages)] if calls else []


def require_bound(func: relax.Function, starts: Sequence[relax.Var]) -> None:
    """Raise ValueError, with their names, if no binding of `func.body` binds some of `starts`."""
    bound = [binding.var for binding in bindings_of(func.body)]
    unknown = [start.name for start in starts if not any(start.same_as(var) for var in bound)]
    if unknown:
        raise ValueError(
            f"No binding of the function binds {', '.join(unknown)}, so no stage begins there: "
            "give variables of `bindings_of(func.body)`, the objects themselves."
        )


# --- the calls for which exercise 2.2 chooses attributes ------------------------------------------

# One minute of a server: for each function, how many calls with which batch_size, context_window and seq_len. The
# server makes its caches longer in steps of 16 positions.
MINUTE = {
    "batch_prefill": [
        (1, 1, 16, 7),
        (1, 2, 16, 12),
        (1, 1, 32, 24),
        (1, 2, 32, 19),
        (1, 1, 48, 15),
        (1, 1, 64, 9),
    ],
    "batch_decode": [(6, 1, 16), (8, 3, 16), (10, 3, 32), (14, 8, 32), (12, 8, 48), (10, 8, 64)],
}
NAMES = ("batch_size", "context_window", "seq_len")
# by function: (how many calls, the sizes in each of them)
CALLS: Mapping[str, list[tuple[int, dict[str, int]]]] = {
    function: [
        (n, {**dict(zip(NAMES, sizes, strict=False)), "vocab_size": 500}) for n, *sizes in calls
    ]
    for function, calls in MINUTE.items()
}
MOST_BYTES, MOST_GRAPHS, LEAST_CAPTURED = 1_250_000, 30, 0.65


@dataclass(frozen=True)
class Reached:
    """What attributes do for the calls of CALLS.

    lies: one text per bound that a call exceeds. bytes: what the largest call of each function allocates, added up.
    captured: the share of all kernel launches that are replayed from a CUDA graph. graphs: how many are recorded.
    """

    lies: tuple[str, ...]
    bytes: int
    captured: float
    graphs: int

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def table(self) -> Table:
        rows = [
            ("bounds that a call exceeds", "; ".join(self.lies) or "none", "none"),
            ("bytes allocated", f"{self.bytes:,}", f"at most {MOST_BYTES:,}"),
            ("launches from graphs", f"{self.captured:.1%}", f"at least {LEAST_CAPTURED:.0%}"),
            ("graphs recorded", self.graphs, f"at most {MOST_GRAPHS}"),
        ]
        return Table(("", "reached", "goal"), rows)


def measure_attributes(chosen: Mapping[str, Mapping[str, Any]]) -> Reached:
    """Attach `chosen`, the attributes of each function of CALLS by name, to the tiny decoder, and ask TVM what they do.

    Runs the memory planner and RewriteCUDAGraph, and nothing else. Raises ValueError for a function that CALLS lacks.
    """
    if unknown := set(chosen) - set(CALLS):
        raise ValueError(
            f"CALLS has no function {', '.join(sorted(unknown))}, but {', '.join(CALLS)}."
        )
    mod, _ = decoder("tiny", functions=CALLS)
    for name, attributes in chosen.items():
        mod[name] = mod[name].with_attrs(dict(attributes))
    lies, allocated, graphs, launches, replayed = [], 0, 0, 0, 0
    plan = plan_storage(mod)
    for name, calls in CALLS.items():
        bounds = dict((mod[name].attrs or {}).get("tir_var_upper_bound", {}))
        largest = {size: max(sizes[size] for _, sizes in calls) for size in calls[0][1]}
        lies += [
            f"{name}: {size} is {value}, and the bound {int(bounds[size])}"
            for size, value in largest.items()
            if size in bounds and value > int(bounds[size])
        ]
        own = [storage for storage in plan.storages if storage.function == name]
        allocated += max(sum(storage.bytes(sizes) for storage in own) for _, sizes in calls)
        for recorded_for in sizes_of_graphs(mod, name):
            graphs += len({tuple(sizes[size] for size in recorded_for) for _, sizes in calls})
        kernels, times = count_captured(mod, name), sum(n for n, _ in calls)
        launches += times * kernels.kernels
        replayed += times * kernels.captured
    return Reached(tuple(lies), allocated, replayed / launches, graphs)


# --- metadata beside the module -------------------------------------------------------------------


@tvm.transform.module_pass(opt_level=0, name="AttachSequenceLengthPaddingFactor")
class AttachSequenceLengthPaddingFactor:
    """Tell the runtime that it must pad the number of tokens to a multiple.

    On CUDA with arch sm_100a, the kernels in PADDED_KERNELS need a multiple of 4 tokens, if a Relax function calls them
    through R.call_dps_packed. The pass changes no IR. Its output is an entry of the dict `metadata`:
    metadata["seqlen_padding_factor"] becomes 4, or the least common multiple of 4 and the factor that was there.
    If no such kernel is called, and for any other target, the dict stays as it is.
    """

    def __init__(self, target: tvm.target.Target, metadata: MutableMapping[str, Any]):
        self.target = target
        self.metadata = metadata

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name == "cuda" and self.target.attrs.get("arch") == "sm_100a":
            packed = tvm.ir.Op.get("relax.call_dps_packed")
            called = (call.args[0] for call in calls_of_module(mod) if call.op == packed)
            if any(str(function.global_symbol) in PADDED_KERNELS for function in called):
                before = self.metadata.get("seqlen_padding_factor", 1)
                self.metadata["seqlen_padding_factor"] = lcm(before, 4)
        return mod
