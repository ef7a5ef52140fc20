"""What is kept for a learner outside of the checkout, where no `git clean` or `git checkout` reaches it.

The folder holds a database with the record of each exercise (the state that its last check found, digests of what that
check ran, the number of hints shown) and of each chapter (a digest of the text that the learner's file was made from),
and copies of the learner's files. SQLite lets several processes write the record at once. A damaged record is set
aside, never overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from chapters.runner.course import ROOT

STATES = ("passed", "failed", "todo", "skipped")
DATA = "FUSION_DATA"  # environment variable: another folder for what is kept
OLD = ROOT / ".progress.json"  # where the course kept its record before
CHECKOUT = "checkout.txt"  # in the folder: the checkout to which it belongs
WAIT_SECONDS = 30  # for other processes that write
SILENT_SECONDS = 2  # of waiting, before the learner is told


def data_folder() -> Path:
    """The folder for this checkout, in FUSION_DATA or where the system keeps a user's data. It may not exist yet."""
    chosen = os.environ.get(DATA)
    base = (
        ROOT / os.path.expanduser(chosen)
        if chosen
        else platformdirs.user_data_path("fusion-by-hand", appauthor=False)
    )
    return base / f"{ROOT.name}-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"


def make_data_folder() -> Path:
    """`data_folder()`, which exists from now on, and says to which checkout it belongs."""
    folder = data_folder()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CHECKOUT).exists():
        (folder / CHECKOUT).write_text(str(ROOT), encoding="utf-8", errors="surrogateescape")
    return folder


def find_abandoned_folders() -> list[Path]:
    """The folders beside `data_folder()` whose checkout is gone from where it was: perhaps it has become this one."""
    found = []
    for note in data_folder().parent.glob(f"*/{CHECKOUT}"):
        checkout = Path(note.read_text(encoding="utf-8", errors="surrogateescape"))
        if not (checkout / "chapters").exists():
            found.append(note.parent)
    return found


def _database_path() -> Path:
    return data_folder() / "progress.sqlite"


def read() -> dict[str, dict]:
    """The record by exercise id or chapter; {} if nothing was recorded yet. Entries of another form are left out."""
    if not _database_path().exists() and not OLD.exists():
        return {}
    with _open_database() as database:
        rows = database.execute("SELECT key, facts FROM record").fetchall()
    found = {}
    for key, text in rows:
        with contextlib.suppress(ValueError, RecursionError):
            facts = json.loads(text)
            if _is_entry(facts):
                found[key] = facts
    return found


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("hints", 0), int)
        and entry.get("hints", 0) >= 0
        and entry.get("state", "todo") in STATES
        and isinstance(entry.get("files", {}), dict)
        and isinstance(entry.get("put_aside", {}), dict)
    )


def update(key: str, **facts: object) -> dict:
    """Set `facts` in the entry of an exercise or a chapter, and return the entry."""
    return _change_entry(key, lambda entry: entry.update(facts))


def count_hint(exercise_id: str, most: int) -> int:
    """Note that one hint more was shown, of at most `most`, and return how many that makes."""
    return _change_entry(
        exercise_id, lambda entry: entry.update(hints=min(entry.get("hints", 0) + 1, most))
    )["hints"]


def _change_entry(key: str, change) -> dict:
    """Change one entry in a transaction: processes that do so at the same time wait for each other."""
    with _open_database() as database:
        database.execute("BEGIN IMMEDIATE")
        row = database.execute("SELECT facts FROM record WHERE key = ?", (key,)).fetchone()
        entry: object = {}
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(row[0]) if row else {}
        entry = entry if _is_entry(entry) else {}
        change(entry)
        text = json.dumps(entry, sort_keys=True)
        database.execute("INSERT OR REPLACE INTO record VALUES (?, ?)", (key, text))
        database.execute("COMMIT")
    return entry


@contextlib.contextmanager
def _open_database() -> Iterator[sqlite3.Connection]:
    """The database, made if it is missing. What the system refuses is an OSError that names the file."""
    path = _database_path()
    make_data_folder()
    try:
        with contextlib.closing(_connect(path)) as database:
            yield database
    except sqlite3.OperationalError as error:  # a full disk, a folder one may not write to
        raise OSError(
            0, f"The record of your progress cannot be used ({error})", str(path)
        ) from None
    except sqlite3.DatabaseError as error:  # damaged where it was not read before
        raise OSError(0, f"{_set_aside(path)} Try again ({error})", str(path)) from None


def _connect(path: Path) -> sqlite3.Connection:
    for _ in range(2):
        database = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            made = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'record'").fetchone()
            if not made:
                _make_table(database)
            return database
        except sqlite3.OperationalError:
            database.close()
            raise
        except sqlite3.DatabaseError:  # not a database, or a damaged one
            database.close()
            print(_set_aside(path))
    raise sqlite3.OperationalError("it is damaged again at once")


def _set_aside(path: Path) -> str:
    """Give a damaged record another name; the sentence that says so."""
    damaged = path.with_name(f"damaged-{time.strftime('%Y%m%d-%H%M%S')}-{path.name}")
    os.replace(path, damaged)
    return f"The record of your progress could not be read; it is kept as {damaged}."


def _make_table(database: sqlite3.Connection) -> None:
    """Make the table, with what an older version of the course has recorded in the checkout."""
    database.execute("BEGIN IMMEDIATE")
    database.execute(
        "CREATE TABLE IF NOT EXISTS record (key TEXT PRIMARY KEY, facts TEXT NOT NULL)"
    )
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        for key, facts in json.loads(OLD.read_text(encoding="utf-8")).items():
            database.execute("INSERT OR IGNORE INTO record VALUES (?, ?)", (key, json.dumps(facts)))
    database.execute("COMMIT")


@contextlib.contextmanager
def lock_answers() -> Iterator[None]:
    """Wait until no other command changes the learner's files, and keep others waiting."""
    try:
        path = make_data_folder() / "lock.sqlite"
        lock = sqlite3.connect(path, timeout=SILENT_SECONDS, isolation_level=None)
    except (OSError, sqlite3.Error):  # without a place for a lock there is none
        yield
        return
    with contextlib.closing(lock):
        with contextlib.suppress(sqlite3.Error):
            _take_lock(lock)
        yield


def _take_lock(lock: sqlite3.Connection) -> None:
    """Take the lock; if that takes long, say what is waited for. Raises sqlite3.Error if it never comes free."""
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        print("Another command is working on your files; this one waits for it.", file=sys.stderr)
        lock.execute(f"PRAGMA busy_timeout = {1000 * WAIT_SECONDS}")
        lock.execute("BEGIN EXCLUSIVE")
