"""Our reader of GGUF agrees with the gguf package, and a file that lies costs an error and nothing else."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pytest

from chapters.kit.chat.gguf_file import GGUF, GGUFError, read_gguf

U8, I32, BOOL, STRING, ARRAY, U64 = 0, 5, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def field(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str, extents: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    """An entry for a tensor; extents as in the file, innermost first."""
    numbers = struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)
    return string(name) + numbers


def file(*fields: bytes, tensors: tuple[bytes, ...] = (), data: int = 0, version: int = 3) -> bytes:
    """A GGUF file with `data` bytes after the padding."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
    head += b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


@pytest.fixture
def read(tmp_path):
    """Reads a file that has the given bytes."""

    def reads(data: bytes) -> GGUF:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return read_gguf(path)

    return reads


SOUND = file(
    field("general.alignment", 4, struct.pack("<I", 32)),
    field("small", U8, b"\xff"),
    field("flag", BOOL, b"\x01"),
    field("name", STRING, string("né")),
    field("tokens", ARRAY, array(STRING, 3, string("a") + string("") + string(b"\xff\xfe"))),
    field("kinds", ARRAY, array(I32, 3, struct.pack("<3i", 1, -2, 3))),
    field("flags", ARRAY, array(BOOL, 2, b"\x01\x00")),
    field("nothing", ARRAY, array(U64, 0, b"")),
    tensors=(tensor("a", (4, 2)), tensor("b", (32, 3), 3, 32), tensor("c", (32,), 7, 96)),
    data=128,
)


def test_fields_keep_their_types(read):
    fields = read(SOUND).fields
    assert fields["small"] == 255 and fields["flag"] is True and fields["name"] == "né"
    assert fields["kinds"].tolist() == [1, -2, 3] and fields["kinds"].dtype == np.int32
    assert fields["flags"].tolist() == [True, False] and len(fields["nothing"]) == 0


def test_a_string_that_is_not_utf_8_keeps_its_bytes(read):
    tokens = read(SOUND).field("tokens", list)
    assert [text.encode("utf-8", "surrogateescape") for text in tokens] == [b"a", b"", b"\xff\xfe"]


def test_tensors_are_views_of_the_file_with_rows_first(read):
    found = read(SOUND)
    assert found.tensors["a"].shape == (2, 4) and found.raw("a").shape == (2, 16)
    assert found.tensors["b"].type == "Q4_1" and found.raw("b").shape == (3, 20)
    assert not found.raw("b").flags.writeable and np.shares_memory(found.raw("b"), found.data)


def test_a_type_that_is_not_read_is_refused_only_when_its_data_is_asked_for(read):
    found = read(SOUND)
    assert found.tensors["c"].type == "type 7 (Q5_1)"
    with pytest.raises(GGUFError, match=r"tensor c .* stored as type 7 \(Q5_1\), which"):
        found.raw("c")
    with pytest.raises(GGUFError, match="no tensor d"):
        found.raw("d")
    assert read(file(tensors=(tensor("x", (4,), 99),), data=1)).tensors["x"].type == "type 99"


def test_a_field_is_of_the_type_that_is_asked_for(read):
    found = read(SOUND)
    assert found.field("small", int) == 255 and found.field("small", float) == 255.0
    assert found.field("tokens", list)[0] == "a" and found.field("missing", str, None) is None
    for name, kind in (("flag", int), ("name", int), ("kinds", list), ("tokens", np.ndarray)):
        with pytest.raises(GGUFError, match=f"field {name} must be of type {kind.__name__}"):
            found.field(name, kind)
    with pytest.raises(GGUFError, match="no field missing"):
        found.field("missing", str)


HUGE = 2**63
LIES = {
    "is not a sound GGUF file: the word GGUF takes 4 bytes at offset 0, where only 2": b"GG",
    r"begins with b'PK\\x03\\x04'": b"PK\3\4" + SOUND,
    "is of version 1,": file(version=1),
    "is of version 4,": file(version=4),
    "is big endian": file(version=3 << 24),
    "name of a tensor takes 8 bytes": b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0),
    "name of a field takes 8 bytes": b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE),
    f"name of a field takes {HUGE} bytes": file(struct.pack("<Q", HUGE) + bytes(8)),
    "'a' takes 1000 bytes": file(field("a", STRING, struct.pack("<Q", 1000))),
    f"'a' takes {8 * HUGE} bytes": file(field("a", ARRAY, array(U64, HUGE, b""))),
    "an element of 'a' takes 8 bytes": file(field("a", ARRAY, array(STRING, 9, bytes(8)))),
    "the field 'a' is an array of arrays": file(field("a", ARRAY, array(ARRAY, 1, bytes(64)))),
    "the field 'a' is an array of the unknown type 13": file(
        field("a", ARRAY, array(13, 1, b"")), b""
    ),
    "the field 'a' is of the unknown type 13": file(field("a", 13, bytes(8))),
    "neither 0 nor 1": file(field("a", BOOL, b"\x02")),
    "the field 'a' occurs twice": file(field("a", U8, b"\1"), field("a", U8, b"\1")),
    "alignment is 24,": file(field("general.alignment", 4, struct.pack("<I", 24))),
    "alignment is 0,": file(field("general.alignment", 4, struct.pack("<I", 0))),
    "alignment is True,": file(field("general.alignment", BOOL, b"\1")),
    "has 0 dimensions": file(tensors=(tensor("a", ()), b""), data=64),
    "has 5 dimensions": file(tensors=(tensor("a", (1,) * 5),), data=64),
    "no elements or too many": file(tensors=(tensor("a", (0, 4)),), data=64),
    "shape .* too many": file(tensors=(tensor("a", (2**40, 2**40)),), data=64),
    "ends at": file(tensors=(tensor("a", (2**40,)),), data=64),
    "'b' ends at": file(tensors=(tensor("b", (4,), offset=2**63),), data=64),
    "offset 8, no multiple of 32": file(tensors=(tensor("a", offset=8),), data=64),
    "a row of 'a' has 33 elements": file(tensors=(tensor("a", (33, 32), 3),), data=4096),
    "the tensor 'a' occurs twice": file(tensors=(tensor("a"), tensor("a", offset=32)), data=64),
    "'a' and 'b' overlap": file(tensors=(tensor("a", (9,)), tensor("b", offset=32)), data=64),
    "'c' and 'd' overlap": file(tensors=(tensor("c", (9,), 7), tensor("d", (9,), 7)), data=64),
}


