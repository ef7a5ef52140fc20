"""Arithmetic on this processor: pairs of bfloat16, exp and its like by polynomials, products of int8."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm_ffi import structural_equal

from chapters.kit.cases.guard_zones import QUICK_HERE, run_compiled
from chapters.kit.cpu import amx, vnni
from chapters.kit.cpu.add_norm_on_cpu import (
    PAIRED,
    cpu_kernel,
    even,
    from_bits,
    join,
    odd,
    to_bits,
)
from chapters.kit.cpu.int8_matmul import WAYS, pack, schedule
from chapters.kit.cpu.int8_numbers import expected, numbers
from chapters.kit.cpu.vectorize_transcendentals import (
    FUNCTIONS,
    ULPS,
    VectorizeTranscendentals,
    expand_functions,
)
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as primitives

# --- pairs of bfloat16 ----------------------------------------------------------------------------

EVERY = 1 << 16


def load_bits(buffer, chunk):
    return to_bits(buffer[T.ramp(chunk * PAIRED, 1, PAIRED)])


def add_pairs(a, b):
    return from_bits(join(*(half(a) + half(b) for half in (even, odd))))


@pytest.fixture(scope="module")
def add():
    @T.prim_func
    def main(p: T.handle, q: T.handle, r: T.handle):
        A = T.match_buffer(p, (EVERY,), "bfloat16")
        B = T.match_buffer(q, (EVERY,), "bfloat16")
        D = T.match_buffer(r, (EVERY,), "bfloat16")
        for chunk in T.serial(EVERY // PAIRED):
            D[T.ramp(chunk * PAIRED, 1, PAIRED)] = add_pairs(
                load_bits(A, chunk), load_bits(B, chunk)
            )

    return tvm.compile(main, target="llvm")["main"]


@pytest.mark.parametrize("shift", [0, 1, 7, 128, 32768, 33001])
def test_every_bfloat16_is_added_as_numpy_adds_it(add, shift):
    every = np.arange(EVERY, dtype="uint16")
    a, b = every.view("bfloat16"), np.roll(every, shift).view("bfloat16")
    out = tvm.runtime.tensor(np.zeros(EVERY, "bfloat16"))
    add(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    with np.errstate(all="ignore"):
        exact = (a.astype("float32") + b.astype("float32")).astype("bfloat16")
    given, lost = out.numpy(), np.isnan(exact.astype("float32"))
    assert np.isnan(given.astype("float32")[lost]).all(), "a NaN did not stay one"
    assert (given.view("uint16")[~lost] == exact.view("uint16")[~lost]).all()


# --- functions by polynomials ---------------------------------------------------------------------

EXACT = {
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
COUNT = 1 << 14
SPREAD = np.random.default_rng(0)
INPUTS = {
    "everywhere it is neither 0 nor infinite": np.linspace(-87, 88, COUNT),
    "around the switch of polynomials": np.linspace(-1.5, 1.5, COUNT),
    "tiny": SPREAD.standard_normal(COUNT) * 1e-4,
    "any bits": SPREAD.integers(0, 2**32, COUNT, dtype=np.uint32).view("float32"),
}


def elementwise_kernel(name: str, dtype: str = "float32") -> tirx.PrimFunc:
    x = te.placeholder((COUNT,), dtype, "x")
    return te.create_prim_func([x, te.compute((COUNT,), lambda i: getattr(tirx, name)(x[i]))])


def run_elementwise(func: tirx.PrimFunc, x: np.ndarray) -> np.ndarray:
    return run_compiled(tvm.IRModule({"main": func}), [x, np.full_like(x, 7)], QUICK_HERE)[1]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_is_within_the_stated_bound(name, inputs):
    x = INPUTS[inputs].astype("float32")
    with np.errstate(all="ignore"):
        got = run_elementwise(expand_functions(elementwise_kernel(name)), x).astype("float64")
        exact = EXACT[name](x.astype("float64"))
        rounded = exact.astype("float32")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(got[np.isinf(rounded)], rounded[np.isinf(rounded)])
    known = np.isfinite(rounded)
    # below the smallest normal number, sigmoid's own formula gives 0 in float32
    ulp = np.spacing(np.maximum(np.abs(rounded[known]), np.finfo("float32").tiny))
    least = np.finfo("float32").tiny if name == "sigmoid" else 0
    assert (np.abs(got[known] - exact[known]) <= ULPS[name] * ulp.astype("float64") + least).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges(name):
    edges = [np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, 88.72, 88.73, -103.9, -104.1, 1e-45]
    x = np.resize(np.float32(edges), COUNT)
    got = run_elementwise(expand_functions(elementwise_kernel(name)), x)[: len(edges)]
    with np.errstate(all="ignore"):
        exact = EXACT[name](x[: len(edges)].astype("float64")).astype("float32")
    np.testing.assert_allclose(
        got, exact, rtol=3e-7, atol=1.2e-38 if name == "sigmoid" else 1.5e-45
    )


def test_float16_is_computed_in_float32_and_rounded_once():
    x = np.linspace(-9, 9, COUNT).astype("float16")
    got = run_elementwise(expand_functions(elementwise_kernel("exp", "float16")), x)
    np.testing.assert_array_equal(got, np.exp(x.astype("float32")).astype("float16"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_element_needs_a_call_any_more(name):
    """Before, LLVM calls erff itself, or leaves `llvm.exp` of a vector, of which its backend makes a call per lane."""
    target = Target({**QUICK_HERE.export(), "opt-level": 3})
    before, after = (
        tvm.compile(func, target=target).mod.inspect_source("ll")
        for func in (elementwise_kernel(name), expand_functions(elementwise_kernel(name)))
    )
    calls = re.compile(r"@(erff|llvm\.exp\.)")
    assert calls.search(before) and not calls.search(after)
    assert re.search(r"call <\d+ x float> @llvm\.nearbyint", after)


def test_other_dtypes_and_other_functions_stay():
    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((8,), "float64"), y: T.Buffer((8,), "float64"), z: T.Buffer((8,), "float32")
    ):
        for i in range(8):
            with T.sblock("y"):
                vi = T.axis.spatial(8, i)
                y[vi] = T.exp(x[vi]) + T.cast(T.log(z[vi]), "float64")

    tvm.ir.assert_structural_equal(expand_functions(main), main)
    tvm.ir.assert_structural_equal(
        expand_functions(elementwise_kernel("exp", "bfloat16")),
        elementwise_kernel("exp", "bfloat16"),
    )


def test_the_pass_leaves_the_module_it_is_given_alone():
    mod = tvm.IRModule({"main": elementwise_kernel("tanh")})
    before = mod.clone()
    changed = VectorizeTranscendentals()(mod)
    assert structural_equal(mod, before) and not structural_equal(changed, before)


def test_addresses_which_have_no_dtype_are_passed_over():
    """Kernels that stream their results past the cache have them."""
    func = cpu_kernel([tirx.Var("rows", "int64")], 48, "float32", 1e-5)
    assert structural_equal(expand_functions(func), func)


# --- products of int8 -----------------------------------------------------------------------------

SIZES = (64, 64, 128)
x86 = pytest.mark.skipif(not vnni.compiles_here(), reason="this LLVM writes no x86 code")


def _run(kernel, inputs: list[np.ndarray], more: list[np.ndarray]) -> np.ndarray:
    out = tvm.runtime.tensor(np.full(SIZES[:2], -7, np.int32))
    kernel(*map(tvm.runtime.tensor, inputs), out, *map(tvm.runtime.tensor, more))
    return out.numpy()


@x86
@pytest.mark.parametrize("way", WAYS)
def test_vnni(way):
    sch = schedule(*SIZES, way, primitives)
    allocated = len(sch.get(sch.get_sblock("root")).alloc_buffers)
    assert allocated == (0 if way == "fused" else 1)
    built = tvm.compile(sch.mod, target=vnni.target())
    assert "vpdpbusd" in built.mod.inspect_source("asm")
    if not vnni.runs_here():
        pytest.skip("this processor has no vpdpbusd")
    a, w, c = numbers(*SIZES, seed=3)
    assert (_run(built["main"], [a, pack(w), c], []) == expected(a, w, c)).all()


@x86
@pytest.mark.parametrize("way", amx.WAYS)
def test_amx(way):
    built = tvm.compile(amx.product(*SIZES, way), target=amx.target())
    assembly = built.mod.inspect_source("asm")
    assert "tdpbusd" in assembly and ("tilezero" in assembly) == (way != "fused")
    if not amx.runs_here():
        pytest.skip("there are no AMX tiles here")
    a, w, c = numbers(*SIZES, seed=4)
    more = [amx.configuration(), np.full(SIZES[:2], -7, np.int32)]
    exact = expected(a, w, np.zeros_like(c) if way == "without bias" else c)
    assert (_run(built["main"], [a, amx.pack(w), c], more) == exact).all()
