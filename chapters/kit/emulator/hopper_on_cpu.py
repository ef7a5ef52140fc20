"""Renames Hopper's instructions in TVM's CUDA C to the functions of hopper_on_cpu.hpp.

TVM writes each instruction as a device function with a line of assembly. The device functions are removed, and their
calls renamed. An instruction that hopper_on_cpu.hpp lacks keeps TVM's name, and g++ reports it as unknown.
"""

from __future__ import annotations

import re

_PTX = r"\btvm_builtin_ptx_"
_TYPES = {"f16": "half", "bf16": "nv_bfloat16"}
# A device function from its first line to its closing brace; assembly has braces of its own.
_FUNCTION = re.compile(r"^__forceinline__ __device__ [^\n]*\{\n(?:(?!\}\n)[^\n]*\n)*\}\n", re.M)
_WGMMA = re.compile(
    _PTX + r"wgmma_(b?f16)_ss_mma_async_sync_aligned_m64n(\d+)k16_f32_\1_\1_1_1_0_0\("
)
_COPY = (
    _PTX + r"cp_async_bulk_tensor_g2s_cluster_async_bulk_tensor_[25]d"
    r"_shared__cluster_global_mbarrier__complete_tx__bytes\("
)
_NAMES = {
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
}
_SUMS = re.compile(r"\bwgmma<\w+, \d+>\((\w+)\[")
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?uchar (\w+)\[\];")


def rename_instructions(text: str) -> str:
    """`text`, which holds TVM's device functions and kernels, with calls of the functions of hopper_on_cpu.hpp.

    Text without a wgmma or an mbarrier stays as it is.
    """
    if "wgmma" not in text and "mbarrier" not in text:
        return text
    text = _FUNCTION.sub(lambda found: "" if _has_stand_in(found[0]) else found[0], text)
    text = _WGMMA.sub(lambda found: f"wgmma<{_TYPES[found[1]]}, {found[2]}>(", text)
    for instruction, function in _NAMES.items():
        text = re.sub(instruction, function, text)
    text = text.replace("const __grid_constant__ CUtensorMap", "CUtensorMap")
    # a fence must know the sums, to see that none is written between it and the next product
    sums = ", ".join(sorted(set(_SUMS.findall(text))))
    text = text.replace("wgmma_fence()", f"wgmma_fence({sums})")
    for pool in _DYNAMIC.findall(text):  # a plain access, not an address, is watched
        text = re.sub(rf"(?<!&\()\(\((\w+)\*\)({pool})\)\[", r"in_pool<\1>(\2)[", text)
    return _DYNAMIC.sub(r"uchar* const \1 = dynamic_shared;", text)


def _has_stand_in(function: str) -> bool:
    """Whether hopper_on_cpu.hpp has a device function: an instruction of the tables above, or a helper of wgmma.py."""
    head = function.partition("{")[0]
    known = [_WGMMA.pattern, *_NAMES, r"\b(?:hold_register|anew)\("]
    return any(re.search(pattern, head) for pattern in known)
