"""3.3: w is read as if it had been transposed already."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.3"
WHAT = "the reduction runs along the second to last index of w, as if it were transposed already"
WHY = (
    "matmul reduces over the second to last dimension of its second operand, and that operand was the "
    "transpose. In the stored w the same elements lie along the last index: w[…, j, k]."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 2: make the kernel”"


def nt_matmul(w, x, out_dtype):
    batch = broadcast(x.shape[:-2], w.shape[:-2])
    m, n = x.shape[-2:-1], w.shape[-2]
    k = te.reduce_axis((0, x.shape[-1]), name="k")

    def element(*index):
        *lead, j = index
        lead, i = lead[: len(batch)], lead[len(batch) :]
        from_x = x(*batch_index(x.shape[:-2], lead), *i, k).astype(out_dtype)
        from_w = w(*batch_index(w.shape[:-2], lead), k, j).astype(out_dtype)
        return te.sum(from_x * from_w, axis=k)

    return te.compute((*batch, *m, n), element, name="NT_matmul")
