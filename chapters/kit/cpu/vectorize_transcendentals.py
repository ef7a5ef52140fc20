"""Replaces exp, tanh, erf and sigmoid in CPU kernels by polynomials, which LLVM computes in vector registers.

LLVM has no vector code for them: it calls the C library once per element, which takes longer than all the rest of a
kernel like softmax or gelu. Each polynomial interpolates its function at Chebyshev points, which nearly minimizes the
largest error. Infinities, NaN, overflow and results below the smallest normal number come out as in the C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
from numpy.polynomial import Chebyshev, Polynomial
from tvm import tirx
from tvm.ir import Call, Expr
from tvm_ffi import structural_map

from chapters.kit.ir.tensor_ir import nodes

# the largest error, in units in the last place: distances of neighbouring float32 numbers
ULPS = {"exp": 2, "tanh": 2, "erf": 3, "sigmoid": 3}
LN2 = math.log(2)
LN2_HIGH = 0.693359375  # nine bits: times an integer below 2**15 it is exact
EXP_LEAST, EXP_MOST = -104.0, 89.0  # exp gives 0 below, and infinity above
TANH_SMALL = 0.625  # below, 1 - 2 / (exp(2x) + 1) would lose digits
ERF_SMALL, ERF_MOST = 1.0, 4.0  # below, 1 - erfc(x) would lose digits; above, erf is 1 in float32


def _fit(function: Callable[[float], float], degree: int, low: float, high: float) -> list[float]:
    """Coefficients, the constant first, of the polynomial that interpolates `function` on [low, high]."""
    fitted = Chebyshev.interpolate(np.vectorize(function, otypes=[float]), degree, [low, high])
    return fitted.convert(kind=Polynomial).coef.tolist()


def _divide_by_root(function: Callable[[float], float], at_zero: float) -> Callable[[float], float]:
    """t -> function(√t) / √t: an odd function as a polynomial in the square of its argument."""
    return lambda t: function(math.sqrt(t)) / math.sqrt(t) if t > 0 else at_zero


_EXP = _fit(math.exp, 6, -LN2 / 2, LN2 / 2)
_TANH = _fit(_divide_by_root(math.tanh, 1.0), 6, 0.0, TANH_SMALL**2)
_ERF = _fit(_divide_by_root(math.erf, 2 / math.sqrt(math.pi)), 7, 0.0, ERF_SMALL**2)
_ERFC = _fit(lambda x: math.log(math.erfc(x)), 9, ERF_SMALL, ERF_MOST)  # erfc(x) = exp(this)


def _let(value: Expr, use: Callable[[tirx.Var], Expr]) -> Expr:
    var = tirx.Var("t", value.ty)
    return tirx.Let(var, value, use(var))


def _f32(number: float) -> Expr:
    return tirx.const(number, "float32")


def _polynomial(coefficients: list[float], x: Expr) -> Expr:
    value = _f32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + _f32(coefficient)
    return value


def _power_of_two(n: Expr) -> Expr:
    """2 ** n for an int32 n from -126 to 127: n is the exponent field of a float32."""
    return tirx.reinterpret("float32", (n + 127) << 23)


def exp(x: Expr) -> Expr:
    """e ** x for a float32 `x`. It is 2**n * e**r, with n = round(x / ln 2) and |r| <= ln 2 / 2."""

    def scaled(n: tirx.Var, r: tirx.Var) -> Expr:
        # two factors, because 2**n alone may overflow or be too small for a normal number
        first = n >> 1
        return _polynomial(_EXP, r) * _power_of_two(first) * _power_of_two(n - first)

    def split(near: tirx.Var, n: tirx.Var) -> Expr:
        r = near - n * _f32(LN2_HIGH) - n * _f32(LN2 - LN2_HIGH)
        return _let(n.astype("int32"), lambda whole: _let(r, lambda r: scaled(whole, r)))

    def nearest(near: tirx.Var) -> Expr:
        return _let(tirx.nearbyint(near * _f32(1 / LN2)), lambda n: split(near, n))

    def clipped(x: tirx.Var) -> Expr:
        near = tirx.min(tirx.max(x, _f32(EXP_LEAST)), _f32(EXP_MOST))
        return _keep_nan(x, _let(near, nearest))

    return _let(x, clipped)


def _keep_nan(x: Expr, value: Expr) -> Expr:
    """`value`, but NaN where `x` is NaN."""
    return tirx.Select(tirx.isnan(x), x, value)


def _copy_sign(x: Expr, magnitude: Expr) -> Expr:
    return _let(magnitude, lambda size: tirx.Select(x < _f32(0), -size, size))


def tanh(x: Expr) -> Expr:
    """tanh(x) for a float32 `x`: a polynomial near 0, else 1 - 2 / (e**(2|x|) + 1)."""

    def parts(x: tirx.Var) -> Expr:
        small = x * _polynomial(_TANH, x * x)
        large = _f32(1) - _f32(2) / (exp(_f32(2) * tirx.abs(x)) + _f32(1))
        return _keep_nan(
            x, tirx.Select(tirx.abs(x) < _f32(TANH_SMALL), small, _copy_sign(x, large))
        )

    return _let(x, parts)


def erf(x: Expr) -> Expr:
    """erf(x) for a float32 `x`: a polynomial near 0, else 1 - erfc(|x|), whose logarithm is a polynomial."""

    def parts(x: tirx.Var) -> Expr:
        small = x * _polynomial(_ERF, x * x)
        size = tirx.min(tirx.abs(x), _f32(ERF_MOST))
        large = _let(size, lambda size: _f32(1) - exp(_polynomial(_ERFC, size)))
        return _keep_nan(x, tirx.Select(tirx.abs(x) < _f32(ERF_SMALL), small, _copy_sign(x, large)))

    return _let(x, parts)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x) for a float32 `x`."""
    return _f32(1) / (_f32(1) + exp(-x))


FUNCTIONS = {"exp": exp, "tanh": tanh, "erf": erf, "sigmoid": sigmoid}
_BY_OP = {tvm.ir.Op.get(f"tirx.{name}"): function for name, function in FUNCTIONS.items()}
DTYPES = ("float32", "float16")  # float16 is computed in float32, as LLVM does


def expand_functions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with polynomials for the functions above, wherever their argument has one of DTYPES.

    A kernel with a bfloat16 tensor stays as it is: TVM writes out what it rounds to bfloat16 several times, and refuses
    the same variable in each of them.
    """
    if any(
        str(var.dtype) == "bfloat16" for var in nodes(func, tirx.Var) if tirx.is_buffer_var(var)
    ):
        return func

    def expand(call: Call) -> Expr:
        function = _BY_OP.get(call.op)
        if function is None or str(call.ty.dtype) not in DTYPES:
            return call
        return function(call.args[0].astype("float32")).astype(str(call.ty.dtype))

    return func.with_body(structural_map(func.body, (Call, expand)))


@tirx.transform.prim_func_pass(opt_level=0, name="VectorizeTranscendentals")
class VectorizeTranscendentals:
    """Replaces exp, tanh, erf and sigmoid in every PrimFunc by polynomials, which vector registers can compute."""

    def transform_function(self, func: tirx.PrimFunc, *_context) -> tirx.PrimFunc:
        return expand_functions(func)
