"""2.10: the array is no longer than the bound."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.10"
WHAT = "the array keeps to the bound"
WHY = "With at most 64 rows the bound is true of score too, and nothing can go wrong."
READ = "chapters/ch02_attach_metadata/lesson.md, “Break it”"


def lying_bound():
    @I.ir_module
    class Two:
        @R.function
        def prefill(x: R.Tensor(("seq_len", 16), "float32")) -> R.Tensor(
            ("seq_len", 16), "float32"
        ):
            with R.dataflow():
                out = R.nn.silu(x)
                R.output(out)
            return out

        @R.function
        def score(x: R.Tensor(("seq_len", 16), "float32")) -> R.Tensor(("seq_len", 16), "float32"):
            with R.dataflow():
                inner = R.exp(x)
                out = R.negative(inner)
                R.output(out)
            return out

    return Two, np.ones((64, 16), "float32")
