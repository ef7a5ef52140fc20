"""Benches: timing in separate processes, results files, and the kernels that measure upper bounds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv

import numpy as np
import pytest
import tvm

from chapters.ch09_the_compiler import bench_epilogues
from chapters.child import MOST_PRINTED
from chapters.kit.bench import cpu_bounds, operands, results, timing
from chapters.kit.bench.cpu_bounds import (
    MULTIPLY_ADDS,
    make_reader,
    multiply_add,
    multiply_tile,
    read_matrix,
)
from chapters.kit.bench.operands import in_numpy_memory
from chapters.kit.bench.timing import Candidate, CandidateFailed, Unavailable, call_apart, compare
from chapters.kit.cases.example_programs import matmul_bias
from chapters.kit.draw.read_order import read_order
from chapters.kit.draw.table import format_duration
from chapters.kit.machine import llvm_host
from chapters.runner.course import ROOT, chapters

HERE = "tests.course.test_bench"


def two_sums(small: int, large: int):
    """Two calls whose times differ by what they add up; each says an error of its own."""
    return {"small": (lambda: sum(range(small)), 0.5), "large": (lambda: sum(range(large)), None)}


def writes():
    """As PyTorch does, whose compiled headers are a temporary file of more than 100 MB."""
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * MOST_PRINTED)
    return {"written": (lambda: None, None)}


def absent():
    raise Unavailable("nothing of that name is installed")


def wrong():
    raise ValueError("wrong numbers")


def dies():
    import os

    os._exit(3)


def test_compare_times_each_variant_and_tells_what_is_missing(monkeypatch):
    asked, measure = [], timing._Process.measure
    monkeypatch.setattr(
        timing._Process, "measure", lambda *one: asked.append(one[1]) or measure(*one)
    )
    candidates = [
        Candidate(HERE, "two_sums", {"small": 1000, "large": 50000}),
        Candidate(HERE, "absent"),
    ]
    timings, missing = compare(candidates, threads=1, rounds=3)
    assert missing == ["nothing of that name is installed"]
    assert timings["large"].seconds > 3 * timings["small"].seconds
    assert timings["small"].error == 0.5
    assert asked.count("small") == asked.count("large") == 1 + 3


def give(**arguments):
    return arguments


def test_what_a_function_returns_comes_back_from_its_process():
    assert call_apart(Candidate(HERE, "give", {"path": "a", "count": 2}), 1) == {
        "path": "a",
        "count": 2,
    }
    with pytest.raises(Unavailable, match="nothing of that name"):
        call_apart(Candidate(HERE, "absent"), 1)
    with pytest.raises(CandidateFailed, match="wrong numbers"):
        call_apart(Candidate(HERE, "wrong"), 1)


def test_a_peer_may_write_large_files():
    assert "written" in compare([Candidate(HERE, "writes")], threads=1, rounds=2)[0]


@pytest.mark.parametrize(("function", "told"), [("wrong", "wrong numbers"), ("dies", "died")])
def test_compare_does_not_time_a_peer_that_fails(function, told):
    with pytest.raises(CandidateFailed, match=told):
        compare([Candidate(HERE, function)], threads=1, rounds=2)


OTHER_CANDIDATE = """
import sys

def interpreter():
    return {sys.executable: (lambda: None, None)}
