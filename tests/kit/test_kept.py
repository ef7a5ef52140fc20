"""What is compiled, packed or fetched once is kept, and used only while all that made it is unchanged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tvm

from chapters.kit import kept_files
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.chat import decoder_cache, packed_weights
from chapters.kit.chat.decoder_cache import Decoder, load_or_compile, private_folder
from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.packed_weights import PACKED, PackedWeights
from chapters.kit.chat.run_decoder import start_machine
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.kept_files import json_text, keep_file, short_hash

# --- compiled decoders ----------------------------------------------------------------------------

MINE = {"3": "the reference"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache's folder, with one entry."""
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path))
    assert not was_kept()
    if not any(tmp_path.glob("compiled/*/manifest.json")):
        pytest.skip("this machine has no compiler that links a library")
    assert was_kept()
    return tmp_path


def was_kept(whose=MINE, exact=True) -> bool:
    """Whether the decoder came from the cache. In either case it computes what it should."""
    mod = relax_module("def main(x: (4,)):\n    y = R.add(x, x)\n")

    def compile_it() -> Decoder:
        return Decoder(tvm.compile(mod, QUICK), ["a name"], "float32", 16)

    decoder, kept = load_or_compile(("a small model", exact), whose, compile_it)
    assert isinstance(decoder.executable, Path) == kept
    x = np.arange(4, dtype="float32")
    found = start_machine(decoder.executable)["main"](tvm.runtime.tensor(x))
    assert (found.numpy() == 2 * x).all()
    assert (decoder.names, decoder.cache, decoder.lanes) == (["a name"], "float32", 16)
    return kept


def test_where_nothing_can_be_written_nothing_is_kept(folder, monkeypatch):
    def refused(path):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(decoder_cache, "private_folder", refused)
    assert not was_kept() and not was_kept()


def test_where_a_disk_is_nearly_full_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path))
    monkeypatch.setattr(decoder_cache, "ROOM", 1 << 60)
    assert not was_kept() and not was_kept()


def test_a_changed_library_is_not_loaded_and_is_replaced(folder):
    (library,) = folder.glob("compiled/*/decoder.so")
    changed = library.read_bytes()[:-1]
    library.unlink()  # this process has loaded it
    library.write_bytes(changed)
    assert not was_kept() and was_kept()


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_damaged_manifest_is_replaced(folder, text):
    (manifest,) = folder.glob("compiled/*/manifest.json")
    manifest.write_text(text)
    assert not was_kept() and was_kept()


posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps folders private itself")


@posix
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_nothing_is_loaded_from_a_folder_that_others_may_write_to(folder, mode):
    (folder / "compiled").chmod(mode)
    with pytest.raises(
        ValueError, match=r"Other users may write to .* set the environment variable"
    ):
        was_kept()
    (folder / "compiled").chmod(0o755)  # others may read
    assert was_kept()


@posix
def test_nothing_is_loaded_from_a_folder_of_another_user(folder, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ValueError, match="Other users may write"):
        was_kept()


@posix
def test_the_folder_is_private_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path / "new"))
    before = os.umask(0)
    try:
        was_kept()
        assert private_folder("compiled").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_passes_of_somebody_else_compile_anew(folder):
    assert not was_kept({"3": "yours"}) and not was_kept(MINE)


def test_a_decoder_with_other_arithmetic_has_an_entry_of_its_own(folder):
    assert not was_kept(exact=False) and was_kept(exact=False) and was_kept()


