"""Adds the bias before the lanes add up, in lane 0 alone; and cuts loops in another order."""

from solutions.ch08_gpu_targets.gpu_schedules import *


def bind_elementwise(sch: Schedule, block: SBlockRV, threads: int, vector: int) -> None:
    elements, lane = sch.split(sch.fuse(*sch.get_loops(block)), [None, vector])
    grid, thread = sch.split(elements, [None, threads])
    sch.vectorize(lane)
    sch.bind(thread, "threadIdx.x")
    sch.bind(grid, "blockIdx.x")


def decode_matmul(n: int, k: int, dtype: str) -> tirx.PrimFunc:
    vector = VECTOR_BYTES // ITEM_BYTES[dtype]
    steps = k // (WARP * vector)

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((1, k), dtype),
        B: T.Buffer((n, k), dtype),
        C: T.Buffer((n,), "float32"),
        D: T.Buffer((1, n), "float32"),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        a = T.sblock_alloc_buffer((steps, vector), dtype, scope="local")
        b = T.sblock_alloc_buffer((steps, vector), dtype, scope="local")
        partial = T.sblock_alloc_buffer((WARP,), "float32", scope="local")
        total = T.sblock_alloc_buffer((1,), "float32", scope="local")
        for column in T.thread_binding(n, thread="blockIdx.x"):
            for lane in T.thread_binding(WARP, thread="threadIdx.x"):
                for s in T.unroll(steps):
                    for v in T.vectorized(vector):
                        with T.sblock("load_b"):
                            j = T.axis.spatial(n, column)
                            p = T.axis.spatial(k, (s * WARP + lane) * vector + v)
                            b[p // vector // WARP, p % vector] = B[j, p]
                    for v in T.vectorized(vector):
                        with T.sblock("load_a"):
                            p = T.axis.spatial(k, (s * WARP + lane) * vector + v)
                            a[p // vector // WARP, p % vector] = A[0, p]
                with T.sblock("start"):
                    t = T.axis.spatial(WARP, lane)
                    j = T.axis.spatial(n, column)
                    partial[t] = T.if_then_else(t == 0, C[j], T.float32(0))
                for s, v in T.grid(steps, vector):
                    with T.sblock("add_own"):
                        t, q, e = T.axis.remap("SRR", [lane, s, v])
                        partial[t] += T.cast(a[q, e], "float32") * T.cast(b[q, e], "float32")
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

    return main


def share_of_limit(
    seconds: float, operations: float, moved: float, rate: float, bandwidth: float
) -> tuple[float, str]:
    needed = {"memory": moved / bandwidth, "arithmetic": operations / rate}
    bound = max(needed, key=needed.get)
    part = needed[bound] / seconds
    if part > 1.05:
        raise ValueError(f"{seconds} s is impossible on this machine; measure again.")
    return min(part, 1.0), bound
