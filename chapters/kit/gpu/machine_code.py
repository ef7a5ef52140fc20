"""The machine code of a kernel, disassembled: which instructions a warp executes, by kind, and how often.

NVIDIA's disassembler, nvdisasm, comes as the wheel `nvidia-cuda-nvdisasm` (5 MB); it needs no GPU. How often a loop
runs is read from its counter. That is possible where the counter starts from a constant and is compared with one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

WHEEL = "nvidia-cuda-nvdisasm"

# kinds of instructions, each with the first letters of its opcodes; the first that matches counts
KINDS = {
    "wait": (
        "BAR",
        "DEPBAR",
        "LDGDEPBAR",
        "SYNCS",
        "MEMBAR",
        "ERRBAR",
        "WARPSYNC",
        "BSYNC",
        "BSSY",
    ),
    "tensor core": ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA", "WARPGROUP.", "IMMA"),
    "float32": ("FFMA", "FADD", "FMUL"),
    "other arithmetic": (
        "F",
        "H",
        "MUFU",
        "D",
    ),  # comparisons, conversions, halves, special functions
    "copy to shared": ("LDGSTS", "UTMALDG"),
    "load global": ("LDG",),
    "store global": ("STG", "ST.E"),
    "load shared": ("LDS",),  # LDSM too
    "store shared": ("STS",),
    "spill": ("LDL", "STL"),
    "branch": ("BRA", "EXIT", "CALL", "RET", "BREAK", "NOP"),
}
REST = "addresses and counters"
PRODUCTS = ("float32", "tensor core")


@dataclass(frozen=True)
class Instruction:
    """One line of the listing. guard: the predicate that it depends on, such as "@!P0", or ""."""

    address: int
    guard: str
    opcode: str
    operands: str

    @property
    def kind(self) -> str:
        """One of KINDS, or REST."""
        matches = (k for k, starts in KINDS.items() if self.opcode.startswith(starts))
        return next(matches, REST)

    @property
    def wide(self) -> int:
        """The bytes per thread of a load or a store."""
        if self.opcode.startswith("LDSM"):
            return 16 if self.opcode.endswith(".4") else 8 if self.opcode.endswith(".2") else 4
        found = re.search(r"\.(128|64|U8|S8|U16|S16)\b", self.opcode)
        return {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}[found[1]] if found else 4


def disassembler() -> str | None:
    """Where nvdisasm is: of a CUDA toolkit or of its wheel; None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(f) / "cu13" / "bin" for f in (spec and spec.submodule_search_locations) or []]
    found = (shutil.which("nvdisasm", path=folder) for folder in (None, *folders))
    return next(filter(None, found), None)


def missing() -> str:
    """Why no kernel can be disassembled here; "" if one can."""
    return "" if disassembler() else f"reading machine code needs nvdisasm: pip install {WHEEL}"


def disassembler_version() -> str:
    """The wheel and its version, such as "nvidia-cuda-nvdisasm 13.5.37", to be shown with counts."""
    with contextlib.suppress(PackageNotFoundError):
        return f"{WHEEL} {version(WHEEL)}"
    return "nvdisasm"


