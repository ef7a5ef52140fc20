"""A compiled decoder is loaded again only if it and all that made it are unchanged."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tvm

from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.chat import kept_model
from chapters.kit.chat.kept_model import Decoder, load_or_compile, private_folder
from chapters.kit.chat.run_decoder import start_machine

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

    monkeypatch.setattr(kept_model, "private_folder", refused)
    assert not was_kept() and not was_kept()


def test_where_a_disk_is_nearly_full_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path))
    monkeypatch.setattr(kept_model, "ROOM", 1 << 60)
    assert not was_kept() and not was_kept()


def test_a_changed_library_is_not_loaded_and_is_replaced(folder):
    (library,) = folder.glob("compiled/*/decoder.so")
    changed = library.read_bytes()[:-1]
    library.unlink()  # this process has loaded it
    library.write_bytes(changed)
    assert not was_kept() and was_kept()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"decoder": {"names": []}}'])
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
    monkeypatch.setattr(kept_model, "_files", lambda: ["a.py"])
    monkeypatch.setattr(kept_model, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("1")
    assert not was_kept({"3": "yours"}) and was_kept({"3": "yours"})
    (tmp_path / "a.py").write_text("2")
    assert not was_kept({"3": "yours"})


def test_the_files_are_those_that_take_part():
    assert "chapters/kit/chat/kept_model.py" in kept_model._files()
    assert sys.modules["numpy"].__file__ not in kept_model._files()


def test_a_module_that_has_every_attribute_is_no_file_of_the_course(monkeypatch):
    """As torch.ops is: it makes an object of any name that it is asked for."""

    class Anything(ModuleType):
        def __getattr__(self, name: str) -> object:
            return object()

    before = kept_model._files()
    monkeypatch.setitem(sys.modules, "anything", Anything("anything"))
    assert kept_model._files() == before
