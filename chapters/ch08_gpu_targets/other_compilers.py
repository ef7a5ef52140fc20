"""Records what Inductor writes for two programs, and what Triton makes of the kernels for an H100. It needs no GPU.

`python -m chapters.ch08_gpu_targets.other_compilers` writes `docs/results/ch08_other_compilers.json`, in a minute.
It needs PyTorch and the version of Triton that PyTorch's CUDA build requires. PyTorch's CPU build is enough: Inductor
asks the device for a handful of numbers, and here it gets those of H100. It never launches what it writes.

Three of Inductor's initializers trace example programs on the GPU, to know their graphs later: those for attention, for
a few rare operators, and for the padding of odd sizes. They are left out. Neither program needs them.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from chapters.kit.bench.results import load, measure_and_save
from chapters.kit.draw.table import Table
from chapters.kit.gpu.limits import ITEM_BYTES

NAME = "ch08_other_compilers"
COMMAND = "python -m chapters.ch08_gpu_targets.other_compilers"
ROWS, SIZE, DTYPE, EPSILON = 2048, 4096, "float16", 1e-5
NORM, LINEAR, TUNED = "add and RMSNorm", "linear, bias, GELU", "linear, bias, GELU; max-autotune"
TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}  # of the candidate whose text is kept
H100 = {
    "name": "H100 SXM",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "total_memory": 80 << 30,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
}
COUNTED = ("wgmma.mma_async", "cp.async", "ld.global", "st.global", "bar.sync")


def describe_missing() -> str:
    """What is missing here to record the texts; "" if nothing is."""
    needed = {"torch": "PyTorch", "triton": "Triton"}
    absent = [name for module, name in needed.items() if not importlib.util.find_spec(module)]
    return f"{' and '.join(absent)} not installed" if absent else ""


# --- what Inductor writes -------------------------------------------------------------------------


class _Written(Exception):
    """Inductor has written its text, and would now load it."""


@contextmanager
def _pretend_h100():
    """PyTorch and Triton take it that there is an H100. Nothing can run on it."""
    import torch
    from torch._dynamo.device_interface import CudaInterface, register_interface_for_device
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    properties, target = SimpleNamespace(**H100), GPUTarget("cuda", 90, 32)
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (9, 0),
        "get_rng_state": torch.zeros(1),
        **dict.fromkeys(("_exchange_device", "_maybe_exchange_device"), 0),
        **dict.fromkeys(("_lazy_init", "set_device", "set_rng_state", "synchronize"), None),
    }
    seen = ("current_device", "device_count", "get_device_properties", "synchronize")
    passes = "torch._inductor.fx_passes"
    skipped = (
        "fuse_attention._sfdp_init",
        "misc_patterns._misc_patterns_init",
        "pad_mm._pad_mm_init",
    )
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, _return_always(answer)))
        for name in seen:
            given = staticmethod(_return_always(answers[name]))
            stack.enter_context(mock.patch.object(CudaInterface, name, given))
        for name in skipped:
            stack.enter_context(mock.patch(f"{passes}.{name}", _return_always(None)))
        register_interface_for_device("cuda:0", CudaInterface)
        active = SimpleNamespace(get_current_target=_return_always(target))
        stack.enter_context(mock.patch.object(driver, "_active", active))
        yield


def _return_always(answer):
    return lambda *_, **__: answer


def write_with_inductor(function, shapes, **options) -> str:
    """The module that Inductor writes for `function` of tensors of these shapes. options: of Inductor's config."""
    import torch
    import torch._inductor.config as config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering
    from torch._subclasses.fake_tensor import FakeTensorMode

    written: list[str] = []

    def stop(graph):
        written.append(graph.codegen()[0].value)
        raise _Written

    loading = mock.patch.object(GraphLowering, "_compile_to_module", stop)
    options |= {"force_disable_caches": True}
    with _pretend_h100(), config.patch(options), loading, torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True):
            kind = getattr(torch, DTYPE)
            tensors = [torch.empty(shape, dtype=kind, device="cuda:0") for shape in shapes]
        try:
            compile_fx(torch.fx.symbolic_trace(function), tensors)(*tensors)
        except Exception:
            if not written:
                raise
    lines = written[0].splitlines()
    return "\n".join(line for line in lines if not line.startswith("# kernel path:")) + "\n"


