"""Which bindings may write, which functions are another compiler's, which scopes a function has; rows of any rank."""

import itertools

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from chapters.toolkit.ir.relax_effects import bindings_of, may_write, offloaded, scopes
from chapters.toolkit.ir.row_index import row_dimensions, row_index, unit_dimensions


@I.ir_module
class Effects:
    @T.prim_func(private=True, s_tir=True)
    def clear(a: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("clear"):
                vi = T.axis.spatial(4, i)
                a[vi] = T.float32(0)

    @R.function(private=True)
    def callee(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), choose: R.Tensor((), "bool")):
        cls = Effects
        harmless = R.add(x, x)
        alias = harmless
        in_place = R.call_tir_inplace(
            cls.clear, (alias,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32")
        )
        _printed = R.print(x, format="x")
        called = cls.callee(in_place)
        if choose:
            branch = R.exp(called)
        else:
            branch = R.call_tir_inplace(
                cls.clear, (called,), inplace_indices=[0], out_ty=R.Tensor((4,), "float32")
            )
        return branch


def test_only_pure_operators_that_make_new_tensors_are_harmless():
    found = {b.var.name: may_write(b.value) for b in bindings_of(Effects["main"].body)}
    wrong = {
        name: value
        for name, value in found.items()
        if value != (name not in ("harmless", "alias", "cls"))
    }
    assert not wrong


def test_every_branch_is_a_scope_of_its_own():
    found = list(scopes(Effects["main"]))
    assert len(found) == 3 and found[0].same_as(Effects["main"].body)


def test_functions_of_another_compiler_have_no_scopes():
    for key in ("Primitive", "Composite", "Codegen"):
        func = Effects["callee"].with_attr(key, "x")
        assert offloaded(func) and not list(scopes(func))
    assert not offloaded(Effects["callee"])


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
    import tvm_ffi

    numbers = tvm_ffi.structural_map(
        expr, (tvm.ir.Var, lambda v: tirx.IntImm("int64", sizes[v]) if v in sizes else v)
    )
    return int(tvm.sym.Analyzer().simplify(numbers))


def test_one_kernel_for_one_row_and_for_many():
    def units(*shape):
        return unit_dimensions([tirx.IntImm("int64", n) for n in shape])

    assert units(1, 7, 64) == units(1, 1, 64) == (True, False)
    assert units(7, 1, 64) == (False, True)
    assert units(64) == () and units(1, 64) == (False,) and units(2, 3, 64) == (False, False)


def test_relax_effects_knows_an_if():
    values = [b.value for b in bindings_of(Effects["main"].body)]
    assert any(isinstance(value, relax.If) and may_write(value) for value in values)
