"""Runs TVM's CUDA C on this CPU: the generated text itself, compiled by g++, with one fiber per thread.

`cuda_on_cpu.hpp` defines CUDA's names and says what is checked while a kernel runs. It reports a race in whichever
order the threads run. Run them forwards and backwards, or in random orders, to see whether the order changes a result.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from chapters.kit.gpu.launches import (
    TENSOR_MAP,
    Kernel,
    Launch,
    LaunchError,
    UnknownInstructionError,
)
from chapters.kit.kept_files import cache_subfolder, keep_file, last_used, short_hash

HEADER = Path(__file__).with_suffix(".hpp")
INCLUDED = ("watch_on_cpu.hpp", "mma_on_cpu.hpp", "hopper_on_cpu.hpp")  # by HEADER
COMPILED_ONCE = ("run_grid_on_cpu", "watch_on_cpu", "mma_on_cpu", "hopper_on_cpu")
SOURCES = tuple(HEADER.with_name(name) for name in (HEADER.name, *INCLUDED)) + tuple(
    HEADER.with_name(f"{name}.cpp") for name in COMPILED_ONCE
)
# -Og: kernels run for a moment here, and -O1 takes a third longer to compile them.
# Locals hold a pattern before they are set, so that a register that is read too early is not zero by luck.
# Each kernel needs its own copy of all variables; by default the first library loaded provides some of them for all.
FLAGS = ["-Og", "-w", "-std=c++17", "-fPIC", "-ftrivial-auto-var-init=pattern"]
FLAGS += ["-fno-gnu-unique", "-fvisibility=hidden"]
# Kernels run on one thread of this machine. Fibers jump between stacks, which a fortified longjmp takes for an error.
FLAGS += ["-fno-threadsafe-statics", "-U_FORTIFY_SOURCE"]


def _declare_watched(declared: re.Match) -> str:
    name = declared["name"]
    return f'static Shared<{declared["type"]}, {declared["size"]}> {name}("{name.removesuffix("_ptr")}");'


# PTX's instructions, and the function of the headers that stands in for each
_STAND_INS = {
    r"cp\.async\.ca\.shared\.global": "cp_async_bytes",
    r"cp\.async\.cg\.shared\.global": "cp_async_cg_bytes",
    r"cp\.async\.commit_group": "cp_async_commit",
    r"cp\.async\.wait_group": "cp_async_wait",
    r"ldmatrix\.sync\.aligned\.m8n8\.x[124]\.shared\.b16": "ldmatrix<false>",
    r"ldmatrix\.sync\.aligned\.m8n8\.x[124]\.trans\.shared\.b16": "ldmatrix<true>",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32": "mma_m16n8k16<half>",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32": "mma_m16n8k16<nv_bfloat16>",
}
_OPERAND = re.compile(r'"[=+]?[a-z]"\(([^()]*)\)')


def _call_stand_in(assembly: re.Match) -> str:
    """A statement of inline PTX as a call of its stand-in, with the operands in the order of PTX's text."""
    operands = _OPERAND.findall(assembly["operands"])
    name, _, rest = assembly["text"].strip().rstrip(";").partition(" ")
    stand_in = next((s for pattern, s in _STAND_INS.items() if re.fullmatch(pattern, name)), None)
    if stand_in is None:
        raise UnknownInstructionError(f"PTX's {name} has no stand-in on the CPU.")
    given = [part.strip() for part in re.sub(r"[{}\[\]]", "", rest).split(",") if part.strip()]
    named = [operands[int(part[1:])] if part.startswith("%") else part for part in given]
    return f"{stand_in}({', '.join(named)});"


