"""Programs that are hard for a primitive which fuses an epilogue into a reduction, sorted by what is hard.

Every case has the blocks `matmul` (the reduction) and `bias` (the epilogue). Unless it says otherwise, `matmul` sums
`A[vi, vk] * B[vj, vk]` into `temp[vi, vj]`, 6 x 6 sums of 5 steps in int32, and `bias` writes `D`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import tvm

from chapters.kit.ir.parse_alone import from_source

SQUARE, OPERAND = (6, 6), (6, 5)


@dataclass(frozen=True)
class Case:
    """One program. name: what is hard, in a few words. cause: the group it belongs to.

    The fields below are TVMScript, with `s` for the sum in `value` and `T` for `temp[vi, vj]` in `step`. `reads` and
    `stores` are the indices of temp and of D in the epilogue; `axes` the epilogue's axes in the order it declares them.
    `before`, `between` and `after` are stores of another block at that place; `times` is how often `between` runs.
    """

    cause: str
    name: str
    value: str = "s + C[wi, wj]"
    step: str = "t + A[vi, vk] * B[vj, vk]"
    init: str | None = "T.{dtype}(0)"
    dtype: str = "int32"
    output: str = ""
    reads: str = "wi, wj"
    stores: str = "wi, wj"
    writes: str = "vi, vj"
    axes: str = "wi wj"
    order: str = "vi vj vk"
    loops: str = "i j k"
    temp: tuple[int, ...] = SQUARE
    shape: tuple[int, ...] = SQUARE
    rows: int = 6
    run_rows: int = 0
    argument: bool = False
    nested: bool = False
    before: str = ""
    between: str = ""
    times: str = ""
    after: str = ""
    loop: str = "range"
    fill: dict = field(default_factory=dict, hash=False)

    @cached_property
    def text(self) -> str:
        """The program."""
        temp_shape = f'{self.temp}, "{self.dtype}"'
        params = [f'{n}: T.Buffer({s}, "{dtype}")' for n, s, dtype in self._params()]
        lines = [] if self.argument else [f"temp = T.sblock_alloc_buffer({temp_shape})"]
        lines += [*_elementwise_block("before", self.before), *self._reduction()]
        between = _elementwise_block("between", self.between)
        if self.times:
            between = _nest(f"for again in range({self.times}):", body=between)
        lines += [*between, *self._epilogue(), *_elementwise_block("after", self.after)]
        if self.nested:
            body = ["vo = T.axis.spatial(1, o)", *lines]
            lines = _nest("for o in range(1):", 'with T.sblock("outer"):', body=body)
        main = _nest(f"def main({', '.join(params)}):", body=lines)
        return "\n".join(["@T.prim_func(s_tir=True)", *main, ""])

    @cached_property
    def func(self) -> tvm.tirx.PrimFunc:
        """The program as TVM's parser reads it."""
        return from_source(self.text)

    def _params(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and dtype of each parameter, in order."""
        shapes = {"A": OPERAND, "B": OPERAND, **dict.fromkeys("CEF", SQUARE), "D": self.shape}
        if self.argument:
            shapes["temp"] = self.temp
        dtypes = {"D": self.output or self.dtype}
        return [(name, shape, dtypes.get(name, self.dtype)) for name, shape in shapes.items()]

    def _reduction(self) -> list[str]:
        axes = {"vi": "spatial(6, i)", "vj": "spatial(6, j)", "vk": "reduce(5, k)"}
        total, loops = f"temp[{self.writes}]", self.loops.split()
        sizes = ", ".join("5" if loop == "k" else "6" for loop in loops)
        body = [f"{axis} = T.axis.{axes[axis]}" for axis in self.order.split()]
        if self.init is not None:
            start = self.init.format(dtype=self.dtype)
            body += _nest("with T.init():", body=[f"{total} = {start}"])
        body.append(f"{total} = {_substitute(self.step, 't', total)}")
        head = f"for {', '.join(loops)} in T.grid({sizes}):"
        return _nest(head, 'with T.sblock("matmul"):', body=body)

    def _epilogue(self) -> list[str]:
        axes = {"wi": f"spatial({self.rows}, i)", "wj": "spatial(6, j)"}
        body = [f"{axis} = T.axis.{axes[axis]}" for axis in self.axes.split()]
        body.append(f"D[{self.stores}] = {_substitute(self.value, 's', f'temp[{self.reads}]')}")
        loops = f"for i in {self.loop}({self.run_rows or self.rows}):", "for j in range(6):"
        return _nest(*loops, 'with T.sblock("bias"):', body=body)

    def arguments(self, seed: int = 0) -> list[np.ndarray]:
        """Small integers, asymmetric, in the order of the parameters; outputs hold integers too, never zeros."""
        random = np.random.default_rng(seed)
        found = []
        for name, shape, dtype in self._params():
            low = 0 if dtype.startswith("uint") else -6
            array = random.integers(low, 7, shape).astype(dtype)
            if name in self.fill:
                array = np.full(shape, self.fill[name], dtype)
            found.append(array)
        return found


def _substitute(form: str, letter: str, meaning: str) -> str:
    """`form` with the one-letter word `letter` replaced by `meaning`."""
    return re.sub(rf"\b{letter}\b", lambda _: meaning, form)


def _elementwise_block(name: str, store: str) -> list[str]:
    """A block over 6 x 6 that does `store`, in the axes oi and oj; [] for no store."""
    body = ['oi, oj = T.axis.remap("SS", [i, j])', store]
    head = "for i, j in T.grid(6, 6):"
    return _nest(head, f'with T.sblock("{name}"):', body=body) if store else []


def _nest(*heads: str, body: list[str]) -> list[str]:
    """`body` inside `heads`, each head inside the one before."""
    for head in reversed(heads):
        body = [head, *("    " + line for line in body)]
    return body


def _make_cases(cause: str, **cases: dict) -> list[Case]:
    return [Case(cause, name.replace("_", " "), **fields) for name, fields in cases.items()]


_EVERY_STEP = _make_cases(
    "Applied at every step",
    relu={"value": "T.max(s, 0)"},
    bias_and_relu={"value": "T.max(s + C[wi, wj], 0)"},
    clip={"value": "T.min(T.max(s, -10), 10)"},
    bias_and_upper_bound={"value": "T.min(s + C[wi, wj], 7)"},
    minus_a_bias={"value": "s - C[wi, wj]"},
    a_bias_minus_the_sum={"value": "C[wi, wj] - s"},
    two_biases={"value": "s + C[wi, wj] + E[wi, wj]"},
    two_biases_in_brackets={"value": "s + (C[wi, wj] + E[wi, wj])"},
    plus_one_and_minus_the_other={"value": "s - C[wi, wj] + E[wi, wj]"},
    three_addends={"value": "C[wi, wj] + (s + E[wi, wj]) - 3"},
    negated={"value": "0 - s"},
    doubled={"value": "s * 2"},
    scaled_by_an_array={"value": "s * C[wi, wj]"},
    scaled_and_shifted={"value": "s * C[wi, wj] + E[wi, wj]"},
    doubled_plus_a_bias={"value": "s * 2 + C[wi, wj]"},
    read_twice={"value": "s + s + C[wi, wj]"},
    square={"value": "s * s"},
    plus_itself_times_a_bias={"value": "s + s * C[wi, wj]"},
    absolute_value={"value": "T.max(s, 0 - s)"},
    chosen_by_its_sign={"value": "T.Select(s > 0, s, s * 3)"},
    integer_division={"value": "T.floordiv(s, 3)"},
    remainder={"value": "T.floormod(s, 7)"},
    the_bias_in_a_max={"value": "s + T.max(C[wi, wj], 0)"},
    exponential={"dtype": "float32", "value": "T.exp(s * T.float32(0.0625))"},
    sigmoid={"dtype": "float32", "value": "T.sigmoid(s * T.float32(0.0625))"},
    sum_and_exponential={"dtype": "float32", "value": "T.exp(s * T.float32(0.0625)) + C[wi, wj]"},
)
_INDICES = _make_cases(
    "Axes matched by their position",
    a_plain_bias={},
    axes_declared_in_another_order={"axes": "wj wi"},
    stored_transposed={"stores": "wj, wi"},
    read_transposed={"reads": "wj, wi"},
    both_transposed={"reads": "wj, wi", "stores": "wj, wi"},
    the_reductions_axes_in_another_order={"order": "vj vi vk"},
    the_reduction_axis_first={"order": "vk vj vi"},
    the_reduction_loop_outermost={"loops": "k j i", "value": "T.max(s, C[wi, wj])"},
    the_sum_kept_transposed={"writes": "vj, vi"},
    stored_reversed={"stores": "5 - wi, wj"},
    read_reversed={"reads": "5 - wi, wj"},
    stored_flat={"shape": (36,), "stores": "wi * 6 + wj"},
    the_sum_kept_flat={"temp": (36,), "reads": "wi * 6 + wj", "writes": "vi * 6 + vj"},
    stored_shifted={"shape": (7, 6), "stores": "wi + 1, wj"},
    stored_with_gaps={"shape": (12, 6), "stores": "wi * 2, wj"},
    stored_in_tiles={"shape": (3, 6, 2), "stores": "wi // 2, wj, wi % 2"},
    all_into_one_column={"stores": "wi, 0"},
    all_into_one_column_with_the_reduction_loop_outermost={"loops": "k i j", "stores": "wi, 0"},
    the_diagonal_for_all={"reads": "wi, wi"},
)
_MAXIMUM = {"init": "-100", "step": "T.max(t, A[vi, vk] * B[vj, vk])"}
_PRODUCT = {"init": "1", "step": "t * A[vi, vk]"}
_INIT = _make_cases(
    "The init taken for 0",
    starts_from_5={"init": "5"},
    starts_from_an_array={"init": "E[vi, vj]"},
    a_maximum=_MAXIMUM,
    a_maximum_and_a_maximum={**_MAXIMUM, "value": "T.max(s, C[wi, wj])"},
    a_minimum={"init": "100", "step": "T.min(t, A[vi, vk] * B[vj, vk])"},
    a_product=_PRODUCT,
    a_product_and_a_factor={**_PRODUCT, "value": "s * C[wi, wj]"},
    no_init_after_a_block_that_sets_it={"init": None, "before": "temp[oi, oj] = 9"},
)
_STEP = _make_cases(
    "The step never looked at",
    horner={"step": "t * 2 + A[vi, vk]"},
    saturating={"step": "T.min(t + A[vi, vk] * B[vj, vk], 9)"},
    alternating={"step": "A[vi, vk] - t"},
    doubling={"step": "t + t + A[vi, vk]"},
    the_last_one_stays={"step": "A[vi, vk] + B[vj, vk]"},
    a_subtraction={"step": "t - A[vi, vk] * B[vj, vk]"},
    reads_the_output={"step": "t + A[vi, vk] * D[vi, vj]"},
    the_bias_is_an_operand={"value": "s + A[wi, 0]"},
    an_operand_read_twice={"step": "t + A[vi, vk] * A[vj, vk]"},
)
_DOMAIN = _make_cases(
    "Other points than the reduction's",
    only_four_rows={"rows": 4},
    only_four_rows_and_an_output_of_four={"rows": 4, "shape": (4, 6)},
    loops_over_four_of_six_rows={"run_rows": 4},
    parallel_rows={"loop": "T.parallel"},
    reads_its_left_neighbour={"value": "s + D[wi, T.max(wj - 1, 0)]"},
    reads_an_element_the_sums_reach_later={
        "loops": "j i k",
        "value": "s + D[T.max(wi - 1, 0), T.min(wj + 1, 5)]",
    },
    added_to_the_output={"value": "s + D[wi, wj]"},
)
_USERS = _make_cases(
    "Others who use the sums or the output",
    the_sums_read_afterwards={"after": "F[oi, oj] = temp[oi, oj]"},
    relu_and_the_sums_read_afterwards={"value": "T.max(s, 0)", "after": "F[oi, oj] = temp[oi, oj]"},
    the_sums_read_in_between={"between": "F[oi, oj] = temp[oi, oj] * 2"},
    the_sums_changed_in_between={"between": "temp[oi, oj] = temp[oi, oj] * 2"},
    the_sums_are_an_output={"argument": True},
    the_bias_written_in_between={"between": "C[oi, oj] = 4"},
    the_bias_written_in_between_and_not_declared={
        "between": "T.reads(F[oi, oj]); T.writes(F[oi, oj]); C[oi, oj] = 4"
    },
    the_bias_made_from_the_sums={"between": "C[oi, oj] = temp[oi, oj] + 1"},
    the_bias_read_in_between={"between": "F[oi, oj] = C[oi, oj]"},
    the_bias_written_before={"before": "C[oi, oj] = 4"},
    the_bias_written_afterwards={"after": "C[oi, oj] = 4"},
    the_output_read_in_between={"between": "F[oi, oj] = D[oi, oj]"},
    the_output_written_in_between={"between": "D[oi, oj] = 4"},
    the_output_says_how_often_another_runs={
        "value": "T.max(s, 0)",
        "between": "F[oi, oj] = F[oi, oj] + 1",
        "times": "D[0, 0]",
        "fill": {"D": 2},
    },
    the_output_read_afterwards={"after": "F[oi, oj] = D[oi, oj] + 1"},
    in_a_block_of_its_own={"nested": True},
    relu_in_a_block_of_its_own={"nested": True, "value": "T.max(s, 0)"},
)
_DTYPE = _make_cases(
    "Another dtype, or too few bits",
    cast_of_the_sum={"output": "float32", "value": "T.Cast('float32', s)"},
    cast_and_a_bias={"output": "float32", "value": "T.Cast('float32', s) + T.float32(2)"},
    narrowed={"output": "int8", "value": "T.Cast('int8', s)"},
    the_bias_is_cast={"value": "s + T.Cast('int32', T.Cast('float32', C[wi, wj]))"},
    unsigned_minus_a_bias={
        "dtype": "uint32",
        "value": "s - C[wi, wj]",
        "fill": {"A": 3, "B": 5, "C": 70},
    },
    not_a_number_in_a_maximum={
        "dtype": "float32",
        **_MAXIMUM,
        "init": "T.float32(-100)",
        "value": "T.max(s, C[wi, wj])",
        "fill": {"C": float("nan")},
    },
    half_precision_sum_of_ones_on_2048={"dtype": "float16", "fill": {"A": 1, "B": 1, "C": 2048}},
    half_precision_60000_up_8000_and_down_again={
        "dtype": "float16",
        "step": "t + T.Select(vk == 0, A[vi, vk], T.Select(vk == 1, 0 - A[vi, vk], T.float16(0)))",
        "fill": {"A": 8000, "C": 60000},
    },
)


_ALL = [*_EVERY_STEP, *_INDICES, *_INIT, *_STEP, *_DOMAIN, *_USERS, *_DTYPE]
CASES: dict[str, Case] = {case.name: case for case in _ALL}
