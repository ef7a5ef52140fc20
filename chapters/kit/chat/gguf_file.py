"""Read a GGUF file: the format in which llama.cpp, Ollama and others keep a model, its tokenizer and its settings.

A GGUF file may come from anyone. So every length and offset is compared with the length of the file before anything is
read: a file that lies gets a GGUFError, and costs no more memory than a small multiple of its own length. The package
gguf reads such files too. But it makes arrays for each token and merge, which takes 2 s for the default model and 8 s
for a vocabulary of 150,000, and it accepts files that are cut in a string, or whose tensors overlap. Everything is
little endian:

    "GGUF", version: u32, tensors: u64, fields: u64
    per field    name: string, type: u32, value            string = length: u64, bytes
    per tensor   name: string, dimensions: u32, extents: u64 each, innermost first, type: u32, offset: u64
    padding, then the tensors' data

Source: docs/gguf.md in the repository ggml-org/ggml.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from chapters.kit.quantized import weight_blocks

BLOCKS = {  # type: (elements per block, bytes per block)
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    **{kind: (elements, size) for kind, (elements, size, _) in weight_blocks.BLOCKS.items()},
}
NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S "
    "IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 "
    "IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0"
)
TYPES = dict(enumerate(NAMES.split()))
BOOL, STRING, ARRAY = "bool", "string", "array"
# of fields, by their numbers: NumPy's names of numbers, and what is no number
FIELD_TYPES = dict(enumerate(f"u1 i1 u2 i2 u4 i4 f4 {BOOL} {STRING} {ARRAY} u8 i8 f8".split()))
LENGTH = struct.Struct("<Q")  # of a string
REQUIRED = object()


class GGUFError(ValueError):
    """The file is no GGUF file, is damaged, or lacks what was asked for. The message is one sentence."""


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor is, and how it is stored.

    type: a key of BLOCKS, or "type 7 (Q5_1)" for a type whose data we do not read. shape: rows first, innermost
    extent last. offset: of its first byte in the file. nbytes: 0 for a type that we do not read.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class StringArray:
    """An array of strings, decoded when it is asked for: whoever has tokens already needs no vocabulary.

    view: the whole file. begin: the offset of the first string, that is, of its length. ends: the offsets behind each.
    """

    view: memoryview
    begin: int
    ends: Sequence[int]

    @cached_property
    def decoded(self) -> list[str]:
        """The strings."""
        begins = (self.begin, *self.ends[:-1])
        return [
            str(self.view[begin + LENGTH.size : end], "utf-8", "surrogateescape")
            for begin, end in zip(begins, self.ends, strict=False)
        ]


@dataclass(frozen=True, eq=False)
class GGUF:
    """An opened GGUF file.

    fields: numbers, bools and strings as Python values, arrays of numbers or bools as NumPy arrays, and arrays of
    strings as StringArray. A string that is not UTF-8 holds a lone surrogate per wrong byte, so nothing is lost:
    `text.encode("utf-8", "surrogateescape")` gives its bytes back.
    """

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data: np.memmap  # the whole file, uint8, read-only

    def field(self, name: str, kind: type, default: Any = REQUIRED) -> Any:
        """The value of field `name`, or `default` if the file does not have it.

        kind: int, float (an int will do), bool, str, list (of strings) or np.ndarray. Raises GGUFError if the field is
        of another kind, or missing without a default.
        """
        if name not in self.fields:
            if default is REQUIRED:
                raise GGUFError(f"{self.path} has no field {name}; use a file that has it.")
            return default
        value = self.fields[name]
        if isinstance(value, StringArray):
            value = value.decoded
        if kind is float and type(value) is int:
            return float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = type(value).__name__
            raise GGUFError(
                f"In {self.path}, the field {name} must be of type {kind.__name__}, and is of type {found}; convert "
                "the model again."
            )
        return value

    def raw(self, name: str) -> np.ndarray:
        """The bytes of tensor `name`: a read-only view of the file, uint8 of shape (rows, bytes per row).

        Raises GGUFError if there is no such tensor, or its type is not one of BLOCKS.
        """
        if name not in self.tensors:
            raise GGUFError(
                f"{self.path} has no tensor {name}; use a file of an architecture that has it."
            )
        info = self.tensors[name]
        if info.type not in BLOCKS:
            raise GGUFError(
                f"The tensor {name} in {self.path} is stored as {info.type}, which the course does not read; use a "
                f"file whose tensors are all of the types {', '.join(BLOCKS)}."
            )
        data = self.data[info.offset : info.offset + info.nbytes]
        return data.reshape(math.prod(info.shape[:-1]), -1)


def read_gguf(path: str | Path) -> GGUF:
    """Read the fields of the GGUF file at `path`, and where its tensors are; their data stays on disk until it is used.

    Versions 2 and 3, little endian. Raises GGUFError, in one sentence, for a file that cannot be read or contradicts
    itself: too short, a number that leads outside the file, a name that occurs twice, tensors that overlap.
    """
    path = Path(path)
    if not path.is_file():
        raise GGUFError(f"{path} is not a file; give the path of a GGUF file.")
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise GGUFError(
            f"{path} cannot be read ({error}); give the path of a GGUF file."
        ) from error
    return _Reader(path, data).read()


class _Reader:
    """Goes through the file once. at: the offset of the next byte."""

    def __init__(self, path: Path, data: np.memmap):
        self.path, self.data, self.at = path, data, 0
        self.view = memoryview(data)

    def refuse(self, what: str) -> GGUFError:
        return GGUFError(
            f"{self.path} is not a sound GGUF file: {what}; download or convert it again."
        )

    def take(self, size: int, what: str) -> int:
        """The offset of the next `size` bytes, which hold `what`; goes on behind them."""
        at, self.at = self.at, self.at + size
        if self.at > len(self.data):
            left = len(self.data) - at
            raise self.refuse(
                f"{what} takes {size} bytes at offset {at}, where only {left} are left"
            )
        return at

    def read_number(self, dtype: str, what: str) -> Any:
        """One number of a little-endian NumPy type such as "u4", as a Python value."""
        return np.frombuffer(self.data, f"<{dtype}", 1, self.take(int(dtype[1]), what)).item()

    def read_string(self, what: str) -> str:
        size = self.read_number("u8", f"the length of {what}")
        at = self.take(size, what)
        return str(self.view[at : at + size], "utf-8", "surrogateescape")

    def read_strings(self, count: int, what: str) -> StringArray:
        """The next `count` strings. A vocabulary has 100,000, so there is no call for each number in it."""
        ends, at, end, view = array("Q"), self.at, len(self.data), self.view
        length, size = LENGTH.unpack_from, LENGTH.size
        for _ in range(count):
            begin = at + size
            at = begin + (length(view, at)[0] if begin <= end else 0)
            if at > end:
                self.at = begin - size
                self.read_string(what)  # says what is wrong
            ends.append(at)
        begin, self.at = self.at, at
        return StringArray(view, begin, ends)

    def read(self) -> GGUF:
        magic = bytes(self.view[self.take(4, "the word GGUF") : self.at])
        if magic != b"GGUF":
            raise GGUFError(
                f"{self.path} begins with {magic!r} where a GGUF file has b'GGUF'; give a GGUF file."
            )
        version = self.read_number("u4", "the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            kind = "big endian" if swapped in (1, 2, 3) else f"of version {version}"
            raise GGUFError(
                f"{self.path} is {kind}, and the course reads little-endian GGUF of versions 2 and 3; convert the "
                "model again."
            )
        tensors, count = (
            self.read_number("u8", f"the number of {what}") for what in ("tensors", "fields")
        )
        fields: dict[str, Any] = {}
        for _ in range(count):
            name = self.read_string("the name of a field")
            shown = f"{name!r:.80}"
            if name in fields:
                raise self.refuse(f"the field {shown} occurs twice")
            fields[name] = self.read_value(shown)
        alignment = fields.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.refuse(f"general.alignment is {alignment!r:.80}, and must be a power of two")
        parts, part = fields.get("split.count", 1), fields.get("split.no", 0)
        if type(parts) is type(part) is int and parts > 1:  # a file that was joined has 0
            raise GGUFError(
                f"{self.path} is part {part + 1} of {parts} of a split model, and the course reads models in one file; "
                "join the parts with llama.cpp's `llama-gguf-split --merge FIRST-PART WHOLE`, and give the whole."
            )
        found = [self.read_tensor(alignment) for _ in range(tensors)]
        return GGUF(self.path, fields, self.place_tensors(found, alignment), self.data)

    def read_value(self, shown: str) -> Any:
        """The value of a field, after its type. shown: the field's name for a message."""
        kind = self.read_type(f"the type of {shown}", f"the field {shown} is of")
        if kind == STRING:
            return self.read_string(shown)
        if kind != ARRAY:
            return self.read_numbers(kind, 1, shown)[0].item()
        what = f"the field {shown} is an array of"
        kind = self.read_type(f"the element type of {shown}", what)
        count = self.read_number("u8", f"the number of elements of {shown}")
        if kind == ARRAY:
            raise self.refuse(f"{what} arrays")
        if kind == STRING:
            return self.read_strings(count, f"an element of {shown}")
        return self.read_numbers(kind, count, shown)

    def read_type(self, what: str, told: str) -> str:
        """One of FIELD_TYPES. told: the beginning of a message about any other."""
        number = self.read_number("u4", what)
        if number not in FIELD_TYPES:
            raise self.refuse(f"{told} the unknown type {number}")
        return FIELD_TYPES[number]

    def read_numbers(self, kind: str, count: int, shown: str) -> np.ndarray:
        """The next numbers or bools of one of FIELD_TYPES."""
        dtype = np.dtype("u1" if kind == BOOL else f"<{kind}")
        values = np.frombuffer(self.data, dtype, count, self.take(count * dtype.itemsize, shown))
        if kind != BOOL:
            return values
        if np.any(values > 1):
            raise self.refuse(f"the field {shown} holds a bool that is neither 0 nor 1")
        return values.astype(bool)

    def read_tensor(self, alignment: int) -> TensorInfo:
        """One entry of the list of tensors; its offset is still relative to the data."""
        name = self.read_string("the name of a tensor")
        shown = f"{name!r:.80}"
        dimensions = self.read_number("u4", f"the number of dimensions of {shown}")
        if not 1 <= dimensions <= 4:
            raise self.refuse(
                f"the tensor {shown} has {dimensions} dimensions, and may have 1 to 4"
            )
        shape = tuple(self.read_number("u8", f"an extent of {shown}") for _ in range(dimensions))[
            ::-1
        ]
        if not 0 < math.prod(shape) < 2**63:
            raise self.refuse(f"the tensor {shown} of shape {shape} has no elements or too many")
        number = self.read_number("u4", f"the type of {shown}")
        offset = self.read_number("u8", f"the offset of {shown}")
        if offset % alignment:
            raise self.refuse(
                f"the tensor {shown} is at offset {offset}, no multiple of {alignment}"
            )
        kind = TYPES.get(number)
        if kind not in BLOCKS:
            return TensorInfo(
                name, f"type {number}" + (f" ({kind})" if kind else ""), shape, offset, 0
            )
        elements, size = BLOCKS[kind]
        if shape[-1] % elements:
            raise self.refuse(
                f"a row of {shown} has {shape[-1]} elements, and {kind} needs a multiple of {elements}"
            )
        return TensorInfo(name, kind, shape, offset, math.prod(shape) // elements * size)

    def place_tensors(self, tensors: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
        """The tensors by name, with offsets in the file, which are checked."""
        start = -(-self.at // alignment) * alignment
        found: dict[str, TensorInfo] = {}
        for info in tensors:
            if info.name in found:
                raise self.refuse(f"the tensor {info.name!r:.80} occurs twice")
            place = start + info.offset
            end = place + max(info.nbytes, 1)  # of a type that we do not read, the first byte
            if end > len(self.data):
                raise self.refuse(
                    f"the tensor {info.name!r:.80} ends at {end}, and the file at {len(self.data)}"
                )
            found[info.name] = replace(info, offset=place)
        for one, other in pairwise(sorted(found.values(), key=lambda info: info.offset)):
            if one.offset + max(one.nbytes, 1) > other.offset:
                raise self.refuse(f"the tensors {one.name!r:.80} and {other.name!r:.80} overlap")
        return found