# Hopper's instructions, each a device function with a line of assembly in TVM's text: calls of the functions of
# hopper_on_cpu.hpp. An instruction that it lacks keeps TVM's name, and g++ reports it as unknown.
_PTX = r"\btvm_builtin_ptx_"
_COPY = (
    _PTX + r"cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_[25]d"
    r"_shared__cluster_global_mbarrier__complete_tx__bytes\("
)
_TYPES = {"f16": "half", "bf16": "nv_bfloat16"}
HOPPER: dict[str, str | Callable[[re.Match], str]] = {
    _PTX + r"wgmma_(b?f16)_ss_mma_async_sync_aligned_m64n(\d+)k16_f32_\1_\1_1_1_0_0\(": (
        lambda found: f"wgmma<{_TYPES[found[1]]}, {found[2]}>("
    ),
    _PTX + r"wgmma_fence_fence_sync_aligned\(": "wgmma_fence(",
    _PTX + r"wgmma_commit_group_commit_group_sync_aligned\(": "wgmma_commit(",
    _PTX + r"wgmma_wait_group_wait_group_sync_aligned_(\d+)\(": r"wgmma_wait(\1",
    _PTX + r"mbarrier_init_init_shared_b64\(": "mbarrier_init(",
    _PTX + r"mbarrier_arrive_arrive_shared_b64(?:_pred)?\(": "mbarrier_arrive(",
    _PTX + r"mbarrier_arrive_expect_tx_arrive_expect_tx_shared_b64\(": "mbarrier_arrive_expect(",
    _PTX + r"fence_proxy_proxy_async_shared__cta\(": "fence_proxy_async(",
    _COPY: "bulk_copy(",
    r"\btvm_builtin_cuda_mbarrier_wait\(": "mbarrier_wait(",
    r"\btvm_builtin_cuda_cta_sync\(": "__syncthreads(",
    r"\b__cvta_generic_to_shared\(": "shared_address(",
    r"\bconst __grid_constant__ CUtensorMap\b": "CUtensorMap",
}
_HELPERS = r"\b(?:hold_register|anew)\("  # of wgmma.py
# A device function from its first line to its closing brace; assembly has braces of its own.
_FUNCTION = re.compile(r"^(__forceinline__ __device__ [^\n]*)\{\n(?:(?!\}\n)[^\n]*\n)*\}\n", re.M)
_SUMS = re.compile(r"\bwgmma<\w+, \d+>\((\w+)\[")
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?uchar (\w+)\[\];")


def _rename_hopper(text: str) -> str:
    """`text` without the device functions that hopper_on_cpu.hpp replaces, and with calls of its functions.

    Text without a wgmma or an mbarrier stays as it is.
    """
    if "wgmma" not in text and "mbarrier" not in text:
        return text

    def drop(function: re.Match) -> str:
        replaced = any(re.search(pattern, function[1]) for pattern in (*HOPPER, _HELPERS))
        return "" if replaced else function[0]

    text = _FUNCTION.sub(drop, text)
    for instruction, stand_in in HOPPER.items():
        text = re.sub(instruction, stand_in, text)
    # a fence must know the sums, to see that none is written between it and the next product
    sums = ", ".join(sorted(set(_SUMS.findall(text))))
    text = text.replace("wgmma_fence()", f"wgmma_fence({sums})")
    for pool in _DYNAMIC.findall(text):  # a plain access, not an address, is watched
        text = re.sub(rf"(?<!&\()\(\((\w+)\*\)({pool})\)\[", r"in_pool<\1>(\2)[", text)
    return _DYNAMIC.sub(r"uchar* const \1 = dynamic_shared;", text)


# From CUDA C to C++ with cuda_on_cpu.hpp: patterns and their replacements, applied one after another. ARRAYS stands for
# the names of the arrays in shared and global memory, BYTES for the size of the dynamic array: the launch decides it.
REWRITES: dict[str, str | Callable[[re.Match], str]] = {
    # integers of one byte: types of one word, as the patterns below expect
    r"\bunsigned char\b": "uint8_t",
    r"\bsigned char\b": "int8_t",
    # TVM's older asynchronous copies are functions with pointers and offsets: the header has one for all
    r"__forceinline__ __device__ void ptx_cp_async_legacy_\w+\([^)]*\) \{[^{}]*asm volatile[^{}]*\}\n": "",
    # dynamic shared memory: an array of a known size
    r"extern __shared__ (?:__align__\(\d+\) )?(?P<type>\w+) (?P<name>\w+)\[\];": (
        r"__shared__ \g<type> \g<name>[BYTES / sizeof(\g<type>)];"
    ),
    # an access of several elements at once: an access that is watched
    r"\*\((\w+)\*\)\((?=(?:ARRAYS)\b)": r"wide<\1>(",
    # an array in shared memory: one whose accesses are watched
    r"__shared__ (?:alignas\(\d+\) )?(?P<type>\w+) (?P<name>\w+)\[(?P<size>[^\]]+)\];": _declare_watched,
    # an instruction of inline PTX: a call of its stand-in
    r'asm volatile\(\s*"(?P<text>[^"]*)"(?P<operands>[^;]*)\);': _call_stand_in,
    # calls of the older copies
    r"\bptx_cp_async_legacy_c[ag]_(\d+)_\d+_\d+\(": r"cp_async<\1>(",
    # volatile: accesses are watched without it
    r"\(\(volatile \w+\*\)(\w+)\)": r"\1",
    # a pointer to global memory: an argument that knows its size
    r"(?P<type>\w+)\* __restrict__ (?P<name>\w+)": r"Argument<\g<type>> \g<name>",
    # the kernel: an ordinary function
    r'extern "C" __global__': "static",
}


