"""What takes long to make is made once, and a failure leaves nothing behind."""

import json
import os

import pytest

from chapters.kit import kept_files
from chapters.kit.kept_files import json_text, kept_file, short_hash


def test_a_file_is_made_once(tmp_path):
    path = tmp_path / "new" / "a.txt"
    made = []

    def make(to):
        made.append(to)
        to.write_text("content")

    for _ in range(2):
        assert kept_file(path, make).read_text() == "content"
    assert len(made) == 1


def test_a_file_that_could_not_be_made_is_not_there(tmp_path):
    def make(to):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept_file(tmp_path / "a.txt", make)
    assert not list(tmp_path.iterdir())


def test_the_file_used_longest_ago_goes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_files, "MOST", 2)
    for time, name in enumerate(("a", "b")):
        os.utime(kept_file(tmp_path / f"{name}.txt", lambda to: to.touch()), (time, time))
    kept_file(tmp_path / "a.txt", lambda to: to.touch())  # used again, now
    kept_file(tmp_path / "c.txt", lambda to: to.touch())
    assert sorted(path.stem for path in tmp_path.glob("*.txt")) == ["a", "c"]
    assert len(list(tmp_path.iterdir())) == 4, "what checks a file goes with it"


@pytest.mark.parametrize("damage", [b"", b"con", b"other 1"])
def test_a_file_that_was_cut_off_or_changed_is_made_anew(tmp_path, damage):
    path = tmp_path / "a.txt"
    for _ in range(2):
        assert kept_file(path, lambda to: to.write_text("content")).read_text() == "content"
        path.write_bytes(damage)


def test_a_cache_that_cannot_be_written_to_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, and no folder")
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path / "cache"))
    kept_files.made_folder.cache_clear()
    folder = kept_files.made_folder("kernels")
    assert folder.is_dir() and tmp_path not in folder.parents
    folder.rmdir()
    kept_files.made_folder.cache_clear()


def test_a_hash_tells_where_one_part_ends():
    assert short_hash("ab", "c") != short_hash("a", "bc")
    assert short_hash("ab", b"c") == short_hash(b"ab", "c")


def test_what_holds_no_other_object_or_list_is_one_line():
    value = {"a": [], "b": [{"c": 1, "d": "é"}, [2.5, None]], "e": {"f": {"g": [True]}}}
    text = json_text(value)
    assert json.loads(text) == value
    assert '\n  {"c": 1, "d": "é"},\n  [2.5, null]\n' in text and '"g": [true]' in text
