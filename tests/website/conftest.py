"""Fixtures of the site's tests: the hooks as MkDocs imports them, the built site, and a browser."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

from chapters.runner.course import ROOT
from tests.website.check_pages import CannotOpen, find_browser

# WebGPU without a GPU: SwiftShader, a part of every Chromium; no sandbox, because containers have none
FLAGS = ["--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]


@pytest.fixture(scope="module")
def hook():
    """Imports a hook of the site by its name."""
    pytest.importorskip("mkdocs")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "hooks")
        yield importlib.import_module


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The whole site, built from the outputs that are kept."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    return folder


def explain_missing_browser() -> str:
    """Why no page can be run here, "" if one can."""
    if not importlib.util.find_spec("playwright"):
        return "running a page needs Playwright: pip install -e '.[dev]'"
    try:
        find_browser()
    except CannotOpen as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def chromium():
    """A running Chromium; tests that need it are skipped where it is missing."""
    if reason := explain_missing_browser():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(chromium, address):
    """The page at the test's own `address`, in a browser; its scripts must not fail."""
    page = chromium.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    yield page
    page.close()
    assert errors == []


def render_alone(made, style: str, *scripts: str) -> str:
    """A page that holds only what `made` shows in HTML, with its style sheet and its scripts from docs/."""
    docs = (ROOT / "docs").as_uri()
    run = "".join(f'<script src="{docs}/js/{name}"></script>' for name in scripts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>x</title><body class="md-typeset">'
        f'<link rel="stylesheet" href="{docs}/styles/{style}">{made._repr_html_()}{run}</body></html>'
    )