@functools.cache
def missing() -> str:
    """Why kernels cannot run here; "" if they can."""
    if sys.platform != "linux":
        return "running CUDA text on the CPU needs Linux"
    compiler = shutil.which("g++")
    if compiler is None:
        return "running CUDA text on the CPU needs g++ 12 or later, and there is no g++"
    asked = [compiler, "-dumpversion"]
    version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not version or int(version.split(".")[0]) < 12:
        return f"running CUDA text on the CPU needs g++ 12 or later; this is {version or 'not g++'}"
    return ""


class CudaOnCpu:
    """An engine for HostProgram.run. backwards: let the last thread of a block, and the last block, go first.

    seed: 1 or more, for a random order of threads, warps, blocks and copies in place of a fixed one.
    """

    def __init__(self, backwards: bool = False, seed: int = 0):
        self.order = seed or (-1 if backwards else 0)

    def __call__(self, launch: Launch) -> None:
        arrays = "handle", TENSOR_MAP
        kept = [
            np.ascontiguousarray(value) if dtype in arrays else np.array(value, dtype)
            for dtype, value in zip(launch.kernel.dtypes, launch.arguments, strict=True)
        ]
        addresses = (ctypes.c_void_p * len(kept))(*[array.ctypes.data for array in kept])
        sizes = (ctypes.c_int64 * len(kept))(*[array.size for array in kept])
        triple = ctypes.c_uint * 3
        run = _load_program(write_program(launch.kernel, launch.shared_bytes))
        how = triple(*launch.grid), triple(*launch.block), ctypes.c_uint(launch.shared_bytes)
        problem = run(addresses, sizes, *how, self.order)
        if problem:
            seed = f" The order of the threads was random, of seed {self.order}."
            raise LaunchError(problem.decode() + (seed if self.order > 0 else ""))


@functools.lru_cache(maxsize=256)
def write_program(kernel: Kernel, shared_bytes: int = 0) -> str:
    """The C++ text that is compiled for `kernel`: the header, TVM's function, and a function that runs a whole grid.

    shared_bytes: of dynamic shared memory, which the launch decides.
    """
    prelude, start, kernels = kernel.source.partition('extern "C" __global__')
    # TVM's own prelude ends with an #endif; the device functions that the kernel needs follow it
    text = translate(prelude.rpartition("#endif\n")[2] + start + kernels, shared_bytes)
    return "\n".join([f'#include "{HEADER.name}"', text, *_write_entry(kernel.name, text)])


def translate(text: str, shared_bytes: int) -> str:
    """Device functions and kernels in CUDA C as C++ with cuda_on_cpu.hpp: Hopper's instructions, then REWRITES."""
    text = _rename_hopper(text)
    arrays = re.findall(r"__shared__ (?:(?:alignas|__align__)\(\d+\) )?\w+ (\w+)\[", text)
    arrays += set(re.findall(r"\* __restrict__ (\w+)", text))
    for pattern, replacement in REWRITES.items():
        if "ARRAYS" in pattern and not arrays:
            continue
        pattern = pattern.replace("ARRAYS", "|".join(arrays))
        if isinstance(replacement, str):
            replacement = replacement.replace("BYTES", str(shared_bytes))
        text = re.sub(pattern, replacement, text)
    return text