def listing(code: bytes) -> str:
    """nvdisasm's listing of a cubin. Raises FileNotFoundError if there is no nvdisasm."""
    if not (program := disassembler()):
        raise FileNotFoundError(missing())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(code)
        command = [program, "-c", str(file)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+)?\s*([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_\w+):")


@dataclass(frozen=True)
class Code:
    """The instructions of one kernel, and its labels as positions among them."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @property
    def loops(self) -> list[tuple[int, int]]:
        """(first, last) position of each loop, its branch being last; inner loops come before those around them."""
        found = {}
        for position, one in enumerate(self.instructions):
            target = re.search(r"`\((\.L_\w+)\)", one.operands) if one.opcode[:3] == "BRA" else None
            first = self.labels.get(target[1], position) if target else position
            if first < position:  # the trap after the end jumps to itself
                found[first] = max(position, found.get(first, 0))
        return sorted(found.items(), key=lambda loop: loop[1] - loop[0])

    def turns(self, first: int, last: int) -> int | None:
        """How often a loop runs, read from its counter; None where it cannot be read."""
        bound = self._bound(first, last)
        if bound is None:
            return None
        register, limit = bound
        steps = [self._step(self.instructions[i], register) for i in range(first, last)]
        steps = [step for step in steps if step]
        start = self._start(register, first)
        if len(steps) != 1 or start is None or (limit - start) % steps[0] or limit == start:
            return None
        turns = (limit - start) // steps[0]
        return turns if turns > 0 else None

    def _bound(self, first: int, last: int) -> tuple[str, int] | None:
        """The counter's register and the number that it is compared with, for the loop's branch."""
        wanted = re.search(r"U?P\d", self.instructions[last].guard)
        if self.instructions[last].opcode.startswith("BRA.U"):
            wanted = re.search(r"UP\d", self.instructions[last].operands)
        for position in range(last - 1, first - 1, -1):
            one = self.instructions[position]
            if wanted and one.opcode.startswith("PLOP3") and one.operands.startswith(wanted[0]):
                wanted = re.search(r"UP\d", one.operands) or wanted
            compared = re.match(
                r"(U?P\d), U?PT, (U?R\d+), (-?0x[0-9a-f]+)", one.operands.replace(".reuse", "")
            )
            sets = re.match(r"U?ISETP", one.opcode) and compared
            if wanted and sets and compared[1] == wanted[0]:
                return compared[2], int(compared[3], 16)
        return None

    @staticmethod
    def _step(one: Instruction, register: str) -> int | None:
        """What an instruction adds to `register`, if it adds a constant to it."""
        if not re.match(r"U?IADD3|VIADD|IADD|UVIADD", one.opcode):
            return None
        own = rf"{register}, (?:U?PT, U?PT, )?{register}(?:\.reuse)?, (-?0x[0-9a-f]+)"
        found = re.match(own, one.operands)
        return int(found[1], 16) if found else None

    def _start(self, register: str, before: int) -> int | None:
        """The constant that `register` holds when the loop begins; None if it is computed."""
        number = int(register.lstrip("UR"))
        pair = f"{register.rstrip('0123456789')}{number - 1}"
        for one in reversed(self.instructions[:before]):
            to = one.operands.split(",")[0].strip()
            if to == register or (to == pair and re.match(r"CS2R|U?MOV\.64", one.opcode)):
                if re.match(r"CS2R", one.opcode) and "SRZ" in one.operands:
                    return 0
                if "-RZ, RZ, 0, 0" in one.operands:
                    return 0
                value = re.search(r"(U?RZ|-?0x[0-9a-f]+)$", one.operands)
                if re.match(r"U?MOV|IMAD\.MOV|UMOV", one.opcode) and value:
                    return 0 if "RZ" in value[1] else int(value[1], 16)
                return None
        return None

    def static(self) -> Counter[str]:
        """How many instructions of each kind the code has."""
        return Counter(one.kind for one in self.used)

    @property
    def used(self) -> tuple[Instruction, ...]:
        """The instructions up to the trap that fills the end."""
        last = max(
            (i for i, one in enumerate(self.instructions) if one.opcode == "EXIT"), default=-1
        )
        return self.instructions[: last + 1]

    def executed(self, products: int | None = None) -> list[tuple[Instruction, int]] | None:
        """Each instruction with how often a warp executes it; None if the number of turns of a loop is unknown.

        A branch that leaves out a part is taken as never taken, and a guard as true: for kernels without conditions in
        their loops. products: how many instructions of kind "float32" or "tensor core" a warp executes, if that is
        known; it gives the turns of one loop whose counter cannot be read.
        """
        turns = {loop: self.turns(*loop) for loop in self.loops}
        unknown = [loop for loop, number in turns.items() if number is None]
        if len(unknown) == 1 and products:
            turns[unknown[0]] = self._turns_for(products, unknown[0], turns)
        if None in turns.values():
            return None
        times = self._times({loop: number or 1 for loop, number in turns.items()})
        return [(one, times[i]) for i, one in enumerate(self.used)]

    def _times(self, turns: dict[tuple[int, int], int]) -> list[int]:
        times = [1] * len(self.instructions)
        for (first, last), number in turns.items():
            for position in range(first, last + 1):
                times[position] *= number
        return times

    def _turns_for(self, products: int, loop: tuple[int, int], turns: dict) -> int | None:
        """The turns of `loop` with which a warp executes so many products."""
        once = self._times({**turns, loop: 1})
        inside = outside = 0
        for position, one in enumerate(self.used):
            if one.kind in PRODUCTS:
                if loop[0] <= position <= loop[1]:
                    inside += once[position]
                else:
                    outside += once[position]
        number = (products - outside) / inside if inside else 0
        return round(number) if number >= 1 and abs(number - round(number)) < 0.01 else None


def parsed(text: str) -> Code:
    """The code of the one kernel in a listing."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(instructions)
        elif found := _LINE.search(line):
            address, guard, opcode, operands = found.groups()
            instructions.append(Instruction(int(address, 16), guard or "", opcode, operands))
    return Code(tuple(instructions), labels)


def by_kind(executed: list[tuple[Instruction, int]]) -> Counter[str]:
    """How many instructions of each kind a warp executes."""
    counts: Counter[str] = Counter()
    for one, times in executed:
        counts[one.kind] += times
    return counts
