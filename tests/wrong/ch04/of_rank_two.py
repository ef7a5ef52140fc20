"""4.8: tensors of rank 2."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.8"
WHAT = "your tensors have rank 2"
WHY = (
    "Upstream's pass takes rank 3 for granted and raises at any other. That is a fault too, "
    "but another one."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def breaks_the_dispatch():
    @I.ir_module
    class Module:
        @R.function
        def main(
            x1: R.Tensor((3, 64), "float32"),
            x2: R.Tensor((3, 64), "float32"),
            weight: R.Tensor((64,), "float32"),
        ):
            with R.dataflow():
                norm = R.nn.rms_norm(R.add(x1, x2), weight, axes=[-1], epsilon=1e-5)
                R.output(norm)
            return norm

    return Module
