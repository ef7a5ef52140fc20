"""4.3: one row a block, the sum in shared memory: TVM writes the barrier there. Rows by ceildiv, other loop order."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *


def row_kernel(dims, hidden_size, dtype, epsilon, threads):
    rounds = -(-hidden_size // threads)
    rows = math.prod(dims, start=tirx.IntImm("int64", 1))
    shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)

    @T.prim_func(private=True, s_tir=True)
    def kernel(a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        left = T.match_buffer(a, shape, dtype)
        right = T.match_buffer(b, shape, dtype)
        scale = T.match_buffer(c, (hidden_size,), dtype)
        out = T.match_buffer(d, shape, dtype)
        both = T.match_buffer(e, shape, dtype)
        mine = T.sblock_alloc_buffer((rounds,), dtype, scope="local")
        part = T.sblock_alloc_buffer((threads,), "float32", scope="local")
        whole = T.sblock_alloc_buffer((1,), "float32", scope="shared")
        for block in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("zero"):
                    t = T.axis.spatial(threads, thread)
                    part[t] = T.float32(0)
                for i in range(rounds):
                    with T.sblock("all_a_thread_does_alone"):
                        row = T.axis.spatial(rows, block)
                        t = T.axis.spatial(threads, thread)
                        k = T.axis.spatial(rounds, i)
                        T.where(i * threads + thread < hidden_size)
                        mine[k] = (
                            left[(*at(row), k * threads + t)] + right[(*at(row), k * threads + t)]
                        )
                        both[(*at(row), k * threads + t)] = mine[k]
                        part[t] = part[t] + T.float32(mine[k]) * T.float32(mine[k])
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("meet"):
                    t = T.axis.reduce(threads, thread)
                    with T.init():
                        whole[0] = T.float32(0)
                    whole[0] += part[t]
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                for i in range(rounds):
                    with T.sblock("scale"):
                        row = T.axis.spatial(rows, block)
                        t = T.axis.spatial(threads, thread)
                        k = T.axis.spatial(rounds, i)
                        T.where(i * threads + thread < hidden_size)
                        out[(*at(row), k * threads + t)] = T.cast(
                            T.float32(mine[k])
                            / T.sqrt(whole[0] / T.float32(hidden_size) + T.float32(epsilon))
                            * T.float32(scale[k * threads + t]),
                            dtype,
                        )

    return kernel
