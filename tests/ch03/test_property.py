"""FuseTransposeMatmul on modules drawn at random: it never raises, is never wrong, and fires exactly where it should.

A `Draw` makes one module and, beside it, what the pass must do to it (how many matmuls become kernels, how many
operators stay) and what each result is, in NumPy float64. Hypothesis makes the choices, always the same ones, and looks
for the simplest module that fails: the first item of each list, and no optional part.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import tvm
from hypothesis import note
from tvm import relax, tirx

from chapters.ch03_transpose_matmul.checks import count_calls
from chapters.ch04_add_rms_norm import check_cases as add_norm
from chapters.checking.draws import CHOICES
from chapters.checking.judge import judge_pass
from chapters.kit.cases.relax_text import kernel, relax_module
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import FuseTransposeMatmul
from tests.support.kernels import try_draws

PARTS = range(6)  # each with choices of its own, so that they can run side by side
# one unit in the last place of the dtype the sum is kept in, times the length of the sum and its magnitude
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 5e-2, "bfloat16": 3e-1}  # integers: 0
DTYPES = (
    *(("float32", None), ("float16", None), ("bfloat16", None), ("float64", None)),
    *(("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32")),
)
# names that the pass would choose too, and a function that it must not touch
FUSED, CLAIMED = "fused_relax_permute_dims_relax_matmul", "claimed"
KERNEL = kernel("NT_matmul(a, b)", (4,), "b[at] = a[at] + 1.0").replace("private=True, ", "")
OTHERS = relax_module(f"""
{KERNEL}
@private
def {FUSED}(x: (3, 4), w: (3, 4)):
    out = R.matmul(x, R.permute_dims(w))

@private
def {CLAIMED}(x: (3, 4), w: (3, 4)):
    R.func_attr({{"Composite": "cublas.matmul_transposed", "Primitive": True}})
    out = R.matmul(x, R.permute_dims(w))