def _norm(x1, x2, weight):
    import torch

    total = x1 + x2
    return torch.nn.functional.rms_norm(total, (SIZE,), weight, EPSILON), total


def _linear(x, w, bias):
    from torch.nn import functional

    return functional.gelu(functional.linear(x, w, bias))


def write_tuned() -> tuple[str, list[str]]:
    """(the text with the template of TILE, all candidates): Inductor would measure these, and keep the fastest."""
    from torch._inductor import select_algorithm

    candidates: list[str] = []

    def only_one(choices):
        candidates.extend(described(choice) for choice in choices)
        wanted = [f"{name}={size}" for name, size in TILE.items()]
        fits = [c for c in choices if all(part in described(c).split(", ") for part in wanted)]
        return fits[:1] or choices[:1]

    def described(choice) -> str:
        kind = re.sub(r"_\d+$", "", choice.name)
        return ", ".join(filter(None, (kind, getattr(choice, "description", ""))))

    select_algorithm.add_preprocessing_fn(only_one)
    try:
        text = write_with_inductor(_linear, _LINEAR_SHAPES, max_autotune=True)
    finally:
        select_algorithm.clear_preprocessing_fns()
    return text, candidates


_LINEAR_SHAPES = ((ROWS, SIZE), (SIZE, SIZE), (SIZE,))


# --- what Triton makes of the kernels -------------------------------------------------------------


def count_registers(kernel, constants: dict[str, object], **options) -> dict:
    """How often instructions occur in the PTX of a Triton kernel for sm_90, and its bytes of shared memory.

    kernel: its numbers are epsilon or int32, its other arguments pointers to DTYPE.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = {"epsilon": "fp32", **dict.fromkeys(("m", "n", "k", "size"), "i32")}
    kinds |= dict.fromkeys(("xnumel", "r0_numel"), "i32")
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else kinds.get(name, "*fp16") for name in names}
    aligned = [n for n, name in enumerate(names) if types[name] in ("*fp16", "i32")]
    source = ASTSource(
        kernel,
        signature=types,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(n,): [["tt.divisibility", 16]] for n in aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found = {name: len(re.findall(rf"\b{re.escape(name)}\b", made.asm["ptx"])) for name in COUNTED}
    return {**found, "shared": made.metadata.shared}


def cut_kernel(text: str) -> str:
    """The one Triton kernel of Inductor's text, from `@triton.jit` on."""
    (kernel,) = re.findall(r"^@triton\.jit\n.*?(?=^''')", text, re.DOTALL | re.MULTILINE)
    return kernel


def cut_call(text: str) -> str:
    """The lines of Inductor's text that allocate, launch and return."""
    return re.search(r"^    def call\(.*?(?=^runner)", text, re.DOTALL | re.MULTILINE)[0]


