"""Arithmetic on pairs of bfloat16 rounds as the cast does, for every value there is."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from chapters.kit.cpu.bfloat16_pairs import even, joined, loaded, odd, stored

LANES = 16
COUNT = 1 << 16


def bits(buffer, chunk):
    return loaded(buffer[T.ramp(chunk * 2 * LANES, 1, 2 * LANES)], LANES)


def total(a, b):
    halves = (half(a, LANES) + half(b, LANES) for half in (even, odd))
    return stored(joined(*halves, LANES), LANES)


@pytest.fixture(scope="module")
def add():
    @T.prim_func
    def main(p: T.handle, q: T.handle, r: T.handle):
        A = T.match_buffer(p, (COUNT,), "bfloat16")
        B = T.match_buffer(q, (COUNT,), "bfloat16")
        D = T.match_buffer(r, (COUNT,), "bfloat16")
        for chunk in T.serial(COUNT // (2 * LANES)):
            D[T.ramp(chunk * 2 * LANES, 1, 2 * LANES)] = total(bits(A, chunk), bits(B, chunk))

    return tvm.compile(main, target="llvm")["main"]


@pytest.mark.parametrize("shift", [0, 1, 7, 128, 32768, 33001])
def test_every_bfloat16_is_added_as_numpy_adds_it(add, shift):
    every = np.arange(COUNT, dtype="uint16")
    a, b = every.view("bfloat16"), np.roll(every, shift).view("bfloat16")
    out = tvm.runtime.tensor(np.zeros(COUNT, "bfloat16"))
    add(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    with np.errstate(all="ignore"):
        exact = (a.astype("float32") + b.astype("float32")).astype("bfloat16")
    given, lost = out.numpy(), np.isnan(exact.astype("float32"))
    assert np.isnan(given.astype("float32")[lost]).all(), "a NaN did not stay one"
    assert (given.view("uint16")[~lost] == exact.view("uint16")[~lost]).all()
