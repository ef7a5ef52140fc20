"""Compiled decoders on disk: the next start loads one in place of compiling it again.

An entry is a folder with a shared library and a manifest. The manifest lists every file of the course that took part,
with its hash, and whose chapters the passes came from. If one of them has changed since, or if other users could have
changed the entry itself, it is not used and made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import tvm

from chapters.child import ROOT
from chapters.kit.chat.model_cache import (
    UNFINISHED,
    cache_folder,
    only_mine,
    private_folder,
    sweep,
)
from chapters.kit.chat.weights import Weights

# bytes that must be free to keep a decoder: one takes a few megabytes, for a moment twice
ROOM = 64 << 20
LIBRARY, MANIFEST = "decoder.so", "manifest.json"


def load_or_compile(
    weights: Weights,
    target: tvm.target.Target,
    exact: bool,
    whose: Mapping[str, str],
    compile_it: Callable[[], tuple[tvm.runtime.Executable, list[str]]],
) -> tuple[object, list[str], bool]:
    """(executable, names of its parameters, whether it was kept).

    whose: for each chapter whose passes take part, whose code that is. compile_it() -> (executable, names). Raises
    ValueError if the cache's folder is not private. A machine without a C compiler cannot link a library: there the
    decoder is compiled at each start.
    """
    facts = repr((weights.config, _stored(weights), str(target), exact, tvm.__version__))
    try:
        compiled = private_folder(cache_folder() / "compiled")
    except (OSError, RuntimeError):
        # no folder, such as a link to itself, or one that cannot be written to
        return *compile_it(), False
    folder = compiled / hashlib.sha256(facts.encode()).hexdigest()[:24]
    with contextlib.suppress(OSError, ValueError, KeyError):
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        library = folder / LIBRARY
        files = manifest["files"].items()
        same = only_mine(folder) and all(_hash(ROOT / name) == known for name, known in files)
        if same and manifest["whose"] == whose and _hash(library) == manifest["library"]:
            return tvm.runtime.load_module(str(library)), manifest["names"], True
    executable, names = compile_it()
    with contextlib.suppress(OSError, RuntimeError):  # a full disk, or no compiler that could link
        _keep(folder, executable, names, whose)
    return executable, names, False


def _stored(weights: Weights) -> list:
    return [(layer, weights.specs(layer)) for layer in weights.matrices]


def _keep(folder: Path, executable, names: list[str], whose: Mapping[str, str]) -> None:
    """Put an entry at `folder`, whole or not at all."""
    sweep(folder.parent)
    sweep(cache_folder())
    for place in (tempfile.gettempdir(), folder.parent):
        if shutil.disk_usage(place).free < ROOM:  # LLVM ends the process when a disk is full
            return
    with tempfile.TemporaryDirectory(
        prefix=UNFINISHED, dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        new = Path(temporary) / "entry"
        new.mkdir(mode=0o700)
        executable.export_library(str(new / LIBRARY))
        manifest = {
            "library": _hash(new / LIBRARY),
            "names": names,
            "whose": dict(whose),
            "files": {name: _hash(ROOT / name) for name in _files()},
        }
        (new / MANIFEST).write_text(json.dumps(manifest), "utf-8")
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
        os.replace(new, folder)


def _files() -> list[str]:
    """The files of the course that this process has imported, relative to its root."""
    names = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    found = {Path(name).resolve() for name in names if name and os.path.isabs(name)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.is_relative_to(ROOT))


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
