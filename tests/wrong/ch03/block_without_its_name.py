"""3.3: the block is called compute."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.3"
WHAT = "the kernel is right and its block has no name that a schedule could find"
WHY = (
    "te.compute calls its block `compute` unless it is told a name. A schedule asks for its block by name, and so do "
    "the passes that look for this kernel."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 2: make the kernel”"


def nt_matmul(w, x, out_dtype):
    batch = broadcast(x.shape[:-2], w.shape[:-2])
    m, n, length = x.shape[-2:-1], w.shape[-2], x.shape[-1]
    k = te.reduce_axis((0, length), name="k")

    def element(*index):
        *lead, j = index
        lead, i = lead[: len(batch)], lead[len(batch) :]
        from_x = x(*batch_index(x.shape[:-2], lead), *i, k).astype(out_dtype)
        from_w = w(*batch_index(w.shape[:-2], lead), j, k).astype(out_dtype)
        return te.sum(from_x * from_w, axis=k)

    return te.compute((*batch, *m, n), element)
