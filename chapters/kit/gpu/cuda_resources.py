"""What a CUDA kernel uses of the GPU: registers, spilled bytes, shared memory, as NVIDIA's compiler counts them.

This needs no GPU, driver or CUDA toolkit: the compiler (NVRTC) and its headers come as wheels. Counts differ between
versions of the compiler, so do not rely on an exact one.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from chapters.kit.kept_files import cache_subfolder, keep_file, short_hash
from chapters.kit.machine import versions

WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-cuda-crt")
# TVM's text takes these names from headers that NVRTC has under other names.
PREAMBLE = """
#include <cuda/std/cstdint>
using cuda::std::int8_t; using cuda::std::uint8_t; using cuda::std::int16_t; using cuda::std::uint16_t;
using cuda::std::int32_t; using cuda::std::uint32_t; using cuda::std::int64_t; using cuda::std::uint64_t;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
struct alignas(64) CUtensorMap_st { uint64_t opaque[16]; };  // from <cuda.h>, which is for host code
typedef struct CUtensorMap_st CUtensorMap;
"""
# Two headers, of which no kernel needs a line, take NVRTC 1.6 seconds to read, and a kernel 0.4: <cuda/std/limits>, so
# infinity is written down above, and this one, with which TVM's text begins.
TRAITS = re.compile(r"#include <cuda/std/type_traits>\s*namespace std \{[^}]*\}")
_HOSTS, _PARTS = ("", "_HOST"), ("BEGIN", "END")
_SILENT = [f"-D__NV_SILENCE{host}_DEPRECATION_{part}=" for host in _HOSTS for part in _PARTS]


@dataclass(frozen=True)
class Resources:
    """What a kernel uses, per thread unless said otherwise. spill_*: bytes stored and loaded for want of registers.

    shared_bytes: shared memory per block; the compiler counts the static part only.
    """

    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0


class CompileError(Exception):
    """NVIDIA's compiler refuses the text (the message is the compiler's), or it is not installed."""


def _find_toolkit() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        root = Path(folder) / "cu13"
        if any(root.glob("lib/libnvrtc.so.13")) and (root / "include" / "cccl").is_dir():
            return root
    return None


def missing() -> str:
    """Why no kernel can be compiled here; "" if one can."""
    if _find_toolkit() is None:
        return f"compiling CUDA needs wheels {', '.join(WHEELS[:-1])} and {WHEELS[-1]}, on Linux"
    return ""


def compile_ptx(source: str, arch: str) -> str:
    """The PTX that the compiler makes of the CUDA C `source` for `arch`. Raises CompileError."""
    return compile_cuda(source, arch, "PTX")[0].rstrip(b"\0").decode()


def compile_cuda(source: str, arch: str, what: str = "CUBIN") -> tuple[bytes, str]:
    """(the code, the compiler's report) of the CUDA C `source` for `arch`, such as "sm_90a".

    what: "CUBIN" for machine code, or "PTX". The same text is compiled once on this machine. Raises CompileError with
    the compiler's messages.
    """
    root = _find_toolkit()
    if root is None:
        raise CompileError(missing())
    text = PREAMBLE + "\n".join(x for x in source.splitlines() if x.strip() != "#include <cuda.h>")
    if not re.search(r"(?<!:)std::", without := TRAITS.sub("", text)):
        text = without
    options = [f"--gpu-architecture={arch}", "-default-device", "--device-int128"]
    options += ["--use_fast_math", "--ptxas-options=-v", *_SILENT]
    key = short_hash(what, text, *options, repr(versions(*WHEELS)))

    def compile_it(path: Path) -> None:
        code, report = _run_compiler(root, text, options, what)
        kept = {"code": base64.b64encode(code).decode(), "report": report}
        path.write_text(json.dumps(kept), encoding="utf-8")

    path = keep_file(cache_subfolder("nvrtc") / f"{key}.json", compile_it)
    kept = json.loads(path.read_text(encoding="utf-8"))
    return base64.b64decode(kept["code"]), kept["report"]


def _run_compiler(root: Path, text: str, options: list[str], what: str) -> tuple[bytes, str]:
    library = ctypes.CDLL(str(root / "lib" / "libnvrtc.so.13"))
    include = root / "include"
    options = [*options, f"-I{include}", f"-I{include / 'cccl'}"]
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    try:
        given = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        failed = library.nvrtcCompileProgram(program, len(options), given)
        report = _read_output(library, "ProgramLog", program).rstrip(b"\0").decode()
        if failed:
            raise CompileError(report)
        return _read_output(library, what, program), report
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read_output(library, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, data)
    return data.raw


_REPORTED = {
    "registers": r"Used (\d+) registers",
    "stack_bytes": r"(\d+) bytes stack frame",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
    "shared_bytes": r"(\d+) bytes smem",
}


def resources(source: str, arch: str) -> Resources:
    """What the one kernel in `source` uses on `arch`. Raises CompileError, also if the report has no registers."""
    _, report = compile_cuda(source, arch)
    found = {name: re.search(pattern, report) for name, pattern in _REPORTED.items()}
    if not found["registers"]:
        raise CompileError(f"The compiler's report does not count registers: {report!r}")
    return Resources(**{name: int(match[1]) for name, match in found.items() if match})