def test_a_file_of_the_course_that_changed_compiles_anew(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_cache, "_list_course_files", lambda: ["a.py"])
    monkeypatch.setattr(decoder_cache, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("1")
    assert not was_kept({"3": "yours"}) and was_kept({"3": "yours"})
    (tmp_path / "a.py").write_text("2")
    assert not was_kept({"3": "yours"})


def test_the_files_are_those_that_take_part():
    assert "chapters/kit/chat/decoder_cache.py" in decoder_cache._list_course_files()
    assert sys.modules["numpy"].__file__ not in decoder_cache._list_course_files()


def test_a_module_that_has_every_attribute_is_no_file_of_the_course(monkeypatch):
    """As torch.ops is: it makes an object of any name that it is asked for."""

    class Anything(ModuleType):
        def __getattr__(self, name: str) -> object:
            return object()

    before = decoder_cache._list_course_files()
    monkeypatch.setitem(sys.modules, "anything", Anything("anything"))
    assert decoder_cache._list_course_files() == before


# --- packed weights -------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """The file of a small model, whose weights were packed before."""
    from tests.kit.test_chat_model import LLAMAS  # which skips without gguf

    monkeypatch.setenv("FUSION_CACHE", str(tmp_path / "cache"))
    path = LLAMAS["Q4_1, and Q8_0 shared"].save(tmp_path / "model.gguf")
    assert not was_packed(path) and was_packed(path)
    return path


def was_packed(path: Path, lanes: int = 16) -> bool:
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
    assert not was_packed(path, lanes=8) and was_packed(path, lanes=8) and was_packed(path)


def test_a_file_whose_bytes_changed_is_packed_anew(path):
    """Its name, its size and its header stay, and so does the time that a program can set."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if sys.platform == "win32":  # whose third time is that of the file's creation
        os.utime(path)
    assert not was_packed(path) and was_packed(path)


def test_a_copy_of_the_file_is_packed_anew(path):
    copy = path.with_name("copy.gguf")
    shutil.copy2(path, copy)
    assert not was_packed(copy)


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
    assert not was_packed(path) and was_packed(path)


def test_code_that_packs_otherwise_packs_anew(path, monkeypatch):
    monkeypatch.setattr(packed_weights, "CODE", packed_weights.CODE[:-1])
    assert not was_packed(path)


def test_the_entries_that_were_used_longest_ago_are_removed(path, monkeypatch):
    (first,) = entries(path)
    room = (first / PACKED).stat().st_size
    monkeypatch.setattr(packed_weights, "MOST_BYTES", 2 * room)
    assert not was_packed(path, lanes=8)
    os.utime(first, (1, 1))
    assert was_packed(path)  # from now on it is the other one that was used longest ago
    assert not was_packed(path, lanes=4) and first in entries(path) and len(entries(path)) == 2
    assert not was_packed(path, lanes=8)


def test_a_large_model_is_packed_at_each_start(path, monkeypatch):
    monkeypatch.setattr(packed_weights, "MOST_BYTES", 1)
    assert not was_packed(path, lanes=8) and not was_packed(path, lanes=8)


def test_where_nothing_can_be_written_it_is_packed_at_each_start(path, monkeypatch):
    def refused(folder):
        raise OSError(30, "Read-only file system", str(folder))

    monkeypatch.setattr(packed_weights, "private_folder", refused)
    assert not was_packed(path) and not was_packed(path)


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_made_once(tmp_path):
    path = tmp_path / "new" / "a.txt"
    made = []

    def make(to):
        made.append(to)
        to.write_text("content")

    for _ in range(2):
        assert keep_file(path, make).read_text() == "content"
    assert len(made) == 1


def test_a_file_that_could_not_be_made_is_not_there(tmp_path):
    def make(to):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        keep_file(tmp_path / "a.txt", make)
    assert not list(tmp_path.iterdir())


def test_the_file_used_longest_ago_goes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_files, "MOST", 2)
    for time, name in enumerate(("a", "b")):
        os.utime(keep_file(tmp_path / f"{name}.txt", lambda to: to.touch()), (time, time))
    keep_file(tmp_path / "a.txt", lambda to: to.touch())  # used again, now
    keep_file(tmp_path / "c.txt", lambda to: to.touch())
    assert sorted(path.stem for path in tmp_path.glob("*.txt")) == ["a", "c"]
    assert len(list(tmp_path.iterdir())) == 4, "what checks a file goes with it"


@pytest.mark.parametrize("damage", [b"", b"con", b"other 1"])
def test_a_file_that_was_cut_off_or_changed_is_made_anew(tmp_path, damage):
    path = tmp_path / "a.txt"
    for _ in range(2):
        assert keep_file(path, lambda to: to.write_text("content")).read_text() == "content"
        path.write_bytes(damage)


def test_a_cache_that_cannot_be_written_to_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, and no folder")
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path / "cache"))
    kept_files.cache_subfolder.cache_clear()
    folder = kept_files.cache_subfolder("kernels")
    assert folder.is_dir() and tmp_path not in folder.parents
    folder.rmdir()
    kept_files.cache_subfolder.cache_clear()


def test_a_hash_tells_where_one_part_ends():
    assert short_hash("ab", "c") != short_hash("a", "bc")
    assert short_hash("ab", b"c") == short_hash(b"ab", "c")


def test_what_holds_no_other_object_or_list_is_one_line():
    value = {"a": [], "b": [{"c": 1, "d": "é"}, [2.5, None]], "e": {"f": {"g": [True]}}}
    text = json_text(value)
    assert json.loads(text) == value
    assert '\n  {"c": 1, "d": "é"},\n  [2.5, null]\n' in text and '"g": [true]' in text
