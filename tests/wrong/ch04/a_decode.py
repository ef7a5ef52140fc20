"""4.8: a decode of three sequences."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.8"
WHAT = "your tensors are those of a decode"
WHY = "(n, 1, hidden) is what the decode kernel was written for."
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def breaks_the_dispatch():
    @I.ir_module
    class Module:
        @R.function
        def main(
            x1: R.Tensor((3, 1, 64), "float32"),
            x2: R.Tensor((3, 1, 64), "float32"),
            weight: R.Tensor((64,), "float32"),
        ):
            with R.dataflow():
                norm = R.nn.rms_norm(R.add(x1, x2), weight, axes=[-1], epsilon=1e-5)
                R.output(norm)
            return norm

    return Module
