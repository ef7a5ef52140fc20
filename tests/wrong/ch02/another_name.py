"""2.10: the variable of score has another name."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.10"
WHAT = "the bound does not reach score: its variable has another name"
WHY = (
    "Bounds are found by name. With a name of its own score is safe; it is the shared name that "
    "makes the bound lie."
)
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
        def score(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
            with R.dataflow():
                inner = R.exp(x)
                out = R.negative(inner)
                R.output(out)
            return out

    return Two, np.ones((1000, 16), "float32")
