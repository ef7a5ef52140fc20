"""Runs TVM's CUDA C on this CPU: the generated text itself, compiled by g++, one fiber a thread.

`cuda_on_cpu.hpp` says what CUDA's words mean here and what is watched while a kernel runs. Two orders of the threads,
forwards and backwards, make a result that depends on the order visible.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from chapters.toolkit.gpu import hopper_on_cpu
from chapters.toolkit.gpu.launches import (
    TENSOR_MAP,
    Kernel,
    Launch,
    LaunchError,
    UnknownWordError,
)

HEADER = Path(__file__).with_suffix(".hpp")
HEADERS = (HEADER, HEADER.with_name("mma_on_cpu.hpp"), HEADER.with_name("hopper_on_cpu.hpp"))
# Locals hold a pattern before they are set, so that a register read too early is no lucky zero.
# A static of a template must belong to its own kernel, and not to whichever of the process was loaded first.
FLAGS = ["-O1", "-w", "-std=c++17", "-shared", "-fPIC", "-ftrivial-auto-var-init=pattern"]
FLAGS += ["-fno-gnu-unique"]
_SHARED = re.compile(
    r"__shared__ (?:alignas\(\d+\) )?(?P<type>\w+) (?P<name>\w+)\[(?P<size>[^\]]+)\];"
)
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(?P<type>\w+) (?P<name>\w+)\[\];")
_POINTER = re.compile(r"(?P<type>\w+)\* __restrict__ (?P<name>\w+)")
# TVM's older copies are a function each, with pointers and offsets; cuda_on_cpu.hpp has their stand-in.
_OLD_COPY = re.compile(
    r"__forceinline__ __device__ void ptx_cp_async_legacy_\w+\([^)]*\) \{[^{}]*asm volatile[^{}]*\}\n"
)
_COPY = re.compile(r"\bptx_cp_async_legacy_c[ag]_(\d+)_\d+_\d+\(")
_ASSEMBLY = re.compile(r'asm volatile\(\s*"(?P<text>[^"]*)"(?P<operands>[^;]*)\);')
_OPERAND = re.compile(r'"[=+]?[a-z]"\(([^()]*)\)')
# PTX's words, and what stands in for each
_WORDS = {
    r"cp\.async\.ca\.shared\.global": "cp_async_bytes",
    r"cp\.async\.cg\.shared\.global": "cp_async_cg_bytes",
    r"cp\.async\.commit_group": "cp_async_commit",
    r"cp\.async\.wait_group": "cp_async_wait",
    r"ldmatrix\.sync\.aligned\.m8n8\.x[124]\.shared\.b16": "ldmatrix<false>",
    r"ldmatrix\.sync\.aligned\.m8n8\.x[124]\.trans\.shared\.b16": "ldmatrix<true>",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32": "mma_m16n8k16<half>",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32": "mma_m16n8k16<nv_bfloat16>",
}
_VOLATILE = re.compile(r"\(\(volatile \w+\*\)(\w+)\)")


@functools.cache
def missing() -> str:
    """Why kernels cannot run here, "" if they can."""
    if sys.platform != "linux":
        return "running CUDA text on the CPU needs Linux"
    compiler = shutil.which("g++")
    if compiler is None:
        return "running CUDA text on the CPU needs g++ 12 or later, and there is no g++"
    version = subprocess.run(
        [compiler, "-dumpversion"], capture_output=True, text=True, check=False
    ).stdout
    if not version.strip() or int(version.split(".")[0]) < 12:
        return f"running CUDA text on the CPU needs g++ 12 or later; this is {version.strip() or 'not g++'}"
    return ""


class CudaOnCpu:
    """An engine for HostProgram.run. backwards: let the last thread of a block, and the last block, go first."""

    def __init__(self, backwards: bool = False):
        self.backwards = backwards

    def __call__(self, launch: Launch) -> None:
        kept = [
            np.ascontiguousarray(value)
            if dtype in ("handle", TENSOR_MAP)
            else np.array(value, dtype)
            for dtype, value in zip(launch.kernel.dtypes, launch.arguments, strict=True)
        ]
        addresses = (ctypes.c_void_p * len(kept))(*[array.ctypes.data for array in kept])
        sizes = (ctypes.c_int64 * len(kept))(*[array.size for array in kept])
        triple = ctypes.c_uint * 3
        run = _built(program(launch.kernel, launch.shared_bytes))
        problem = run(
            addresses,
            sizes,
            triple(*launch.grid),
            triple(*launch.block),
            ctypes.c_uint(launch.shared_bytes),
            int(self.backwards),
        )
        if problem:
            raise LaunchError(problem.decode())


def program(kernel: Kernel, shared_bytes: int = 0) -> str:
    """The C++ text that is compiled for `kernel`: the header, TVM's function, and how to call it.

    shared_bytes: of dynamic shared memory, which the launch decides.
    """
    prelude, start, kernels = kernel.source.partition('extern "C" __global__')
    # TVM's own prelude ends with an #endif; after it stand the device functions that the kernel brings along
    text = _OLD_COPY.sub("", prelude.rpartition("#endif\n")[2]) + start + kernels
    text = hopper_on_cpu.translated(text)
    whole = rf"__shared__ \g<type> \g<name>[{shared_bytes} / sizeof(\g<type>)];"
    text = _DYNAMIC.sub(whole, text)
    shared = "|".join(re.escape(declared["name"]) for declared in _SHARED.finditer(text))
    if shared:
        text = re.sub(rf"\*\((\w+)\*\)\((?=(?:{shared})\b)", r"wide<\1>(", text)
    text = _SHARED.sub(_watched, text)
    text = _COPY.sub(r"cp_async<\1>(", _ASSEMBLY.sub(_word, text))
    text = _VOLATILE.sub(r"\1", text)
    text = _POINTER.sub(r"Argument<\g<type>> \g<name>", text).replace(
        'extern "C" __global__', "static"
    )
    signatures = re.findall(rf"{re.escape(kernel.name)}\(([^)]*)\)", text)
    types = [parameter.rsplit(" ", 1)[0].strip() for parameter in signatures[0].split(",")]
    names = [parameter.rsplit(" ", 1)[1].strip() for parameter in signatures[0].split(",")]
    kept, setting = [], ["arguments().clear();"]
    for n, (kind, name) in enumerate(zip(types, names, strict=True)):
        kept.append(f"static {kind} argument{n};")
        element = re.fullmatch(r"Argument<(\w+)>", kind)
        value = (
            f'{{({element[1]}*)p[{n}], sizes[{n}], "{name.removesuffix("_ptr")}"}}'
            if element
            else f"*({kind}*)p[{n}]"
        )
        setting.append(
            f"memcpy(&argument{n}, p[{n}], sizeof argument{n});"
            if kind == "CUtensorMap"
            else f"argument{n} = {value};"
        )
        if element:
            name = name.removesuffix("_ptr")
            size = f"sizes[{n}] * sizeof({element[1]})"
            setting.append(f'arguments().push_back({{(const char*)p[{n}], {size}, "{name}"}});')
    arguments = ", ".join(f"argument{n}" for n in range(len(types)))
    return "\n".join(
        [
            f'#include "{HEADER.name}"',
            text,
            *kept,
            f"static void body() {{ {kernel.name}({arguments}); }}",
            'extern "C" const char* run(void** p, const int64_t* sizes, const unsigned* grid, const unsigned* block,',
            "                           unsigned shared_bytes, int backwards) {",
            "dynamic_bytes = shared_bytes;",
            *setting,
            "kernel_body = body; return run_grid(grid, block, backwards); }",
        ]
    )


def _watched(declared: re.Match) -> str:
    name = declared["name"]
    return f'static Shared<{declared["type"]}, {declared["size"]}> {name}("{name.removesuffix("_ptr")}");'


def _word(assembly: re.Match) -> str:
    """A statement of inline PTX as a call of its stand-in, with the operands in the order of PTX's text."""
    said, operands = assembly["text"], _OPERAND.findall(assembly["operands"])
    word, _, rest = said.strip().rstrip(";").partition(" ")
    stand_in = next((name for pattern, name in _WORDS.items() if re.fullmatch(pattern, word)), None)
    if stand_in is None:
        raise UnknownWordError(f"PTX's {word} has no stand-in on the CPU.")
    given = [part.strip() for part in re.sub(r"[{}\[\]]", "", rest).split(",") if part.strip()]
    named = [operands[int(part[1:])] if part.startswith("%") else part for part in given]
    return f"{stand_in}({', '.join(named)});"


@functools.cache
def _folder() -> Path:
    """A folder with the headers, compiled once: parsing them is half of the time a kernel takes."""
    folder = Path(tempfile.mkdtemp(prefix="fusion-cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for header in HEADERS:
        shutil.copy(header, folder)
    flags = [flag for flag in FLAGS if flag != "-shared"]
    header = ["-x", "c++-header", HEADER.name, "-o", HEADER.name + ".gch"]
    subprocess.run(["g++", *flags, *header], cwd=folder, check=True, capture_output=True)
    return folder


@functools.lru_cache(maxsize=256)
def _built(text: str):
    folder = _folder()
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["g++", *FLAGS, "-o", str(library), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr[:400]
        )
        raise UnknownWordError(f"g++ does not take the kernel's text: {first.split(': ', 1)[-1]}")
    run = ctypes.CDLL(str(library)).run
    run.restype = ctypes.c_char_p
    source.unlink()
    return run
