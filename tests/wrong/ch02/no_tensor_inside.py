"""2.10: score has no tensor between input and output."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.10"
WHAT = "score has no tensor inside for the planner to find room for"
WHY = (
    "Its only tensor is its output, which is allocated in its true size when it runs. Two "
    "operators in a row leave one tensor between them."
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
        def score(x: R.Tensor(("seq_len", 16), "float32")) -> R.Tensor(("seq_len", 16), "float32"):
            with R.dataflow():
                out = R.exp(x)
                R.output(out)
            return out

    return Two, np.ones((1000, 16), "float32")