def _as_kernel(text: str):
    """Inductor's kernel as Triton's object; Triton reads its text from a file."""
    head = "import triton\nimport triton.language as tl\n"
    head += "from torch._inductor.runtime.triton_helpers import libdevice\n\n\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.py")
        path.write_text(head + cut_kernel(text), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("inductor_kernel", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, re.search(r"def (\w+)", cut_kernel(text))[1])


def _counts(texts: dict[str, str]) -> dict[str, dict]:
    from chapters.ch04_add_rms_norm.triton_add_norm import _add_norm
    from chapters.ch08_gpu_targets.triton_linear_gelu import FIRST_TILE, _linear_gelu

    options = re.search(r"num_stages=(\d+),\s*num_warps=(\d+)", texts[TUNED])
    stages, warps = map(int, options.groups())
    with _pretend_h100():
        return {
            f"{NORM}: our Triton": count_registers(_add_norm, {"BLOCK": SIZE}, num_warps=4),
            f"{NORM}: Inductor, R0_BLOCK=2048": count_registers(
                _as_kernel(texts[NORM]), {"XBLOCK": 1, "R0_BLOCK": 2048}, num_warps=16
            ),
            f"{LINEAR}: our Triton": count_registers(
                _linear_gelu, FIRST_TILE, num_warps=8, num_stages=3
            ),
            f"{LINEAR}: Inductor, default": count_registers(
                _as_kernel(texts[LINEAR]), {"XBLOCK": 1024}, num_warps=4
            ),
            f"{LINEAR}: Inductor, max-autotune": count_registers(
                _as_kernel(texts[TUNED]), {}, num_warps=warps, num_stages=stages
            ),
        }


# --- the record -----------------------------------------------------------------------------------


def record() -> dict:
    """The texts, the candidates of max-autotune, and the counts."""
    tuned, candidates = write_tuned()
    texts = {
        NORM: write_with_inductor(_norm, ((ROWS, SIZE), (ROWS, SIZE), (SIZE,))),
        LINEAR: write_with_inductor(_linear, _LINEAR_SHAPES),
        TUNED: tuned,
    }
    told = {"H100": H100, "rows": ROWS, "size": SIZE, "dtype": DTYPE}
    return {**told, "texts": texts, "candidates": candidates, "counts": _counts(texts)}


def bytes_table() -> Table:
    """Per program and compiler: kernels, and bytes to and from memory if each tensor that a kernel names moves once."""
    item = ITEM_BYTES[DTYPE]
    tensor, weight = ROWS * SIZE * item, SIZE * SIZE * item

    def row(program: str, compiler: str, kernels: int, tensors: int, rest: int) -> tuple:
        return program, compiler, str(kernels), f"{(tensors * tensor + rest) / 1e6:.1f} MB"

    vector = SIZE * item
    return Table(
        ("program", "compiler", "kernels", "bytes"),
        [
            row(NORM, "ours", 1, 4, vector),
            row(NORM, "Triton", 1, 4, vector),
            row(NORM, "Inductor", 1, 5, vector),
            row(LINEAR, "ours", 1, 2, weight + 2 * vector),
            row(LINEAR, "Triton", 1, 2, weight + vector),
            row(LINEAR, "Inductor, default", 2, 4, weight + vector),
            row(LINEAR, "Inductor, max-autotune", 1, 2, weight + vector),
        ],
    )


def counts_table(measured: dict) -> Table:
    """One row per kernel: how often each instruction of COUNTED stands in its PTX."""
    rows = [(name, *map(str, counts.values())) for name, counts in measured["counts"].items()]
    return Table(("kernel", *COUNTED, "bytes of shared memory"), rows)


def our_text(program: str) -> str:
    """The CUDA that TVM writes for our kernel of NORM or LINEAR, without the helpers above it."""
    from chapters.ch04_add_rms_norm.gpu_norms import kernels
    from chapters.ch08_gpu_targets import gelu_layers
    from chapters.kit.bench.gpu_linear_bench import Layer
    from chapters.kit.gpu import mma
    from chapters.kit.gpu.launches import HostProgram
    from chapters.kit.gpu.targets import CUDA

    if program == NORM:
        func = kernels((ROWS, 1, SIZE), DTYPE)["wide_kernel"]
    else:
        tile = mma.choose_tile(ROWS, SIZE, SIZE)
        func = gelu_layers.make_kernel(Layer(ROWS, SIZE, SIZE, DTYPE), tile)
    (kernel,) = HostProgram(func, CUDA).kernels.values()
    return kernel.source[kernel.source.rindex('extern "C" __global__') :].rstrip()


def excerpt(text: str, *parts: tuple[str, str, int]) -> str:
    """Some lines of `text`, and how many are left out between. parts: (first, last, columns to keep).

    A part runs from the next line that contains `first` to the next after it that contains `last`.
    """
    lines, at, shown = text.splitlines(), 0, []
    for first, last, width in parts:
        start = next(n for n in range(at, len(lines)) if first in lines[n])
        end = next(n for n in range(start, len(lines)) if last in lines[n])
        shown += [_count_left_out(start - at)] if start > at else []
        shown += [x if len(x) <= width else f"{x[:width]}…" for x in lines[start : end + 1]]
        at = end + 1
    return "\n".join([*shown, *([_count_left_out(len(lines) - at)] if at < len(lines) else [])])


def _count_left_out(lines: int) -> str:
    return f"    … {lines} line{'s' * (lines > 1)}"


def text_of(program: str) -> str:
    """What Inductor wrote for NORM, LINEAR or TUNED: its kernel, and below it the lines that call it."""
    text = load(NAME)["measured"]["texts"][program]
    return f"{cut_kernel(text)}\n{cut_call(text)}".rstrip()


def show_record(measured: dict) -> str:
    """The counts, and the candidates of max-autotune."""
    return "\n".join([str(counts_table(measured)), *measured["candidates"]])


if __name__ == "__main__":
    sys.exit(measure_and_save(NAME, record, show_record, COMMAND, describe_missing()))
