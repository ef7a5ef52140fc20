"""4.5: tensors of (2, 3, 64)."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.5"
WHAT = "the shape is neither that of a prefill nor that of a decode"
WHY = (
    "Upstream takes (2, 3, 64) for a decode, whose kernel wants a 1 there, and the compiler says so. That is "
    "exercise 4.8; here both pairs are served, one of them wrongly."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def two_norms():
    @I.ir_module
    class Module:
        @R.function
        def main(
            x1: R.Tensor((2, 3, 64), "float32"),
            x2: R.Tensor((2, 3, 64), "float32"),
            weight: R.Tensor((64,), "float32"),
        ):
            with R.dataflow():
                first = R.nn.rms_norm(R.add(x1, x2), weight, axes=[-1], epsilon=1e-5)
                second = R.nn.rms_norm(R.add(first, x2), weight, axes=[-1], epsilon=0.5)
                R.output(second)
            return second

    return Module
