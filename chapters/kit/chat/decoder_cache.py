"""Compiled decoders on disk: the next start loads one in place of compiling it again, and needs no compiler for it.

An entry is a folder with a shared library and a manifest. The manifest lists every file of the course that took part,
with its hash, whose chapters the passes came from, and all that a process needs to know to run the library. If a file
has changed since, the entry is not used and made anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chapters.child import ROOT
from chapters.kit.chat.model_cache import UNFINISHED, remove_unfinished
from chapters.kit.kept_files import cache_folder, hash_of, short_hash
from chapters.kit.machine import instruction_sets, versions

# bytes that must be free beside what is kept: a decoder takes a few megabytes, for a moment twice
ROOM = 64 << 20
LIBRARY, MANIFEST = "decoder.so", "manifest.json"


@dataclass(frozen=True)
class Decoder:
    """A compiled decoder, and what the process that runs it must know.

    executable: what `tvm.compile` returns, or the path of the library that was made of it. names: of its parameters, in
    the order in which its functions take them. cache: the dtype of its cache. lanes: how many rows of a quantized
    matrix lie side by side.
    """

    executable: object
    names: Sequence[str]
    cache: str
    lanes: int


def load_or_compile(
    facts: object, owners: Mapping[str, str], compile_it: Callable[[], Decoder]
) -> tuple[Decoder, bool]:
    """(the decoder, whether it was kept). A decoder that was kept has the path of a library as its `executable`.

    facts: what determines the decoder beside the course's files, this machine's processor and the version of TVM; the
    same values have the same `repr`. owners: for each chapter whose passes take part, whose code that is. Raises
    ValueError if the cache's folder is not private. A machine without a C compiler cannot link a library: there the
    decoder is compiled at each start.
    """
    try:
        compiled = private_folder("compiled")
    except OSError:  # no folder, such as a link to itself, or one that cannot be written to
        return compile_it(), False
    everything = facts, instruction_sets(), versions("apache-tvm", "apache-tvm-ffi")
    folder = compiled / short_hash(repr(everything))
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        manifest, library = read_manifest(folder), folder / LIBRARY
        files = manifest["files"].items()
        same = all(hash_of(ROOT / name) == known for name, known in files)
        if same and manifest["owners"] == owners and hash_of(library) == manifest["library"]:
            return Decoder(library, **manifest["decoder"]), True
    decoder = compile_it()
    with contextlib.suppress(OSError, RuntimeError):  # a full disk, or no compiler that could link
        keep_entry(folder, lambda new: _write_entry(new, decoder, owners))
    return decoder, False


def _write_entry(new: Path, decoder: Decoder, owners: Mapping[str, str]) -> dict:
    """Write the library into the folder `new`; the manifest."""
    decoder.executable.export_library(str(new / LIBRARY))
    return {
        "library": hash_of(new / LIBRARY),
        "decoder": {"names": list(decoder.names), "cache": decoder.cache, "lanes": decoder.lanes},
        "owners": dict(owners),
        "files": {name: hash_of(ROOT / name) for name in _list_course_files()},
    }


def private_folder(kind: str) -> Path:
    """The cache's folder for entries of one kind, which only this user can write to; made if it is missing.

    Compiled code is loaded from there: whoever can write to it could have put code of their own there. Raises
    ValueError if the folder belongs to someone else, or if others may write to it. Windows keeps a user's folders
    private by itself, so nothing is checked there.
    """
    path = cache_folder() / kind
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = path.stat()
    others = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if sys.platform != "win32" and (others or state.st_uid != os.getuid()):
        raise ValueError(
            f"Other users may write to {path}, from which compiled code would be loaded; remove it, or set the "
            "environment variable FUSION_CACHE to a folder in your home directory."
        )
    return path


def read_manifest(folder: Path) -> dict:
    """The manifest of an entry. Raises OSError if there is none, ValueError if it is damaged."""
    return json.loads((folder / MANIFEST).read_text("utf-8"))


def keep_entry(folder: Path, fill: Callable[[Path], dict], nbytes: int = 0) -> None:
    """Put an entry at `folder`, whole or not at all; not if the disk is nearly full.

    fill: writes the entry's files into a folder that it is given, and returns the manifest. nbytes: of these files,
    beyond a few megabytes.
    """
    remove_unfinished(folder.parent)
    remove_unfinished(cache_folder())
    for place in (tempfile.gettempdir(), folder.parent):
        needed = ROOM + nbytes * (place == folder.parent)
        if shutil.disk_usage(place).free < needed:  # LLVM ends the process when a disk is full
            return
    with tempfile.TemporaryDirectory(
        prefix=UNFINISHED, dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        new = Path(temporary) / "entry"
        new.mkdir(mode=0o700)
        (new / MANIFEST).write_text(json.dumps(fill(new)), "utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(new, folder)


def _list_course_files() -> list[str]:
    """The files of the course that this process has imported, or that they were made of, relative to its root."""
    named = (vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__"))
    names = (one.get("__made_of__", one.get("__file__")) for one in named)
    found = {Path(name).resolve() for name in names if name and os.path.isabs(name)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.is_relative_to(ROOT))
