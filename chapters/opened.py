"""Notes which files and folders of the course a page reads: its kept output is valid while they stay what they were."""

from __future__ import annotations

import os
import sys
from pathlib import Path

OPENED = "FUSION_OPENED"  # environment variable: the file that lists what was read


def note_opened_files() -> None:
    """From now on, add the name of what this process reads of the course to the file named by OPENED.

    That is every file, and with a slash at the end every folder that it lists; imports list folders in another way, and
    add none. The process of a page has OPENED set, and hands it on to the processes that it starts. Copying a file does
    not count. The process that reads the copy notes it, because a copy of the course has the same names.
    """
    seen: set[str] = set()
    copied: set[str] = set()
    notes = Path(os.environ[OPENED]).open("a", encoding="utf-8")  # noqa: SIM115
    root = f"{Path(__file__).resolve().parents[1]}{os.sep}"

    def note(event: str, arguments: tuple) -> None:
        if event == "shutil.copyfile":  # the next to open this file is the copying itself
            copied.add(os.path.abspath(arguments[0]))
        lists = event == "os.scandir"  # pathlib and glob call it
        if not (lists or event == "open") or isinstance(arguments[0], (int, bytes)):
            return
        path = os.path.abspath(arguments[0] or ".") + os.sep * lists
        mode = "" if lists else arguments[1]
        if path in copied:
            copied.remove(path)
            return
        if path in seen or not path.startswith(root) or (mode and mode[0] != "r"):
            return
        seen.add(path)
        notes.write(path.removeprefix(root) + "\n")
        notes.flush()

    sys.addaudithook(note)
