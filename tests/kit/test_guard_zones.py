"""A program is compiled once, and TVM's comparison of arguments is left out only where they are known to fit."""

import numpy as np
import pytest
import tvm

from chapters.checking import expect
from chapters.kit.cases.guard_zones import compile_once, run_compiled
from chapters.kit.cases.relax_text import kernel, relax_module

KERNEL = kernel("double(x, y)", (3, 4), "y[at] = x[at] * T.float32(2)")


def calls_it(sizes: str) -> tvm.IRModule:
    call = 'R.call_tir(cls.double, (x,), out_ty=R.Tensor((3, 4), "float32"))'
    return relax_module(f"{KERNEL}\ndef main(x: {sizes}):\n    y = {call}\n")


def test_a_size_that_is_not_known_is_compared():
    given = np.ones((3, 4), "float32")
    for sizes in ("(3, 4)", '("n", 4)'):
        assert (expect.run(calls_it(sizes), "main", [given]) == 2).all()
    with pytest.raises(Exception, match=r"(?i)mismatch|expected"):
        expect.run(calls_it('("n", 4)'), "main", [np.ones((2, 4), "float32")])


def test_arguments_are_compared_where_they_are_not_those_declared():
    func = calls_it("(3, 4)")["double"].with_attr("global_symbol", "main")
    given = [np.ones((2, 4), "float32"), np.zeros((3, 4), "float32")]
    with pytest.raises(Exception, match=r"(?i)mismatch|expected"):
        run_compiled(tvm.IRModule({"main": func}), given)


def test_the_same_program_is_compiled_once_and_another_anew():
    def adds(number: float) -> tvm.IRModule:
        return relax_module(f'def main(x: (3,)):\n    y = R.add(x, R.const({number}, "float32"))\n')

    assert compile_once(adds(1.0)) is compile_once(adds(1.0))
    x = np.zeros(3, "float32")
    assert [expect.run(adds(n), "main", [x])[0] for n in (1.0, 2.0, 1.0)] == [1, 2, 1]
