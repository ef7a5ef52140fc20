"""Packed weights are read again only if the file that they were made of is the same, and they are undamaged."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from chapters.kit.chat import packed_weights
from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.packed_weights import PACKED, PackedWeights
from chapters.kit.chat.weights import Weights, read_config

pytest.importorskip("gguf", reason="writes the files")


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """The file of a small model, whose weights were packed before."""
    from tests.kit.test_chat_model import LLAMAS

    monkeypatch.setenv("FUSION_CACHE", str(tmp_path / "cache"))
    path = LLAMAS["Q4_1, and Q8_0 shared"].save(tmp_path / "model.gguf")
    assert not was_kept(path) and was_kept(path)
    return path


def was_kept(path: Path, lanes: int = 16) -> bool:
    """Whether the packed weights came from the cache. In either case they are those of the file."""
    file = read_gguf(path)
    packed = []

    class Counted(PackedWeights):
        def arrays(self):
            packed.append(self)
            return super().arrays()

    weights = Weights(file, read_config(file), lanes)
    found = Counted(file, weights.config, lanes).place()
    expected = dict(weights.arrays())
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
        assert found[name].ctypes.data % 64 == 0
    return not packed


def entries(path: Path) -> list[Path]:
    return list((path.parent / "cache" / "packed").iterdir())


def test_another_layout_is_packed_anew(path):
    assert not was_kept(path, lanes=8) and was_kept(path, lanes=8) and was_kept(path)


def test_a_file_whose_bytes_changed_is_packed_anew(path):
    """Its name, its size and its header stay, and so does the time that a program can set."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if sys.platform == "win32":  # whose third time is that of the file's creation
        os.utime(path)
    assert not was_kept(path) and was_kept(path)


def test_a_copy_of_the_file_is_packed_anew(path):
    copy = path.with_name("copy.gguf")
    shutil.copy2(path, copy)
    assert not was_kept(copy)


@pytest.mark.parametrize("damage", ["cut", "longer", "one bit", "no manifest", "no number"])
def test_a_damaged_entry_is_replaced(damage, path):
    (entry,) = entries(path)
    data = bytearray((entry / PACKED).read_bytes())
    if damage == "cut":
        del data[-1]
    elif damage == "longer":
        data.append(0)
    elif damage == "one bit":
        data[len(data) // 2] ^= 1
    (entry / PACKED).write_bytes(data)
    if damage == "no manifest":
        (entry / "manifest.json").unlink()
    elif damage == "no number":
        (entry / "manifest.json").write_text("[]")
    assert not was_kept(path) and was_kept(path)


def test_code_that_packs_otherwise_packs_anew(path, monkeypatch):
    monkeypatch.setattr(packed_weights, "CODE", packed_weights.CODE[:-1])
    assert not was_kept(path)


def test_the_entries_that_were_used_longest_ago_are_removed(path, monkeypatch):
    (first,) = entries(path)
    room = (first / PACKED).stat().st_size
    monkeypatch.setattr(packed_weights, "MOST_BYTES", 2 * room)
    assert not was_kept(path, lanes=8)
    os.utime(first, (1, 1))
    assert was_kept(path)  # from now on it is the other one that was used longest ago
    assert not was_kept(path, lanes=4) and first in entries(path) and len(entries(path)) == 2
    assert not was_kept(path, lanes=8)


def test_a_large_model_is_packed_at_each_start(path, monkeypatch):
    monkeypatch.setattr(packed_weights, "MOST_BYTES", 1)
    assert not was_kept(path, lanes=8) and not was_kept(path, lanes=8)


def test_where_nothing_can_be_written_it_is_packed_at_each_start(path, monkeypatch):
    def refused(folder):
        raise OSError(30, "Read-only file system", str(folder))

    monkeypatch.setattr(packed_weights, "private_folder", refused)
    assert not was_kept(path) and not was_kept(path)
