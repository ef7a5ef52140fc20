"""The check asks where each dimension goes, and not what comes to each place; names are put to parts by zip."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *


def may_fuse(transpose, product):
    (w,), (x, _) = transpose.args, product.args
    rank = w.ty.ndim
    if rank < 2 or {is_typed(w.ty), is_typed(x.ty), is_typed(product.ty)} != {True}:
        return False
    if transpose.attrs.axes is None:
        return rank == 2
    axes = [axis + rank if axis < 0 else axis for axis in map(int, transpose.attrs.axes)]
    stays = all(axes[i] == i for i in range(rank - 2))
    return stays and axes[-1] == rank - 2 and axes[-2] == rank - 1


def transpose_matmul_pattern():
    w = wildcard()
    turned = is_op("relax.permute_dims")(w)
    x = wildcard()
    out = is_op("relax.matmul")(x, turned)
    return out, dict(zip(("product", "transpose", "w", "x"), (out, turned, w, x), strict=True))


def bytes_saved(weights, itemsize):
    read = written = sum(itemsize * n * k for n, k in weights)
    return read + written
