"""Fixtures of the site's tests: the hooks as MkDocs imports them, and a browser."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from chapters.runner.course import ROOT
from tests.website.check_pages import CannotOpen, browser_path

# WebGPU without a GPU: SwiftShader, a part of every Chromium; no sandbox, because containers have none
FLAGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]


@pytest.fixture(scope="module")
def hook():
    """Imports a hook of the site by its name."""
    pytest.importorskip("mkdocs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "hooks")
        yield importlib.import_module


def no_browser() -> str:
    """Why no page can be run here, "" if one can."""
    if not importlib.util.find_spec("playwright"):
        return "running a page needs Playwright: pip install -e '.[dev]'"
    try:
        browser_path()
    except CannotOpen as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def chromium():
    """A running Chromium; tests that need it are skipped where it is missing."""
    if reason := no_browser():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        yield running
        running.close()
