"""Code that chapter 2 provides: names that its passes look for, and notes on the tensors that stages compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import relax, tirx

from chapters.kit.ir.relax_effects import bindings_of
from chapters.kit.pipeline.planned_storage import evaluate, tensor_bytes

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