@pytest.mark.parametrize("message", LIES)
def test_a_lie_gets_one_sentence(read, message):
    with pytest.raises(GGUFError, match=message) as error:
        read(LIES[message])
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize("name", ["", "missing.gguf", "empty.gguf"])
def test_what_is_no_file_is_refused(tmp_path, name):
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match="give the path of a GGUF file"):
        read_gguf(tmp_path / name)


def test_a_name_cannot_write_to_the_terminal(read):
    with pytest.raises(GGUFError) as error:
        read(file(*[field("\x1b[31m" + "a" * 10_000, U8, b"\1")] * 2))
    assert "\x1b" not in str(error.value) and len(str(error.value)) < 500


def test_strings_that_nobody_asks_for_take_less_memory_than_the_file(read):
    """Decoded, each of these takes ten times its place in the file."""
    data = file(field("odd", ARRAY, array(STRING, 200_000, string(b"\x80") * 200_000)))
    tracemalloc.start()
    try:
        found = read(data)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(data)
    finally:
        tracemalloc.stop()
    assert found.field("odd", list)[-1] == "\udc80"


def test_damaged_files_give_errors_only_and_take_little_memory(read):
    draw = random.Random(0)
    tracemalloc.start()
    outcomes = []
    try:
        for _ in range(1000):
            damaged = bytearray(SOUND[: draw.choice((len(SOUND), draw.randrange(len(SOUND))))])
            for _ in range(draw.randrange(4)):
                at = draw.randrange(len(damaged)) if damaged else 0
                damaged[at : at + 1] = draw.choice((draw.randbytes(1), b"\xff" * 8, b""))
            try:
                found = read(bytes(damaged))
                for name, info in found.tensors.items():
                    if info.nbytes:
                        assert found.raw(name).nbytes == info.nbytes
                outcomes.append(True)
            except GGUFError:
                outcomes.append(False)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert 100 < sum(outcomes) < len(outcomes) - 100


def test_a_written_file_is_read_as_the_gguf_package_reads_it(tmp_path):
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_string("text", "naïve\n👩‍👧")
    writer.add_array("strings", ["a", "", "ü"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_float64("double", 0.1)
    writer.add_int64("negative", -(2**40))
    writer.add_bool("false", False)
    values = np.random.default_rng(0).standard_normal((3, 2, 256)).astype(np.float32)
    kinds = gguf.GGMLQuantizationType
    for kind in (kinds.F32, kinds.F16, kinds.BF16, kinds.Q4_0, kinds.Q4_1, kinds.Q8_0):
        stored = gguf.quantize(values, kind)
        writer.add_tensor(kind.name, stored, raw_dtype=kind)
    for kind in (kinds.Q4_K, kinds.Q6_K):  # which the package cannot quantize to
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        stored = np.zeros((5, 512 // elements * size), np.uint8)
        writer.add_tensor(kind.name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs, ours = gguf.GGUFReader(path), read_gguf(path)
    names = [name for name in theirs.fields if not name.startswith("GGUF.")]
    assert list(ours.fields) == names
    for name in names:
        expected, found = theirs.fields[name].contents(), ours.field(name, object)
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected, name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for expected in theirs.tensors:
        info = ours.tensors[expected.name]
        assert info.shape == tuple(expected.shape.tolist()[::-1])
        assert (info.type, info.offset) == (expected.tensor_type.name, expected.data_offset)
        raw = np.ascontiguousarray(expected.data).view(np.uint8)
        np.testing.assert_array_equal(
            ours.raw(info.name), raw.reshape(len(ours.raw(info.name)), -1)
        )
    assert ours.tensors["Q4_1"].shape == (3, 2, 256) and ours.tensors["Q6_K"].shape == (5, 512)
