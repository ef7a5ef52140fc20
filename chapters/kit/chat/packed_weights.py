"""A model's weights on disk, in the order in which its kernels read them.

A GGUF file stores a matrix row by row. The kernels read several rows side by side, as many as fill a vector register.
So the first start packs the weights, which takes about a second per 200 MB, and keeps the result. Later starts read
the packed weights, which have as many bytes as the file, in a tenth of that time, and of the file only the header.

A file is known by what the system says of it, as git knows a file that has not changed: where it is, its size, and when
it was changed last. What was packed has a checksum, so a damaged entry is made anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np

from chapters.child import ROOT
from chapters.kit.chat.decoder_cache import keep_entry, private_folder, read_manifest
from chapters.kit.chat.weights import Weights
from chapters.kit.kept_files import hash_of, short_hash

MOST_BYTES = 1 << 30  # of all entries; a model that is larger is packed at each start
PACKED = "weights"
# what decides how the weights of a file are packed, beside the configuration and the lanes
CODE = ("chat/cache_layout", "chat/gguf_file", "chat/weights", "quantized/weight_blocks")


class PackedWeights(Weights):
    """Weights that are packed once, and read from the cache from then on."""

    def place(self) -> dict[str, np.ndarray]:
        """As Weights.place. Raises ValueError if the cache's folder is not private."""
        room, places = self._allocate()
        try:
            packed = private_folder("packed")
        except OSError:
            self._fill(places)
            return places
        before = self._key()
        folder = packed / before
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = read_manifest(folder)["checksum"]
            if _read_packed(folder / PACKED, room) == known:
                os.utime(folder)  # used last of all
                return places
        self._fill(places)
        if room.nbytes <= MOST_BYTES and self._key() == before:  # nobody has changed the file since
            with contextlib.suppress(OSError):
                keep_entry(folder, lambda new: _write_packed(new / PACKED, room), room.nbytes)
                _remove_oldest(packed)
        return places

    def _key(self) -> str:
        """Stands for the file as it is now, the course's code that packs it, and how that is asked to."""
        state = os.stat(self.file.path)
        file = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        code = [hash_of(ROOT / f"chapters/kit/{name}.py") for name in CODE]
        return short_hash(repr((file, code, self.config, self.lanes)))


def _read_packed(path: Path, room: np.ndarray) -> int:
    """Fill `room` with the file at `path`; its checksum. Raises OSError or ValueError."""
    at = 0
    with path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != room.nbytes:
            raise ValueError(f"{path} does not have {room.nbytes} bytes.")
        while count := file.readinto(room[at:].data):  # Linux reads 2 GB at most at a time
            at += count
    return _checksum(room)


def _write_packed(path: Path, room: np.ndarray) -> dict:
    """Write `room` to a new file; the manifest."""
    path.write_bytes(room.data)
    return {"checksum": _checksum(room)}


def _checksum(room: np.ndarray) -> int:
    """The sum of all numbers of 8 bytes, modulo 2**64: a quarter of the time of a CRC-32, or of reading them."""
    return int(np.add.reduce(room.view("<u8")))


def _remove_oldest(packed: Path) -> None:
    """Remove the entries that were used longest ago, until the others have at most MOST_BYTES."""
    entries = [one for one in packed.iterdir() if (one / PACKED).is_file()]
    total = 0
    for entry in sorted(entries, key=lambda one: one.stat().st_mtime, reverse=True):
        total += (entry / PACKED).stat().st_size
        if total > MOST_BYTES:
            shutil.rmtree(entry, ignore_errors=True)
