"""FuseTransposeMatmul on modules drawn at random: it never raises, is never wrong, and fires exactly where it should.

A `Draw` makes one module and, beside it, what the pass must do to it (how many matmuls become kernels, how many
operators stay) and what each result is, in NumPy float64.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.s_tir import SBlock

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import FuseTransposeMatmul

SEEDS = range(300)
NUMPY = {"bfloat16": ml_dtypes.bfloat16}
# one unit in the last place of the dtype the sum is kept in, times the length of the sum and its magnitude
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 5e-2, "bfloat16": 3e-1, "int32": 0}
DTYPES = (
    ("float32", None),
    ("float16", None),
    ("bfloat16", None),
    ("float64", None),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("int8", "int32"),
)
QUICK = tvm.target.Target({"kind": "llvm", "opt-level": 0})


@dataclass
class Value:
    """An expression of the module and the array it must be equal to, in float64."""

    expr: tvm.ir.Expr
    array: np.ndarray

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass
class Draw:
    """One random module. `fused` matmuls must become kernels; `left` counts the operators that must stay."""

    seed: int
    fused: int = 0
    left: Counter = field(default_factory=Counter)
    inputs: list[np.ndarray] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        self.dtype, self.out_dtype = self.random.choice(DTYPES)
        self.sizes = {tirx.Var(name, "int64"): size for name, size in (("b", 2), ("n", 5))}
        self.params: list[relax.Var] = []
        self.runs = True  # TVM cannot compile a matmul of unknown shape
        self.bb = relax.BlockBuilder()
        self.mod = self._build()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # --- shapes and tensors ---

    def dim(self) -> tuple[object, int]:
        """A size as the type says it and as it is: symbolic one time in four."""
        if self.chance(0.25):
            return self.random.choice(list(self.sizes.items()))
        size = self.random.choice((1, 3, 4, 6))
        return size, size

    def array(self, shape: list[int]) -> np.ndarray:
        if self.dtype == "int8":
            return self.numbers.integers(-5, 6, shape).astype("int8")
        return self.numbers.standard_normal(shape).astype(NUMPY.get(self.dtype, self.dtype))

    def param(self, dims: list[tuple[object, int]], unknown: str = "") -> Value:
        """A parameter; unknown: "", "shape" or "rank", what its type does not say."""
        array = self.array([size for _, size in dims])
        if unknown:
            ty = relax.TensorType(ndim=-1 if unknown == "rank" else len(dims), dtype=self.dtype)
        else:
            ty = relax.TensorType([said for said, _ in dims], self.dtype)
        var = relax.Var(self.random.choice(("x", "w", "k", "NT_matmul")), ty)
        self.params.append(var)
        self.inputs.append(array)
        return Value(var, array.astype("float64"))

    def constant(self, dims: list[tuple[object, int]]) -> Value:
        array = self.array([size for _, size in dims])
        return Value(relax.const(tvm.runtime.tensor(array), self.dtype), array.astype("float64"))

    # --- operators; each emits into the open block ---

    def transpose(self, w: Value, axes: list[int] | None) -> Value:
        self.left["relax.permute_dims"] += 1
        return Value(self.bb.emit(relax.op.permute_dims(w.expr, axes)), np.transpose(w.array, axes))

    def matmul(self, x: Value, y: Value) -> Value:
        self.left["relax.matmul"] += 1
        expr = self.bb.emit(relax.op.matmul(x.expr, y.expr, self.out_dtype))
        return Value(expr, np.matmul(x.array, y.array))

    def alias(self, value: Value) -> Value:
        return Value(self.bb.emit(value.expr), value.array) if self.chance(0.25) else value

    def becomes_kernel(self) -> None:
        """The matmul emitted last must be fused."""
        self.fused += 1
        self.left["relax.matmul"] -= 1

    # --- one pair and its surroundings ---

    def weight_dims(self) -> list[tuple[object, int]]:
        batch = [self.random.choice(((1, 1), (3, 3), *self.sizes.items())) for _ in range(2)]
        rank = self.random.choice((2, 2, 2, 3, 3, 4))
        return [*batch[: rank - 2], self.dim(), self.dim()]

    def activation_dims(self, transposed: list[tuple[object, int]]) -> list[tuple[object, int]]:
        """Dimensions of an x that can be multiplied by a tensor with dimensions `transposed`."""
        batch, k = transposed[:-2], transposed[-2]
        if self.chance(0.2):
            return [k]
        own = [dim if self.chance(0.6) else (1, 1) for dim in batch]
        own = own[self.random.randint(0, len(own)) :] if self.chance(0.4) else own
        more = [self.dim()] if self.chance(0.3) else []
        if more and len(own) < len(batch):
            more = []
        return [*more, *own, self.dim(), k]

    def axes(self, rank: int) -> tuple[list[int] | None, bool]:
        """A spelling of a permutation, and whether it exchanges the last two of `rank` dimensions."""
        order = list(range(rank))
        if self.chance(0.7):
            order[-1], order[-2] = order[-2], order[-1]
            if rank == 2 and self.chance(0.4):
                return None, True
        elif self.chance(0.4):
            order = order[::-1]
            if self.chance(0.7):
                return None, rank == 2
        else:
            self.random.shuffle(order)
        swaps = order == [*range(rank - 2), rank - 1, rank - 2]
        return [axis - rank if self.chance(0.4) else axis for axis in order], swaps

    def pair(self) -> None:
        """matmul(x, permute_dims(w)) in one of the situations that an ordinary module has."""
        dims = self.weight_dims()
        unknown = self.random.choice(("", "", "", "", "", "", "shape", "rank"))
        axes, swaps = self.axes(len(dims))
        if unknown == "rank":  # TVM itself refuses axes for a tensor of unknown rank
            axes, swaps = None, len(dims) == 2
        order = range(len(dims))[::-1] if axes is None else [axis % len(dims) for axis in axes]
        transposed = [dims[axis] for axis in order]
        where = self.random.choice(("same", "same", "same", "later", "split", "plain"))
        known = all(isinstance(said, int) for said, _ in dims)
        w = self.constant(dims) if known and self.chance(0.2) else self.param(dims, unknown)
        typed = isinstance(w.expr, tvm.ir.GenericConst) or not unknown
        self.runs = self.runs and typed
        if self.chance(0.15) and len(dims) == 2:
            x = w  # x @ x.T
            if not (swaps or dims[0][1] == dims[1][1]):
                return
        else:
            x = self.param(self.activation_dims(transposed))
        if not swaps and not self._can_multiply(x, transposed):
            return
        getattr(self, "_" + where)(w, x, axes, swaps and typed)

    @staticmethod
    def _can_multiply(x: Value, transposed: list[tuple[object, int]]) -> bool:
        return x.array.shape[-1] == transposed[-2][1]

    def _same(self, w: Value, x: Value, axes: list[int] | None, fires: bool) -> None:
        """All in one dataflow block, perhaps with w computed there, perhaps with other users of the transpose."""
        with self.bb.dataflow():
            if self.chance(0.2):
                w = Value(self.bb.emit(relax.op.negative(w.expr)), -w.array)
            transpose = self.alias(self.transpose(w, axes))
            self.out(self.matmul(x, transpose))
            if fires:
                self.becomes_kernel()
            kept = self._other_users(x, transpose, fires)
        if fires and not kept:
            self.left["relax.permute_dims"] -= 1

    def _other_users(self, x: Value, transpose: Value, fires: bool) -> bool:
        """Emit further uses of the transpose; returns whether one of them needs it materialised."""
        kept = False
        if self.chance(0.3):
            self.out(self.matmul(x, self.alias(transpose)))
            if fires:
                self.becomes_kernel()
        if self.chance(0.2):
            self.out(Value(self.bb.emit(relax.op.negative(transpose.expr)), -transpose.array))
            kept = True
        if self.chance(0.2):
            self.out(transpose)
            kept = True
        square = transpose.array.shape[-1] == transpose.array.shape[-2]
        if square and self.chance(0.4):  # the transpose is both operands
            self.out(self.matmul(transpose, transpose))
            if fires:
                self.becomes_kernel()
            kept = True
        return kept

    def _later(self, w: Value, x: Value, axes: list[int] | None, fires: bool) -> None:
        """The transpose is the output of an earlier dataflow block; w is a parameter, so it can be copied."""
        with self.bb.dataflow():
            transpose = self.transpose(w, axes)
            transpose = Value(self.bb.emit_output(transpose.expr), transpose.array)
        x = self.between(x)
        with self.bb.dataflow():
            self.out(self.matmul(x, self.alias(transpose)))
        if fires:
            self.becomes_kernel()
            self.left["relax.permute_dims"] -= 1

    def _split(self, w: Value, x: Value, axes: list[int] | None, _fires: bool) -> None:
        """As `_later`, but w is computed in the earlier block and out of sight in the later one."""
        with self.bb.dataflow():
            w = Value(self.bb.emit(relax.op.negative(w.expr)), -w.array)
            transpose = self.transpose(w, axes)
            transpose = Value(self.bb.emit_output(transpose.expr), transpose.array)
        x = self.between(x)
        with self.bb.dataflow():
            self.out(self.matmul(x, transpose))

    def between(self, x: Value) -> Value:
        """An operator outside dataflow blocks: BlockBuilder merges two blocks with nothing between them."""
        return Value(self.bb.emit(relax.op.negative(x.expr)), -x.array)

    def _plain(self, w: Value, x: Value, axes: list[int] | None, _fires: bool) -> None:
        """Outside any dataflow block, where FuseOpsByPattern does not look."""
        self.results.append(self.matmul(x, self.transpose(w, axes)))

    def out(self, value: Value) -> None:
        """Make `value`, of the open dataflow block, a result of the function."""
        self.results.append(Value(self.bb.emit_output(value.expr), value.array))

    # --- the module ---

    def _build(self) -> tvm.IRModule:
        self.extra_functions()
        name = self.random.choice(("main", "main", "decode"))
        # the parameters are known only at the end
        with self.bb.function(name, attrs={"num_input": 1, "global_symbol": name}):
            for _ in range(self.random.randint(1, 3)):
                self.pair()
            if not self.results:
                self.results.append(self.constant([(2, 2)]))
            self.bb.emit_func_output(relax.Tuple([r.expr for r in self.results]), self.params)
        self.name = name
        return self.bb.get()

    def extra_functions(self) -> None:
        """Names that the pass would choose too, and functions it must not touch."""
        if self.chance(0.3):
            a = te.placeholder((4,), "float32", name="a")
            kernel = te.create_prim_func([a, te.compute((4,), lambda i: a[i] + 1.0)])
            self.bb.add_func(kernel.with_attr("global_symbol", "NT_matmul"), "NT_matmul")
        if self.chance(0.3):
            self._function("fused_relax_permute_dims_relax_matmul", {})
            self.fused += 1
        if self.chance(0.3):
            self._function("claimed", {"Composite": "cublas.matmul_transposed", "Primitive": True})
            self.left["relax.permute_dims"] += 1
            self.left["relax.matmul"] += 1

    def _function(self, name: str, attrs: dict) -> None:
        x, w = (relax.Var(v, relax.TensorType((3, 4), "float32")) for v in "xw")
        with self.bb.function(name, [x, w], attrs=attrs, private=True):
            with self.bb.dataflow():
                transpose = self.bb.emit(relax.op.permute_dims(w))
                out = self.bb.emit_output(relax.op.matmul(x, transpose))
            self.bb.emit_func_output(out)


def calls(mod: tvm.IRModule) -> Counter:
    """How often each operator is called, and "kernel" for calls of a kernel that the pass made."""
    found: Counter = Counter()

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            is_kernel = expr.op.name == "relax.call_tir" and _is_nt_matmul(mod[expr.args[0]])
            found["kernel" if is_kernel else expr.op.name] += 1

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


def _is_nt_matmul(func: tirx.PrimFunc) -> bool:
    names: list[str] = []
    tvm_ffi.structural_walk(func.body, (SBlock, lambda block: names.append(block.name_hint)))
    return "NT_matmul" in names


def run(mod: tvm.IRModule, name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    lifted = relax.transform.LambdaLift()(mod)
    vm = relax.VirtualMachine(tvm.compile(lifted, target=QUICK), tvm.cpu())
    result = vm[name](*[tvm.runtime.tensor(a) for a in arrays])
    return [r.numpy() for r in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_module(seed):
    draw = Draw(seed)
    relax.analysis.well_formed(draw.mod)
    given, before = draw.mod, draw.mod.clone()
    result = FuseTransposeMatmul()(given)

    assert tvm_ffi.structural_equal(given, before), "the input was changed"
    relax.analysis.well_formed(result)
    found = calls(result)
    assert found["kernel"] == draw.fused
    for operator in ("relax.matmul", "relax.permute_dims"):
        assert found[operator] == draw.left[operator], operator
    names = {gvar.name_hint for gvar in result.get_global_vars()}
    extra = names - {gvar.name_hint for gvar in before.get_global_vars()}
    assert all(name.startswith("NT_matmul") for name in extra), "a composite stayed"
    assert str(result[draw.name].attrs) == str(before[draw.name].attrs)
    assert tvm_ffi.structural_equal(FuseTransposeMatmul()(result), result), "not idempotent"
    if draw.runs:
        for number, (yours, expected) in enumerate(
            zip(run(result, draw.name, draw.inputs), draw.results, strict=True)
        ):
            tolerance = TOLERANCE[yours.dtype.name] if yours.dtype.name != "int8" else 0
            np.testing.assert_allclose(
                yours.astype("float64"), expected.array, tolerance, tolerance, err_msg=str(number)
            )


def test_the_draws_cover_what_they_claim():
    """Most modules run and fire; each dtype, and both outcomes, are drawn often."""
    draws = [Draw(seed) for seed in SEEDS]
    assert sum(d.runs for d in draws) > len(draws) / 2
    assert sum(d.fused > 0 for d in draws) > len(draws) / 2
    assert sum(d.left["relax.matmul"] > 0 for d in draws) > len(draws) / 5
    assert set(Counter((d.dtype, d.out_dtype) for d in draws)) == set(DTYPES)
