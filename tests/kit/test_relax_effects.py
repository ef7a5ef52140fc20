"""Which bindings may write, which functions are another compiler's, which scopes a function has; rows of any rank."""

import itertools

import numpy as np
import tvm
from tvm import relax, tirx

from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.ir.relax_effects import bindings_of, may_write, offloaded, scopes
from chapters.kit.ir.row_index import row_dimensions, row_index, unit_dimensions
from chapters.kit.ir.tensor_ir import substitute

EFFECTS = relax_module(f"""{kernel("clear(a)", (4,), "a[at] = T.float32(0)")}
@private
@bare
def callee(x: (4,)) -> R.Tensor((4,), "float32"):
    return x

@impure
def main(x: (4,), choose: ("bool",)):
    harmless = R.add(x, x)
    alias = harmless
    in_place = R.call_tir_inplace(cls.clear, (alias,), [0], out_ty=R.Tensor((4,), "float32"))
    _printed = R.print(x, format="x")
    called = cls.callee(in_place)
    if choose:
        branch = R.exp(called)
    else:
        branch = R.call_tir_inplace(cls.clear, (called,), [0], out_ty=R.Tensor((4,), "float32"))
    return branch
""")


def test_only_pure_operators_that_make_new_tensors_are_harmless():
    found = {b.var.name: may_write(b.value) for b in bindings_of(EFFECTS["main"].body)}
    assert not {n: f for n, f in found.items() if f != (n not in ("harmless", "alias", "cls"))}
    assert isinstance(bindings_of(EFFECTS["main"].body)[-1].value, relax.If)


def test_every_branch_is_a_scope_of_its_own():
    found = list(scopes(EFFECTS["main"]))
    assert len(found) == 3 and found[0].same_as(EFFECTS["main"].body)


def test_functions_of_another_compiler_have_no_scopes():
    for key in ("Primitive", "Composite", "Codegen"):
        func = EFFECTS["callee"].with_attr(key, "x")
        assert offloaded(func) and not list(scopes(func))
    assert not offloaded(EFFECTS["callee"])


def test_rows_are_counted_with_the_last_dimension_fastest():
    shape = (2, 1, 3, 4)
    dims = row_dimensions([tirx.IntImm("int64", n) for n in (*shape, 8)])
    assert [isinstance(d, tirx.IntImm) for d in dims] == [False, True, False, False]
    sizes = {d: n for d, n in zip(dims, shape, strict=True) if not isinstance(d, tirx.IntImm)}
    for number, index in enumerate(itertools.product(*map(range, shape))):
        row = tirx.IntImm("int64", number)
        found = [_value(e, sizes) for e in row_index(row, dims)]
        assert tuple(found) == index == tuple(int(i) for i in np.unravel_index(number, shape))


def _value(expr, sizes) -> int:
    numbers = {var: tirx.IntImm("int64", n) for var, n in sizes.items()}
    return int(tvm.sym.Analyzer().simplify(substitute(expr, numbers)))


def test_one_kernel_for_one_row_and_for_many():
    def units(*shape):
        return unit_dimensions([tirx.IntImm("int64", n) for n in shape])

    assert units(1, 7, 64) == units(1, 1, 64) == (True, False)
    assert units(7, 1, 64) == (False, True)
    assert units(64) == () and units(1, 64) == (False,) and units(2, 3, 64) == (False, False)