"""


def test_a_peer_that_needs_torch_runs_in_the_interpreter_that_has_it(tmp_path, monkeypatch):
    """A bare one here, with nothing that the course needs, and a torch that is only found."""
    other = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    venv.create(tmp_path / "venv", symlinks=os.name != "nt")
    (tmp_path / "other_candidate.py").write_text(OTHER_CANDIDATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FUSION_PEER_PYTHON", str(other))
    candidates = [
        Candidate("other_candidate", "interpreter", needs=needs) for needs in ((), ("torch",))
    ]
    timings, missing = compare(candidates, threads=1, rounds=2)
    assert list(timings) == [sys.executable]
    assert missing == [timing.not_installed("torch")]
    (tmp_path / "torch.py").touch()
    timings, missing = compare(candidates, threads=1, rounds=2)
    assert list(timings) == [sys.executable, str(other)] and not missing


def test_an_interpreter_that_does_not_start_is_named(monkeypatch):
    monkeypatch.setenv("FUSION_PEER_PYTHON", "/no/such/python")
    with pytest.raises(CandidateFailed, match="cannot start /no/such/python"):
        compare([Candidate(HERE, "absent", needs=["torch"])], threads=1, rounds=2)


def test_benches_are_imported_without_tvm():
    """A baseline's interpreter may have none; on a GPU, PyTorch comes first, with the library that TVM looks for."""
    modules = [f"chapters.{c.slug}.bench" for c in chapters() if (c.folder / "bench.py").exists()]
    others = ["chapters.ch10_imported_models.bench"]  # its models need TVM first
    hide = "import sys; sys.modules.update(tvm=None, ml_dtypes=None, yaml=None)"
    code = "\n".join([hide, *(f"import {one}" for one in modules if one not in others)])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr


STAYS_APART = """
import os, threading
from chapters.kit.bench import timing

mine = os.sched_getaffinity(0)
bound = threading.Event()

def worker():
    os.sched_setaffinity(0, {min(mine)})
    bound.set()
    threading.Event().wait()

threading.Thread(target=worker, daemon=True).start()
assert bound.wait(10)
timing._stay_apart()
assert os.sched_getaffinity(0) == mine - {min(mine)}
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are bound on Linux only")
def test_the_calling_thread_keeps_off_the_cores_of_bound_workers():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core")
    # in a new process: TVM's workers of this one may be bound already
    done = subprocess.run(
        [sys.executable, "-c", STAYS_APART], cwd=ROOT, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr


def test_results_files_hold_what_they_were_made_with(tmp_path):
    results.save("some", {"seconds": 1.5}, "python -m chapters bench 3", tmp_path)
    back = results.load("some", tmp_path)
    assert back["measured"] == {"seconds": 1.5}
    for fact in ("device", "date", "command", "apache-tvm"):
        assert str(back.get(fact, back["versions"].get(fact))) in results.describe_origin(back)
    assert results.load("other", tmp_path) is None


def test_a_peer_with_wrong_numbers_is_refused():
    x, w = operands.draw_arrays(1, (5, 16), (8, 16))
    right = x @ w.T
    assert operands.check_product(right, x, w) < operands.TOLERANCE
    for spoiled in (right + 1, np.full_like(right, np.nan), right[:, ::-1]):
        with pytest.raises(ValueError, match="wrong numbers"):
            operands.check_product(spoiled, x, w)


def test_bounds_do_the_work_they_say(monkeypatch):
    target = llvm_host()["target"]
    for together in (4, 2, 1):
        kernel, shape = read_matrix(8, 192, target, together)
        w = np.random.default_rng(0).standard_normal((8, 192)).astype("float32")
        sums = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
        kernel(tvm.runtime.tensor(w), sums)
        np.testing.assert_allclose(sums.numpy().sum(axis=1), w.sum(axis=1), 1e-4, 1e-4)
    made = []
    keep = lambda array: made.append(array) or in_numpy_memory(array)  # noqa: E731
    monkeypatch.setattr(cpu_bounds, "in_numpy_memory", keep)
    for nbytes in (10, 96_576):
        make_reader(nbytes, target)()
        assert nbytes <= made[-1].nbytes < nbytes + (1 << 16)
    with pytest.raises(ValueError, match="does not divide"):
        read_matrix(8, 65, target)
    worker, operands_shape, sums_shape = multiply_add(2, target)
    sums = tvm.runtime.tensor(np.full(sums_shape, np.nan, "float32"))
    worker(tvm.runtime.tensor(np.full(operands_shape, 0.5, "float32")), sums)
    np.testing.assert_allclose(sums.numpy(), 1.0, 1e-6)  # a = a / 2 + 1 / 2 ends at 1


@pytest.mark.parametrize(("vectors", "columns", "threads"), [(1, 8, 2), (3, 8, 1)])
def test_the_tile_alone_does_the_work_it_says(vectors, columns, threads):
    kernel, shapes = multiply_tile(vectors, columns, threads, llvm_host()["target"])
    random = np.random.default_rng(0)
    w, x = (random.integers(-3, 4, shape).astype("float32") for shape in shapes[:2])
    w[:, 0], x[0] = 1, 1  # some sum is not 0
    sums = tvm.runtime.tensor(np.full(shapes[2], np.nan, "float32"))
    kernel(tvm.runtime.tensor(w), tvm.runtime.tensor(x), sums)
    once = np.einsum("jk,kvi->jvi", w, x)
    repeats = sums.numpy()[:, once != 0] / once[once != 0]
    assert np.unique(repeats).size == 1
    done = repeats.flat[0] * w.shape[1] * once.size
    assert 0.99 * MULTIPLY_ADDS < done <= MULTIPLY_ADDS


def test_a_buffer_that_no_block_reads_has_no_order():
    with pytest.raises(ValueError, match="No block"):
        read_order(matmul_bias(2, 2, 3), "nothing", "none")


def test_a_learners_measurements_leave_the_tracked_results_alone(course):
    """`bench 3` says whose code it runs, and writes elsewhere; `--save` measures the reference."""
    bench = course.root / "chapters" / "ch03_transpose_matmul" / "bench.py"
    code = 'TABLES = {"ch03_pass": str}\ndef run(quick, say):\n    return {"ch03_pass": 1}\n'
    bench.write_text(code, encoding="utf-8")
    tracked = course.root / "docs" / "results" / "ch03_pass.json"
    before = tracked.read_bytes()
    said = course.learner("bench", "3").stdout
    assert "The code is the reference's" in said and str(course.data) in said
    assert tracked.read_bytes() == before
    (written,) = course.data.rglob("ch03_pass.json")
    assert results.load("ch03_pass", written.parent)["measured"] == 1
    assert str(tracked) in course.learner("bench", "3", "--save").stdout
    assert results.load("ch03_pass", tracked.parent)["measured"] == 1


def test_a_chapter_that_measures_nothing_says_which_do(capsys):
    from chapters.runner.command_line import run

    assert run(["bench", "0"]) == 2
    assert "3" in capsys.readouterr().out


def test_a_duration_has_three_digits_and_no_exponent():
    told = [format_duration(s) for s in (7.6e-5, 0.0054321, 0.99, 0.9999, 2.0719, 12.34)]
    assert told == ["0.076 ms", "5.43 ms", "990 ms", "1 s", "2.07 s", "12.3 s"]


def test_the_layers_of_bench_9_are_right_and_wrong_numbers_are_refused():
    sizes = {"rows": 3, "n": 40, "k": 24, "seed": 5}
    timed, _ = compare(
        [Candidate(bench_epilogues.__name__, "ours", sizes | {"threads": 1})],
        threads=1,
        rounds=2,
    )
    assert list(timed) == [f"fusion_by_hand, {name}" for name in bench_epilogues.LAYERS]
    assert all(timing.error < operands.TOLERANCE for timing in timed.values())
    arrays = bench_epilogues.draw_operands(**sizes)
    x, w, b, r = arrays
    for name in bench_epilogues.LAYERS:
        out = bench_epilogues.compute_expected(name, x @ w.T, b, r)
        bench_epilogues.check_layer(name, out, arrays)
        out[1, -1] += 0.01
        with pytest.raises(ValueError, match="wrong numbers"):
            bench_epilogues.check_layer(name, out, arrays)
