"""`check`, `bench` and `next` as a learner types them, with a device that is there, absent, elsewhere, or vanishes."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import psutil
import pytest
import tvm

from chapters.runner import device_child
from chapters.runner.course import CourseError, chapter, exercise
from chapters.runner.device_child import DeviceChild
from chapters.runner.learner_file import make_stub
from chapters.runner.regions import with_reference
from tests.support.injected_faults import needs_vulkan
from tests.support.served import left, needs_server, served

GPU = any(tvm.runtime.device(kind, 0).exist for kind in ("cuda", "metal"))
FAR = "127.0.0.1:1"  # nothing listens there


@pytest.fixture
def solved(course):
    """The course with one exercise of chapter 8 solved, and everything else as at the start."""
    home = chapter(8)
    text = with_reference(make_stub(home), home, {"8.1"})
    course.file(home).write_text(text, encoding="utf-8")
    return course


@pytest.mark.skipif(GPU, reason="this machine has a GPU")
def test_without_a_gpu_one_sentence_says_so_and_the_check_is_as_ever(solved):
    done = solved.learner("check", "8.1", "--device", "cuda")
    said = done.stdout.splitlines()
    assert re.match(r"There is no CUDA device here: .* Checking without a device\.", said[1])
    assert said[2].startswith("✓ 8.1 ") and said[3].startswith("1 of 1 passed")
    assert len(said) == 4 and done.returncode == 0
    done = solved.learner("bench", "8.1")
    assert done.returncode == 2 and "There is no CUDA device here" in done.stdout
    assert len(done.stdout.splitlines()) == 1 and not done.stderr


@needs_vulkan
def test_one_exercise_runs_on_a_device_alone(solved):
    done = solved.learner("check", "8.1", "--device", "vulkan")
    assert "✓ right on vulkan:0" in done.stdout and done.returncode == 0, done.stdout
    assert "0.0001 is allowed" in done.stdout and "PyTorch: it cannot" in done.stdout
    for name in ("yours", "the reference"):
        assert re.search(rf"^  {name} +[\d.]+ [mµ]?s ", done.stdout, re.MULTILINE)
    assert "1/5" in solved.learner().stdout, "the record is the ordinary check's"


@needs_vulkan
def test_a_bench_of_an_exercise_that_is_not_written_measures_the_reference(solved):
    done = solved.learner("bench", "8.2", "--device", "vulkan", "--quick")
    assert done.returncode == 0 and "still to be written: this is the reference's" in done.stdout


WRONG_CALLS = {
    ("check", "8.1", "--device", "gpu"): "'gpu' is not a device; write cuda, metal or vulkan",
    ("check", "8.1", "--remote", "laptop"): "--remote laptop is no address",
    ("check", "8.1", "--remote", FAR): f"Nothing answers at {FAR}",
    ("bench", "8.3"): "Exercise 8.3 has no kernel to measure; 8.1, 8.2, 8.4",
    ("bench", "8", "--device", "cuda"): "measure one exercise, as in",
    ("serve-device", "--port", "0"): "'0' is not a port",
}


def test_a_wrong_call_is_one_sentence(course):
    for arguments, says in WRONG_CALLS.items():
        done = course.learner(*arguments)
        said = done.stdout.replace("Checking YOUR code in chapters/.\n", "")
        assert done.returncode == 2 and says in said
        assert len(said.splitlines()) == 1 and not done.stderr


def test_a_device_for_exercises_without_a_kernel(course):
    said = course.learner("check", "0.1", "--device", "vulkan").stdout
    assert "--device changes nothing here: only 8.1, 8.2, 8.4, 8.5 have a kernel" in said


# --- a device elsewhere ---------------------------------------------------------------------------


@needs_server
def test_a_bench_on_a_device_elsewhere(solved):
    with served() as server:
        where = ["--device", "llvm", "--remote", server.address]
        done = solved.learner("bench", "8.1", "--quick", *where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"✓ right on llvm:0 (at {server.address.partition('/')[0]})" in done.stdout
    assert "PyTorch: it is timed only on a GPU of this machine" in done.stdout
    assert re.search(r"^yours +[\d.]+ ", done.stdout, re.MULTILINE)


def _start_measuring(address: str, into: list, rounds: int) -> threading.Thread:
    """Measure 8.1 of the reference there, in a thread; what is said goes into `into`."""
    home, one = exercise("8.1")

    def run() -> None:
        try:
            with DeviceChild("llvm", address) as device:
                into.append("begun")
                into.append(device.run(home, one, rounds=rounds, yours=False))
        except CourseError as error:
            into.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while not into:
        time.sleep(0.05)
    time.sleep(3)
    return thread


@needs_server
def test_a_machine_that_vanishes_in_the_middle_is_one_sentence():
    mine = set(psutil.Process().children())
    with served() as server:
        said: list = []
        thread = _start_measuring(server.address, said, rounds=100_000)
        assert said == ["begun"], "it is still measuring"
        server.kill()
        thread.join(30)
        assert not thread.is_alive() and "went away" in said[1] and "\n" not in said[1]
    assert not left([p for p in psutil.Process().children() if p not in mine], 3)


@needs_server
def test_a_machine_that_falls_silent_does_not_hang(monkeypatch):
    monkeypatch.setattr(device_child, "RUN_SECONDS", 6.0)
    monkeypatch.setenv("FUSION_PATIENCE", "1")
    with served() as server:
        said: list = []
        thread = _start_measuring(server.address, said, rounds=100_000)
        family = server.family
        for one in family:
            os.kill(one.pid, signal.SIGSTOP)
        thread.join(40)
        for one in family:
            os.kill(one.pid, signal.SIGCONT)
        assert not thread.is_alive() and "Nothing came back from the machine at" in said[1]


# --- next, from a chapter on ----------------------------------------------------------------------


def test_next_begins_where_it_is_told(course):
    said = course.learner("next", "8").stdout
    first, _, rest = said.partition("\n\n")
    assert first == (
        "Beginning at chapter 8, although chapters 0 to 7 are not solved yet. The code is the reference's; an answer "
        "of yours takes its place once it passes its checks."
    )
    assert rest.startswith("8.1 ") and "check 8.1" in rest
    assert course.learner("next").stdout.startswith("0.1 ")
    assert course.learner("next", "0").stdout.startswith("0.1 ")
    done = course.learner("next", "99")
    assert done.returncode == 2 and "There is no chapter '99'" in done.stdout


def test_next_says_what_is_the_learners(course):
    course.solve()
    course.record_as_passed(0)
    said = course.learner("next", "1").stdout
    assert said.startswith("1.1 "), "all before it is solved"
    said = course.learner("next", "3").stdout
    assert "chapters 1 and 2 are not solved yet. The code of chapter 0 is yours; the other" in said