""")
Dims = list[tuple[tirx.Var | int, int]]  # sizes as a type says them and as they are


@dataclass
class Value:
    """An expression of the module and the array it must be equal to, in float64."""

    expr: tvm.ir.Expr
    array: np.ndarray


@dataclass
class Draw:
    """One random module. `fused`: how many matmuls must become kernels. `left`: how many of each operator must stay."""

    choices: random.Random
    fused: int = 0
    left: Counter = field(default_factory=Counter)
    inputs: list[np.ndarray] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)

    def __post_init__(self):
        self.numbers = np.random.default_rng(0)
        self.dtype, self.out_dtype = self.choices.choice(DTYPES)
        self.sizes = [(tirx.Var(name, "int64"), size) for name, size in (("b", 2), ("n", 5))]
        self.params: list[relax.Var] = []
        self.runs = True  # TVM cannot compile a matmul of unknown shape
        self.name = self.choices.choice(("main", "main", "decode"))
        self.bb = relax.BlockBuilder(self.others())
        # the parameters are known only at the end
        with self.bb.function(self.name, attrs={"num_input": 1, "global_symbol": self.name}):
            for _ in range(self.choices.randint(1, 3)):
                self.pair()
            if not self.results:
                self.results.append(self.constant([(2, 2)]))
            self.bb.emit_func_output(relax.Tuple([r.expr for r in self.results]), self.params)
        self.mod = self.bb.get()

    def chance(self, share: float) -> bool:
        return self.choices.randrange(100) >= 100 * (1 - share)

    def others(self) -> tvm.IRModule:
        chosen = {var.name_hint: func for var, func in OTHERS.functions_items() if self.chance(0.3)}
        self.fused += FUSED in chosen
        for operator in ("permute_dims", "matmul"):
            self.left[operator] += CLAIMED in chosen
        return tvm.IRModule(chosen)

    # --- tensors ---

    def array(self, dims: Dims) -> np.ndarray:
        shape = [size for _, size in dims]
        if self.dtype == "int8":
            return self.numbers.integers(-5, 6, shape).astype("int8")
        return self.numbers.standard_normal(shape).astype(self.dtype)

    def param(self, dims: Dims, unknown: str = "") -> Value:
        """A parameter; unknown: "", "shape" or "rank", what its type does not say."""
        ty = relax.TensorType([said for said, _ in dims], self.dtype)
        if unknown:
            ty = relax.TensorType(ndim=-1 if unknown == "rank" else len(dims), dtype=self.dtype)
        self.params.append(relax.Var(self.choices.choice(("x", "w", "k", "NT_matmul")), ty))
        self.inputs.append(self.array(dims))
        return Value(self.params[-1], self.inputs[-1].astype("float64"))

    def constant(self, dims: Dims) -> Value:
        array = self.array(dims)
        return Value(relax.const(tvm.runtime.tensor(array), self.dtype), array.astype("float64"))

    # --- operators; each emits into the open block ---

    def transpose(self, w: Value, axes: list[int] | None) -> Value:
        self.left["permute_dims"] += 1
        return Value(self.bb.emit(relax.op.permute_dims(w.expr, axes)), np.transpose(w.array, axes))

    def matmul(self, x: Value, y: Value, fires: bool = False) -> Value:
        """fires: whether it must be fused."""
        self.fused += fires
        self.left["matmul"] += not fires
        expr = self.bb.emit(relax.op.matmul(x.expr, y.expr, self.out_dtype))
        return Value(expr, np.matmul(x.array, y.array))

    def negative(self, value: Value) -> Value:
        return Value(self.bb.emit(relax.op.negative(value.expr)), -value.array)

    def alias(self, value: Value) -> Value:
        return Value(self.bb.emit(value.expr), value.array) if self.chance(0.25) else value

    def output(self, value: Value) -> Value:
        """Let `value` leave the open dataflow block."""
        return Value(self.bb.emit_output(value.expr), value.array)

    # --- one pair and its surroundings ---

    def dim(self) -> tuple[tirx.Var | int, int]:
        """A size, symbolic one time in four."""
        if self.chance(0.25):
            return self.choices.choice(self.sizes)
        return (self.choices.choice((1, 3, 4, 6)),) * 2

    def weight_dims(self) -> Dims:
        batch = self.choices.choice((0, 0, 0, 1, 1, 2))
        of_batch = [self.choices.choice(((1, 1), (3, 3), *self.sizes)) for _ in range(batch)]
        return [*of_batch, self.dim(), self.dim()]

    def activation_dims(self, transposed: Dims) -> Dims:
        """Dimensions of an x that can be multiplied by a tensor with dimensions `transposed`."""
        *batch, k, _ = transposed
        if self.chance(0.2):
            return [k]
        own = [dim if self.chance(0.6) else (1, 1) for dim in batch]
        if self.chance(0.4):
            own = own[self.choices.randint(0, len(own)) :]
        more = [self.dim()] if len(own) == len(batch) and self.chance(0.3) else []
        return [*more, *own, self.dim(), k]

    def pair(self) -> None:
        """matmul(x, permute_dims(w)) in one of the situations that an ordinary module has."""
        dims = self.weight_dims()
        rank = len(dims)
        constant = all(isinstance(said, int) for said, _ in dims) and self.chance(0.2)
        unknown = "" if constant else self.choices.choice((*[""] * 6, "shape", "rank"))
        self.runs = self.runs and not unknown
        w = self.constant(dims) if constant else self.param(dims, unknown)
        swapped, backwards = [*range(rank - 2), rank - 1, rank - 2], [*range(rank)][::-1]
        order = swapped
        if self.chance(0.3):
            order = backwards if self.chance(0.4) else self.choices.sample(backwards, rank)
        axes = [axis - rank if self.chance(0.4) else axis for axis in order]
        if unknown == "rank":  # TVM itself refuses axes for a tensor of unknown rank
            order = backwards
        if unknown == "rank" or (order == backwards and self.chance(0.5)):
            axes = None
        transposed = [dims[axis] for axis in order]
        squared = rank == 2 and self.chance(0.15)  # x @ x.T
        x = w if squared else self.param(self.activation_dims(transposed))
        if x.array.shape[-1] == transposed[-2][1]:
            places = (*(self.same,) * 3, self.later, self.later, self.plain)
            self.choices.choice(places)(w, x, axes, order == swapped and not unknown)

    def same(self, w: Value, x: Value, axes: list[int] | None, fires: bool) -> None:
        """All in one dataflow block, perhaps with w computed there, perhaps with other users of the transpose."""
        with self.bb.dataflow():
            if self.chance(0.2):
                w = self.negative(w)
            transpose = self.alias(self.transpose(w, axes))
            made, keep = [self.matmul(x, transpose, fires)], []  # keep: what needs the transpose
            if self.chance(0.3):
                made.append(self.matmul(x, self.alias(transpose), fires))
            if self.chance(0.2):
                keep.append(self.negative(transpose))
            if self.chance(0.2):
                keep.append(transpose)
            rows, columns = transpose.array.shape[-2:]
            if rows == columns and self.chance(0.4):  # the transpose is both operands
                keep.append(self.matmul(transpose, transpose, fires))
            self.results += map(self.output, made + keep)
        self.left["permute_dims"] -= fires and not keep

    def later(self, w: Value, x: Value, axes: list[int] | None, fires: bool) -> None:
        """The transpose is the output of an earlier block; a w that is computed there too is out of scope later."""
        hidden = self.chance(0.5)
        with self.bb.dataflow():
            transpose = self.output(self.transpose(self.negative(w) if hidden else w, axes))
        x = self.negative(x)  # outside: BlockBuilder merges two blocks with nothing between them
        with self.bb.dataflow():
            product = self.matmul(x, self.alias(transpose), fires and not hidden)
            self.results.append(self.output(product))
        self.left["permute_dims"] -= fires and not hidden

    def plain(self, w: Value, x: Value, axes: list[int] | None, _fires: bool) -> None:
        """Outside any dataflow block, where FuseOpsByPattern does not look."""
        self.results.append(self.matmul(x, self.transpose(w, axes)))


def run(mod: tvm.IRModule, name: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return add_norm.run(relax.transform.LambdaLift()(mod), arrays, name)


@pytest.mark.parametrize("part", PARTS)
def test_drawn_modules(part):
    """The draws cover what they claim: most run and fire; each dtype, and both outcomes, are drawn often."""
    draws: list[Draw] = []

    def act(draw: Draw) -> None:
        draws.append(draw)
        check(draw)

    try_draws(act, CHOICES.map(Draw), number=50, part=part)
    assert sum(d.runs for d in draws) > len(draws) / 2
    assert sum(d.fused > 0 for d in draws) > len(draws) / 2
    assert sum(d.left["matmul"] > 0 for d in draws) > len(draws) / 5
    assert {(d.dtype, d.out_dtype) for d in draws} == set(DTYPES)


def check(draw: Draw) -> None:
    """The pass does to the module of `draw` what it must, and nothing else."""
    note(draw.mod.script())
    relax.analysis.well_formed(draw.mod)
    before = draw.mod
    result = judge_pass(
        FuseTransposeMatmul(), before, "FuseTransposeMatmul", "the module", runs=False
    )
    left = {operator: draw.left[operator] for operator in ("matmul", "permute_dims")}
    assert count_calls(result) == {**left, "NT_matmul": draw.fused}
    names = {gvar.name_hint for gvar in result.get_global_vars()}
    extra = names - {gvar.name_hint for gvar in before.get_global_vars()}
    assert all(name.startswith("NT_matmul") for name in extra), "a composite stayed"
    assert str(result[draw.name].attrs) == str(before[draw.name].attrs)
    if draw.runs:
        types = before[draw.name].ret_ty.fields
        results = zip(run(result, draw.name, draw.inputs), draw.results, types, strict=True)
        for number, (yours, expected, ty) in enumerate(results):
            assert yours.dtype.name == str(ty.dtype)
            near = TOLERANCE.get(yours.dtype.name, 0)
            yours = yours.astype("float64")
            np.testing.assert_allclose(yours, expected.array, near, near, err_msg=str(number))
