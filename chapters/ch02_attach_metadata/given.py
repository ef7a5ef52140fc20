"""What chapter 2 provides: the names that its passes look for, and the tensors of a function cut into stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import relax, tirx

from chapters.kit.ir.relax_effects import bindings_of
from chapters.kit.pipeline.planned_storage import evaluate, tensor_bytes

# The functions a serving engine calls that run layers of the model, and so can be cut into stages.
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


# --- tensors of a function that is cut into stages ------------------------------------------------


@dataclass(eq=False)
class Tensor:
    """A tensor that a stage computes. `used_in` collects the stages that use it."""

    name: str
    ty: relax.TensorType
    stage: int
    used_in: set[int] = field(default_factory=set)


# The value of an expression: a computed tensor, a tuple of values, or None if it need not be sent (parameters,
# constants, shapes, scalars).
Value = Tensor | tuple | None


def computed(name: str, ty: relax.Type, stage: int) -> Value:
    """The value of a call bound to `name` in `stage`: a Tensor, or a tuple of them named name[0], name[1], …"""
    if isinstance(ty, relax.TupleType):
        return tuple(computed(f"{name}[{i}]", one, stage) for i, one in enumerate(ty.fields))
    return Tensor(name, ty, stage) if isinstance(ty, relax.TensorType) else None


def tensors(value: Value) -> Iterator[Tensor]:
    """The tensors in `value`, however deep they are packed."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for one in value:
            yield from tensors(one)


@dataclass(frozen=True)
class Crossing:
    """A tensor that must be sent: `from_stage` computes it, `to_stages`, all later, use it (ascending)."""

    name: str
    ty: relax.TensorType
    from_stage: int
    to_stages: tuple[int, ...]

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The extents: numbers, and text where they are symbolic."""
        return tuple(int(d) if isinstance(d, tirx.IntImm) else str(d) for d in self.ty.shape)

    def bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """Its size in bytes, with each symbolic dimension replaced by `sizes[name]`; ValueError if one is missing."""
        return evaluate(tensor_bytes(self.ty), sizes or {})


def sent(values: Iterable[Value]) -> list[Crossing]:
    """A Crossing for each tensor in `values` that a later stage uses; a tensor that occurs twice has one."""
    once = dict.fromkeys(tensor for value in values for tensor in tensors(value))
    found = ((t, tuple(sorted(s for s in t.used_in if s > t.stage))) for t in once)
    return [Crossing(t.name, t.ty, t.stage, later) for t, later in found if later]


# --- where the stages begin -----------------------------------------------------------------------


def even_starts(func: relax.Function) -> list[relax.Var]:
    """Where to cut `func` into as many stages as its attribute `pipeline_parallel_stages` says (1 without it).

    Returns, for each stage but the first, the variable of its first binding. The calls are cut into runs of equal
    length, give or take one. If there are more stages than calls, some stages are empty, and a variable is returned
    more than once. Bindings that only name, pack or unpack are not counted: they launch nothing. For a function without
    calls: [].
    """
    stages = int(func.attrs.get("pipeline_parallel_stages", 1))
    calls = [b.var for b in bindings_of(func.body) if isinstance(b.value, relax.Call)]
    return [calls[len(calls) * stage // stages] for stage in range(1, stages)] if calls else []


def require_bound(func: relax.Function, starts: Sequence[relax.Var]) -> None:
    """Raise ValueError, naming them, if some of `starts` are not bound in `func.body`."""
    bound = [binding.var for binding in bindings_of(func.body)]
    unknown = [start.name for start in starts if not any(start.same_as(var) for var in bound)]
    if unknown:
        raise ValueError(
            f"No binding of the function binds {', '.join(unknown)}, so no stage begins there: "
            "give variables of `bindings_of(func.body)`, the objects themselves."
        )
