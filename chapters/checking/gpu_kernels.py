"""What chapter 8's checks share: linear layers in NumPy, and their kernels run without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from chapters.checking import expect
from chapters.kit.emulator import cuda_on_cpu, wgsl_on_vulkan
from chapters.kit.emulator.executors import REQUIRED, executors, required
from chapters.kit.gpu.launches import (
    Launch,
    LaunchError,
    UnknownInstructionError,
    host_program,
)
from chapters.kit.gpu.targets import CUDA, WEBGPU
from chapters.runner.failure import CheckFailed, Skip
from chapters.runner.loading import explain_parser_error, find_refused_line, last_line

LANES = (
    "A vectorized loop becomes one vector, and CUDA has none of so many lanes. A loop that `reverse_compute_at` makes "
    "goes from a thread's first element to its last one: are they neighbours?"
)


def draw_arrays(
    m: int, n: int, k: int, dtype: str, seed: int = 0, out: str = "float32"
) -> list[np.ndarray]:
    """A (m, k), B (n, k), C (n,) of random numbers, and D (m, n) of not-a-number, of the dtype `out`.

    The biases are large compared with rounding errors: a bias that is lost or added twice shows in every element.
    """
    random = np.random.default_rng(seed)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k)))
    c = (3 + 5 * random.random(n)).astype("float32")
    return [a, b, c, np.full((m, n), np.nan, out)]


def exact(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The layer in float64."""
    return a.astype("float64") @ b.T.astype("float64") + c


def engines(dtype: str, *, wgsl: bool = True) -> list[tuple[str, Target, bool]]:
    """(name, target, backwards) of each way to execute a kernel on `dtype` here. Raises Skip if there is none.

    wgsl: whether the kernel may be run as WGSL, which has no bfloat16, no tensor cores, and vectors of four at most.
    """
    orders = [] if cuda_on_cpu.missing() else ["first", "last"]
    found = [(f"as CUDA, {first} thread first", CUDA, first == "last") for first in orders]
    if wgsl and not wgsl_on_vulkan.missing(dtype):
        found.append((f"as WGSL on {wgsl_on_vulkan.device_name()}", WEBGPU, False))
    absent = [executor.missing() for executor in executors()[:2] if executor.missing()]
    if absent and required():
        needed = f"what runs GPU code without a GPU: {REQUIRED} is set"
        raise CheckFailed(f"{'; '.join(absent)}.", expected=needed)
    if not found:
        other = f"; {wgsl_on_vulkan.missing(dtype)}. Either will do" if wgsl else ""
        raise Skip(f"{cuda_on_cpu.missing()}{other}.")
    return found


def launch(
    func: tirx.PrimFunc, given: list[np.ndarray], target: Target, backwards: bool, read: str
) -> list[Launch]:
    """Run `func` on `given`, in place; a fault that the engine finds in the kernel becomes a CheckFailed."""
    webgpu = target.kind.name == "webgpu"
    engine = wgsl_on_vulkan.run_wgsl if webgpu else cuda_on_cpu.CudaOnCpu(backwards)
    try:
        program = host_program(func, target)
    except Exception as error:
        said = last_line(error)
        if "No matched reducer" in said:
            raise CheckFailed(
                "TVM cannot make a kernel of your sum over threads.",
                expected="a sum over threads with an init and a step that TVM knows, such as 0 and addition",
                yours=f"TVM says: {said.partition(' / ')[0]}",
                why="TVM adds up what the threads have by a rule for this init and this step, and has few such rules.",
                read=read,
            ) from None
        raise CheckFailed(
            f"TVM cannot compile your schedule to a GPU kernel: {said}",
            expected="a PrimFunc that TVM can compile, whose every loop nest is bound to blocks and threads",
            why=LANES if re.search(r"Cannot convert type \S+\dx\d+ to", said) else "",
            read=read,
        ) from None
    try:
        return program.run(engine, given)
    except UnknownInstructionError as error:
        raise CheckFailed(
            f"The kernel cannot be run here: {error}",
            why="Either this is not valid CUDA, or the program that runs kernels here in place of a GPU does not know "
            "it.",
            read=read,
        ) from None
    except LaunchError as error:
        raise CheckFailed(
            f"The kernel is wrong. {error}",
            expected="every access inside its array, at a multiple of its own size, and a barrier between two threads "
            "that share an element",
            why="A GPU reports few such faults. It gives wrong numbers from time to time.",
            read=read,
        ) from None


def layer(
    func: tirx.PrimFunc, size: tuple[int, int, int], dtype: str, why: str, read: str, *, wgsl=True
) -> list[Launch]:
    """Run `func`, a linear layer of `size` (m, n, k), with every engine there is, and compare; the last launches."""
    launches: list[Launch] = []
    for seed, (how, target, backwards) in enumerate(engines(dtype, wgsl=wgsl)):
        given = draw_arrays(*size, dtype, seed)
        launches = launch(func, given, target, backwards, read)
        what = f"The result is not A times B transposed plus the bias, run {how}."
        near = {"rtol": 1e-4, "atol": 1e-4 * size[2] ** 0.5}
        expect.close(given[3], exact(*given[:3]), what, **near, why=why, read=read)
    return launches


def digest(func: tirx.PrimFunc, size: tuple[int, int, int], dtype: str) -> str:
    """Some numbers of the result in one order of the threads, rounded, or what went wrong: to tell answers apart."""
    given = draw_arrays(*size, dtype)
    for array in given[:2]:  # to halves, so that sums are exact in any order
        array[...] = np.round(array.astype("float32") * 2) / 2
    given[2][...] = np.round(given[2])
    try:
        _, target, backwards = engines(dtype, wgsl=False)[0]
        launch(func, given, target, backwards, "")
    except CheckFailed as error:
        return error.failure.what[:200]
    values = given[3].reshape(-1)[:: max(1, given[3].size // 24)]
    with np.errstate(all="ignore"):
        return str([f"{v:.0f}" if abs(v) < 1e6 else "?" for v in values.tolist()])


def parsed(make: Callable[[], object], exercise: str, read: str):
    """make(); what TVM's parser says of a region becomes NotImplementedError (still the stub's) or CheckFailed."""
    try:
        return make()
    except tvm.error.DiagnosticError as error:
        message, said = str(error), explain_parser_error(error)
        _, number, text = find_refused_line(error)
    yours = f"line {number}: {text}" if text else ""
    if "not implemented: Raise" in message:
        raise NotImplementedError(f"exercise {exercise}")
    if used := re.search(r'Loop iterator var (\w+) .* used inside .* block "(\w+)"', message):
        raise CheckFailed(
            f"Inside the block “{used[2]}”, your function uses the loop variable `{used[1]}`.",
            expected="inside a block, only its own axes: T.axis.spatial(…) or T.axis.reduce(…) of a loop variable",
            yours=f"TVM says: {said}",
            why="TVM learns from the axes which elements a block touches, because a schedule may change the loops "
            "around the block. So write an axis, such as `vi` in `vi = T.axis.spatial(…)`, and not the loop variable.",
            read=read,
        )
    if "auto detect buffer access region" in message:
        raise CheckFailed(
            "A block of your function passes a buffer as a pointer, and does not declare what it reads and writes.",
            expected="T.reads(…) and T.writes(…) in the first lines of the block",
            yours=yours,
            why="TVM does not see which elements are used behind a pointer.",
            read=read,
        )
    raise CheckFailed(
        f"TVM's parser refuses your function: {said}",
        expected="TVMScript: loops, blocks, loads, stores and T.… expressions",
        yours=yours,
        why="TVM's parser reads the body of a prim_func. Python never runs it.",
        read=read,
    )
