"""Starts the sum of each of the 32 lanes from the bias."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.10"
WHAT = "a bias that every lane adds"
WHY = (
    "The fused init is right for a sum that one thread makes. Here 32 lanes make one sum, and their parts "
    "are added: what each of them starts from is in the result 32 times."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “When it must not fire”"


def decode_matmul(n: int, k: int, dtype: str) -> tirx.PrimFunc:
    vector = VECTOR_BYTES // ITEM_BYTES[dtype]
    steps = k // (WARP * vector)
    group = math.gcd(steps, 8)  # more than that many vectors of A and B do not fit into registers

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((1, k), dtype),
        B: T.Buffer((n, k), dtype),
        C: T.Buffer((n,), "float32"),
        D: T.Buffer((1, n), "float32"),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        a = T.sblock_alloc_buffer((group, vector), dtype, scope="local")
        b = T.sblock_alloc_buffer((group, vector), dtype, scope="local")
        partial = T.sblock_alloc_buffer((WARP,), "float32", scope="local")
        total = T.sblock_alloc_buffer((1,), "float32", scope="local")
        # BEGIN exercise 8.10 (about 40 lines): each lane starts from the bias; then the lanes add up
        for column in T.thread_binding(n, thread="blockIdx.x"):
            for lane in T.thread_binding(WARP, thread="threadIdx.x"):
                with T.sblock("start"):
                    t = T.axis.spatial(WARP, lane)
                    j = T.axis.spatial(n, column)
                    partial[t] = C[j]
                for g in T.serial(steps // group):
                    for s in T.unroll(group):
                        for v in T.vectorized(vector):
                            with T.sblock("load_b"):
                                j = T.axis.spatial(n, column)
                                p = T.axis.spatial(k, ((g * group + s) * WARP + lane) * vector + v)
                                b[p // vector // WARP % group, p % vector] = B[j, p]
                    for s in T.unroll(group):
                        for v in T.vectorized(vector):
                            with T.sblock("load_a"):
                                p = T.axis.spatial(k, ((g * group + s) * WARP + lane) * vector + v)
                                a[p // vector // WARP % group, p % vector] = A[0, p]
                    for s, v in T.grid(group, vector):
                        with T.sblock("add_own"):
                            t = T.axis.spatial(WARP, lane)
                            q = T.axis.reduce(steps, g * group + s)
                            e = T.axis.reduce(vector, v)
                            partial[t] += T.cast(a[q % group, e], "float32") * T.cast(
                                b[q % group, e], "float32"
                            )
            for lane in T.thread_binding(WARP, thread="threadIdx.x"):
                with T.sblock("add_lanes"):
                    t = T.axis.reduce(WARP, lane)
                    with T.init():
                        total[0] = T.float32(0)
                    total[0] += partial[t]
            for lane in T.thread_binding(WARP, thread="threadIdx.x"):
                with T.sblock("store"):
                    j = T.axis.spatial(n, column)
                    T.where(lane == 0)
                    D[0, j] = total[0]
        # END exercise 8.10

    return main
