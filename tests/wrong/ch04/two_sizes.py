"""4.5: the norms have different hidden sizes."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.5"
WHAT = "the two pairs differ in hidden size"
WHY = (
    "The first kernel does not take the second pair's tensors, and the compiler says so. A "
    "mistake that is reported is half mended: look for a difference that fits."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def two_norms():
    @I.ir_module
    class Module:
        @R.function
        def main(
            x1: R.Tensor(("n", 1, 64), "float32"),
            weight: R.Tensor((64,), "float32"),
            y1: R.Tensor(("n", 1, 96), "float32"),
            other: R.Tensor((96,), "float32"),
        ):
            with R.dataflow():
                first = R.nn.rms_norm(R.add(x1, x1), weight, axes=[-1], epsilon=1e-5)
                second = R.nn.rms_norm(R.add(y1, y1), other, axes=[-1], epsilon=1e-5)
                R.output(first, second)
            return (first, second)

    return Module
