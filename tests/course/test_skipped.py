"""What a machine without g++ or a Vulkan device skips is what `doctor` says, exercise by exercise."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from unittest import mock

import pytest

from chapters.kit import doctor
from chapters.kit.emulator import cuda_on_cpu, executors, wgsl_on_vulkan
from chapters.runner.course import ROOT, chapter
from chapters.runner.engine import Check, checks_of
from chapters.runner.failure import Skip
from chapters.runner.loading import load

# which dtypes WGSL runs on: none without a device, float32 on lavapipe, float16 too on most GPUs
MACHINES = {
    "nothing": (),
    "Vulkan": ("float32",),
    "Vulkan with float16": ("float32", "float16"),
}


@contextlib.contextmanager
def imitate_machine(name):
    """A machine as named; gives a list that gets longer whenever someone asks what it has."""
    dtypes, asked = MACHINES[name], []

    def vulkan(dtype="float32"):
        asked.append(dtype)
        return "" if dtype in dtypes else f"there is no {dtype}"

    def compiler():
        asked.append("g++")
        return "there is no g++"

    with (
        mock.patch.dict(os.environ, {executors.REQUIRED: ""}),
        mock.patch.object(cuda_on_cpu, "missing", compiler),
        mock.patch.object(wgsl_on_vulkan, "missing", vulkan),
    ):
        yield asked


@functools.cache
def find_skipped(name: str) -> tuple[list[str], list[Check]]:
    """The exercises of which a check of the reference is skipped; and all checks that ask what the machine has.

    A check that does not ask where there is nothing does not ask elsewhere. A kernel that fails because of the mocks is
    not skipped.
    """
    checks = [check for number in (4, 8) for check in checks_of(chapter(number))]
    found, asking = [], []
    for check in checks if name == "nothing" else find_skipped("nothing")[1]:
        code = importlib.import_module(f"chapters.{check.chapter.slug}.checks")
        with imitate_machine(name) as asked, contextlib.suppress(Exception):
            try:
                getattr(code, check.name)(load(check.chapter.solution))
            except Skip:
                found.append(check.exercise.id)
            finally:
                asking += [check] if asked else []
    return list(dict.fromkeys(found)), asking


@pytest.mark.parametrize("name", MACHINES)
def test_doctor_names_what_is_skipped(name):
    with imitate_machine(name):
        said = executors.find_skipped()
        assert said == find_skipped(name)[0]
        finding = doctor._executors()[-1]
        assert finding.mark == "--" and finding.text.endswith(f"SKIPPED: {', '.join(said)}")
        verdict = doctor._verdict(0, len(said))
    assert verdict.startswith(f"Nothing is broken. {len(said)} exercises will be skipped")


def test_only_the_checks_of_these_chapters_run_gpu_code():
    """Other chapters' checks would have to be listed too."""
    running = (
        "cuda_on_cpu",
        "wgsl_on_vulkan",
        "checking import gpu_kernels",
        "checking.gpu_kernels",
    )
    for path in (ROOT / "chapters").glob("ch*/checks.py"):
        used = any(word in path.read_text(encoding="utf-8") for word in running)
        assert not used or path.parent.name[:4] in ("ch04", "ch08"), path


def test_where_nothing_is_missing_doctor_says_so(monkeypatch):
    monkeypatch.setattr(cuda_on_cpu, "missing", lambda: "")
    assert executors.find_skipped() == [] and "SKIPPED" not in doctor._executors()[-1].text
    assert doctor._verdict(0, 0) == "Everything the course needs is here."
    assert doctor._verdict(2, 7) == "2 thing(s) to fix."


@pytest.mark.parametrize(
    ("system", "says"), [("win32", "WSL 2"), ("darwin", "docker run"), ("linux", "apt")]
)
def test_each_system_is_told_how_to_get_what_is_missing(system, says, monkeypatch):
    monkeypatch.setattr(executors.sys, "platform", system)
    assert says in executors.executors()[0].install


def test_doctor_says_that_a_driver_is_too_old(monkeypatch):
    told = "The NVIDIA driver here is too old: it supports CUDA 12.2. Install a driver for CUDA 13"
    monkeypatch.setattr(doctor.machine, "driver_problem", lambda: told)
    monkeypatch.setattr(doctor.machine, "cuda_state", lambda: ("no gpu", "finds no GPU"))
    found = doctor._gpus()[0]
    assert (found.mark, found.advice) == ("--", "Install a driver for CUDA 13")
