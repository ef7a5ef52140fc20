"""3.3: the operands are multiplied in their own dtype and the product is cast."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.3"
WHAT = "the product is computed in the operands' dtype and cast afterwards"
WHY = (
    "out_dtype is there so that float16 products do not overflow or lose digits. What is lost in the "
    "product, no cast brings back: cast each operand first."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 2: make the kernel”"


def nt_matmul(w, x, out_dtype):
    batch = broadcast(x.shape[:-2], w.shape[:-2])
    m, n = x.shape[-2:-1], w.shape[-2]
    k = te.reduce_axis((0, x.shape[-1]), name="k")

    def element(*index):
        *lead, j = index
        lead, i = lead[: len(batch)], lead[len(batch) :]
        from_x = x(*batch_index(x.shape[:-2], lead), *i, k)
        from_w = w(*batch_index(w.shape[:-2], lead), j, k)
        return te.sum((from_x * from_w).astype(out_dtype), axis=k)

    return te.compute((*batch, *m, n), element, name="NT_matmul")
