"""Predict-then-run questions of chapter 3; TVM computes every answer."""

from __future__ import annotations

import tvm
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R

from chapters.ch03_transpose_matmul.bench import linear_layer
from chapters.toolkit.cpu.matmul_tile import lanes_of
from chapters.toolkit.cpu.vector_registers import vector_registers
from chapters.toolkit.earlier import earlier
from chapters.toolkit.machine import llvm_host
from chapters.toolkit.pages.read_order import read_order
from chapters.toolkit.quiz import Question


@I.ir_module
class Cube:
    @R.function
    def main(x: R.Tensor((4, 4, 4), "float32"), w: R.Tensor((4, 4, 4), "float32")) -> R.Tensor(
        (4, 4, 4), "float32"
    ):
        with R.dataflow():
            turned = R.permute_dims(w)
            out = R.matmul(x, turned)
            R.output(out)
        return out


@I.ir_module
class Returned:
    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"),
        y: R.Tensor((2, 6), "float32"),
        w: R.Tensor((7, 6), "float32"),
    ) -> R.Tuple(
        R.Tensor((4, 7), "float32"), R.Tensor((2, 7), "float32"), R.Tensor((6, 7), "float32")
    ):
        with R.dataflow():
            turned = R.permute_dims(w)
            a = R.matmul(x, turned)
            b = R.matmul(y, turned)
            R.output(turned, a, b)
        return (a, b, turned)


@I.ir_module
class Gram:
    @R.function
    def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            turned = R.permute_dims(x)
            out = R.matmul(x, turned)
            R.output(out)
        return out


def _fused(mod: tvm.IRModule) -> tvm.IRModule:
    return earlier(3).FuseTransposeMatmul()(mod)


def _count(mod: tvm.IRModule, operator: str) -> int:
    found = []

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get(operator):
            found.append(expr)

    relax.analysis.post_order_visit(mod["main"], visit)
    return len(found)


def _fires_on_a_cube() -> str:
    return "no" if _count(_fused(Cube), "relax.matmul") else "yes"


def _transposes_left() -> str:
    return str(_count(_fused(Returned), "relax.permute_dims"))


def _parameters_of_a_composite() -> str:
    chapter = earlier(3)
    grouped = chapter.group(chapter.own_transposes(Gram, chapter.may_fuse), chapter.may_fuse)
    (composite,) = [
        f for gvar, f in grouped.functions_items() if gvar.name_hint.startswith("fused")
    ]
    return str(len(composite.params))


def _step_through_w() -> str:
    kernel = _fused(linear_layer(1, 4, 6))["NT_matmul"]
    return str(read_order(kernel, "w", "NT_matmul", count=5).strides[0])


def _built_in() -> str:
    try:
        relax.transform.FuseTransposeMatmul()(Gram)
    except Exception as error:
        return "it raises an " + type(error).__name__
    return "it fuses"


def _sums_in_a_register() -> str:
    w, x = (te.placeholder((n, 64), "float16", name=name) for n, name in ((64, "w"), (1, "x")))
    kernel = te.create_prim_func([w, x, earlier(3).nt_matmul(w, x, "float32")])
    target = llvm_host()["target"]
    fits = {vector_registers(target).lanes(dtype): dtype for dtype in ("float16", "float32")}
    return f"as many as {fits[lanes_of(kernel, target)]} values"


QUESTIONS = [
    Question(
        ask="w has three dimensions and permute_dims has no axes. Does the pass fire?",
        show=lambda: Cube.script(),
        choices=("yes", "no", "it raises an error"),
        compute=_fires_on_a_cube,
        because="Without axes all dimensions are reversed. On a matrix that is the swap; on three dimensions the batch "
        "moves too, and here, with equal sizes, nothing but the axes shows it.",
    ),
    Question(
        ask="Two matmuls share a transpose, which is also returned. How many permute_dims are left after the pass?",
        show=lambda: Returned.script(),
        choices=("0", "1", "2", "3"),
        compute=_transposes_left,
        because="Both matmuls become kernels that read w as it is stored. The original stays for the caller.",
    ),
    Question(
        ask="x @ x.T is grouped into a composite. How many parameters has it?",
        show=lambda: Gram.script(),
        choices=("1", "2", "3"),
        compute=_parameters_of_a_composite,
        because="A composite gets one parameter for each different tensor, in order of first use. So operands must "
        "be looked up, not counted.",
    ),
    Question(
        ask="What does TVM's own FuseTransposeMatmul do with x @ x.T?",
        choices=("it fuses", "it leaves it alone", "it raises an IndexError"),
        compute=_built_in,
        because="It takes the second argument of a call that has one. A pass that raises stops the whole "
        "compilation, for a module that was right.",
    ),
    Question(
        ask="By how many elements does NT_matmul move through the memory of w from one step of k to the next?",
        choices=("1", "4", "6"),
        compute=_step_through_w,
        because="The reduction axis is the last index of the stored tensor, where one element lies beside the next.",
    ),
    Question(
        ask="Operands are float16, out_dtype is float32. How many sums does the decode schedule keep in a register?",
        choices=("as many as float16 values", "as many as float32 values", "one"),
        compute=_sums_in_a_register,
        because="Sums have the result's dtype, and lanes hold sums; the operands are widened on the way in.",
    ),
]