def _write_entry(name: str, text: str) -> list[str]:
    """Lines of C++ that set the arguments of the kernel called `name` in `text`, and run it for a whole grid."""
    parameters = re.findall(rf"{re.escape(name)}\(([^)]*)\)", text)[0].split(",")
    watched = str("in_pool<" in text).lower()
    setting = [
        f'kernel_name = "{name}"; dynamic_bytes = shared_bytes; pool_is_watched = {watched};',
        f"new_arguments({len(parameters)});",
    ]
    kept = []
    for n, parameter in enumerate(parameters):
        kind, called = (part.strip() for part in parameter.rsplit(" ", 1))
        kept.append(f"static {kind} argument{n};")
        if kind == "CUtensorMap":
            setting.append(f"memcpy(&argument{n}, p[{n}], sizeof argument{n});")
        elif element := re.fullmatch(r"Argument<(\w+)>", kind):
            called = called.removesuffix("_ptr")
            given = f'"{called}", p[{n}], sizes[{n}], sizeof({element[1]})'
            setting.append(f"argument{n} = {{new_argument({given}), sizes[{n}]}};")
        else:
            setting.append(f"argument{n} = *({kind}*)p[{n}];")
    arguments = ", ".join(f"argument{n}" for n in range(len(parameters)))
    return [
        *kept,
        f"static void body() {{ {name}({arguments}); }}",
        'extern "C" __attribute__((visibility("default")))',
        "const char* run(void** p, const int64_t* sizes, const unsigned* grid, const unsigned* block,",
        "                           unsigned shared_bytes, int order) {",
        *setting,
        "kernel_body = body; return run_grid(grid, block, order); }",
    ]


@functools.cache
def _open_folder() -> Path:
    """The folder with what all kernels need, compiled once, and the kernels; all processes on this machine share it.

    Parsing the headers takes half of the time of compiling a kernel, and every run needs the same kernels again.
    """
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    kernels = cache_subfolder("kernels")
    contents = [source.read_bytes() for source in SOURCES]
    folder = kernels / short_hash(version, *FLAGS, *COMPILED_ONCE, *contents)
    if not folder.exists():
        for old in kernels.iterdir():
            if time.time() - last_used(old) > 3600:  # another process may be using a younger one
                shutil.rmtree(old, ignore_errors=True)
    header, part = ["-x", "c++-header", str(HEADER)], ["-c", "-x", "c++", "-"]
    keep_file(folder / f"{HEADER.name}.gch", lambda path: _compile(path, header).check_returncode())
    for name in COMPILED_ONCE:
        text = HEADER.with_name(f"{name}.cpp").read_text("utf-8")
        make = functools.partial(_compile, arguments=part, text=text)
        keep_file(folder / f"{name}.o", lambda path, make=make: make(path).check_returncode())
    return folder


@functools.lru_cache(maxsize=256)
def _load_program(text: str):
    """The function `run` of the program `text`; it is compiled unless the folder has it."""
    library = keep_file(_open_folder() / f"{short_hash(text)}.so", lambda path: _link(path, text))
    run = ctypes.CDLL(str(library)).run
    run.restype = ctypes.c_char_p
    return run


def _link(library: Path, text: str) -> None:
    parts = [str(library.with_name(f"{part}.o")) for part in COMPILED_ONCE]
    done = _compile(library, ["-shared", "-x", "c++", "-", "-x", "none", *parts], text)
    if done.returncode:
        errors = (line for line in done.stderr.splitlines() if "error" in line)
        first = next(errors, done.stderr[:400])
        raise UnknownInstructionError(
            f"g++ does not take the kernel's text: {first.split(': ', 1)[-1]}"
        )


def _compile(to: Path, arguments: list[str], text: str = "") -> subprocess.CompletedProcess:
    """Let g++ write `to`. It reads `text` for the argument "-", and finds the compiled header in the folder of `to`."""
    folders = [f"-I{folder}" for folder in (to.parent, HEADER.parent)]
    command = ["g++", *FLAGS, *folders, *arguments, "-o", str(to)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
