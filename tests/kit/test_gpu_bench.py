"""`bench 8` up to the launch: the protocol with a clock of our own, what is checked, tables, the page without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from chapters.ch04_add_rms_norm import bench as norm_page
from chapters.ch04_add_rms_norm import gpu_norms
from chapters.ch08_gpu_targets import bench, gelu_layers
from chapters.kit import machine
from chapters.kit.bench import (
    gpu_ceilings,
    gpu_clock,
    gpu_linear_bench,
    gpu_norm_bench,
    gpu_tables,
    results,
)
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.gpu.call import signature
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import CUDA
from chapters.kit.measure import quantiles
from chapters.kit.measure.quantiles import FEWEST, Quantiles, measure_in_turns
from docs.pages import gpu_results as gpu_page
from docs.pages import results_page
from docs.pages.plots import Figure

TRACKED = results.FOLDER  # `folder` replaces it
time_cold, time_in_graph = gpu_clock.time_cold, gpu_clock.time_in_graph  # `clocks` replaces them


def ignore(_text: str = "") -> None:
    pass


# --- the protocol -------------------------------------------------------------------------------


def test_quantiles_are_median_and_quartiles():
    assert Quantiles.of([4, 1, 3, 2, 5]) == Quantiles(3, 2, 4, 5)
    assert Quantiles.of([1.0, 3.0]).median == 2
    assert json.loads(json.dumps(asdict(Quantiles.of([1, 2, 3]))))["rounds"] == 3
    for few in ([], [1.0], [1.0, 0.0], [1.0, -1.0]):
        with pytest.raises(ValueError):
            Quantiles.of(few)


def test_all_take_turns_in_changing_order_and_the_first_round_does_not_count():
    orders: list[str] = []

    def clock(name):
        orders.append(name)
        return [9.0 if len(orders) <= 3 else 1.0, 1.0]

    times = measure_in_turns({n: lambda n=n: clock(n) for n in "abc"}, rounds=20, seed=1)
    rounds = ["".join(orders[at : at + 3]) for at in range(0, len(orders), 3)]
    assert len(rounds) == 21 and all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 3
    assert times == dict.fromkeys("abc", Quantiles(1.0, 1.0, 1.0, 40))


def test_rounds_are_fewer_where_a_round_is_long(monkeypatch):
    def count(each: float, rounds: int, seconds: float) -> int:
        now = [0.0]
        monkeypatch.setattr(quantiles.time, "monotonic", lambda: now[0])

        def clock():
            now[0] += each
            return [each]

        return measure_in_turns({"slow": clock}, rounds, seconds=seconds)["slow"].rounds

    assert FEWEST <= count(1.0, 100, 10.0) <= 11
    assert count(9.0, 100, 1.0) == FEWEST and count(9.0, 2, 1.0) == 2


def test_tritons_clocks_are_asked_for_all_timings(monkeypatch):
    """do_bench and do_bench_cudagraph count milliseconds."""
    asked = {}

    def do_bench(call, **how):
        asked["once"] = how
        return [1.0, 2.0]

    def do_bench_cudagraph(call, **how):
        asked["in a graph"] = how
        return [3.0]

    fakes = SimpleNamespace(do_bench=do_bench, do_bench_cudagraph=do_bench_cudagraph)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(testing=fakes))
    monkeypatch.setitem(sys.modules, "triton.testing", fakes)
    assert time_cold(ignore, 0.02) == [1e-3, 2e-3]
    assert time_in_graph(ignore) == [3e-3]
    assert asked["once"] == {"warmup": 1, "rep": 20.0, "return_mode": "all"}
    assert asked["in a graph"] == {"return_mode": "all"}


@pytest.fixture(autouse=True)
def clocks(monkeypatch):
    """No GPU: each timing is of one call, by the host's clock."""

    def once(call, seconds=1.0):
        assert seconds > 0
        start = time.perf_counter()
        call()
        return [time.perf_counter() - start]

    monkeypatch.setattr(gpu_clock, "time_cold", once)
    monkeypatch.setattr(gpu_clock, "time_in_graph", lambda call: 2 * once(call))


@pytest.mark.parametrize(("there", "found"), [(True, 101_376), (False, 5)])
def test_shared_memory_is_what_the_gpu_says(monkeypatch, there, found):
    properties = SimpleNamespace(shared_memory_per_block_optin=101_376)
    cuda = SimpleNamespace(is_available=lambda: there, get_device_properties=lambda _: properties)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert gpu_clock.shared_bytes(5) == found


# --- cases --------------------------------------------------------------------------------------


def test_the_plan_fills_every_results_file():
    quick = bench.plan(quick=True)
    assert (
        set(bench.plan(quick=False)) == set(quick) == set(bench.TABLES) - {"roofline", "ch08_norm"}
    )
    assert sum(map(len, quick.values())) <= 5


def test_bytes_and_operations_are_counted_once_each():
    assert gpu_norm_bench.bytes_moved((8, 16), "bfloat16") == (4 * 8 * 16 + 16) * 2
    assert gpu_norm_bench.operations((8, 16)) == 5 * 8 * 16
    layer = Layer(3, 5, 7, "float16")
    assert layer.operations == 2 * 3 * 5 * 7
    assert layer.bytes_moved("float32") == (3 * 7 + 5 * 7 + 5) * 2 + 3 * 5 * 4


def test_without_a_gpu_one_sentence_says_so(capsys):
    if not bench.explain_no_gpu():
        pytest.skip("this machine has a GPU")
    with pytest.raises(gpu_clock.NoGpuError, match=r"Nothing was measured: .+\. This bench is for"):
        bench.run(quick=True, say=print)


# --- what is checked before it is timed (with PyTorch, on the CPU) ---------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


ON_CPU = gpu_clock.Run(quick=True, say=ignore, device="cpu")


def compiled_for_cpu(func):
    """A PrimFunc as gpu_call.compile_kernel compiles it, for the CPU; one with an attribute x is refused."""
    import tvm
    import tvm_ffi

    if "x" in func.attrs:
        raise RuntimeError("refused")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    main = tvm.compile(mod, target="llvm")["main"]
    return lambda tensors: lambda: main(*map(tvm_ffi.from_dlpack, tensors))


def test_norms_are_compared_with_float64(torch):
    x1, x2, weight = gpu_norm_bench.draw_inputs((4, 1, 256), "bfloat16", "cpu")
    way = gpu_norm_bench.eager(x1, x2, weight)
    assert (
        0 < gpu_norm_bench.check_norm(*way, x1, x2, weight) < gpu_norm_bench.TOLERANCE["bfloat16"]
    )
    norm, total = way[1]()
    spoiled = {
        "the sum is not": (norm, total * 1.01),
        "off by": (norm * 1.05, total),
        "not a number": (torch.full_like(norm, float("nan")), total),
    }
    for words, outputs in spoiled.items():
        bad = ignore, lambda outputs=outputs: outputs
        with pytest.raises(gpu_clock.WrongNumbersError, match=words):
            gpu_norm_bench.check_norm(*bad, x1, x2, weight)


def test_norms_that_are_wrong_or_missing_are_told_and_not_timed(torch):
    def absent(*_):
        import no_such_library  # noqa: F401

    def wrong(x1, x2, weight):
        return ignore, lambda: (x1, x1 + x2)

    ways = {"eager": gpu_norm_bench.eager, "absent": absent, "wrong": wrong}
    case = gpu_norm_bench.measure((4, 1, 64), "float16", ways, ON_CPU)
    assert set(case["graph_seconds"]) == set(case["seconds"]) == {"copy", "eager"}
    assert set(case["errors"]) == {"eager"}
    assert case["missing"]["absent"] == "no_such_library is not installed"
    assert "WrongNumbersError" in case["missing"]["wrong"]
    assert json.loads(json.dumps(case)) == case


def test_layers_are_compared_with_float64(torch):
    layer = Layer(130, 48, 64, "float16")
    x, w, bias = gpu_linear_bench.draw_inputs(layer, "cpu")
    for fused in (True, False):
        call, result = gpu_linear_bench.bind_torch(x, w, bias, fused=fused)
        assert gpu_linear_bench.check_result(call, result, x, w, bias) < 1e-3
    right = result().clone()
    spoiled = {"off by": right - bias, "not finite": right.clone()}
    spoiled["not finite"][77, 3] = float("nan")  # in a row that is not among those compared
    for words, out in spoiled.items():
        with pytest.raises(gpu_clock.WrongNumbersError, match=words):
            gpu_linear_bench.check_result(ignore, lambda out=out: out, x, w, bias)


def test_a_kernel_is_given_tensors_of_the_dtypes_it_declares(torch):
    from tvm import te

    m, n, k = 6, 8, 16
    operands = [te.placeholder(s, "float16") for s in ((m, k), (n, k))]
    bias = te.placeholder((n,), "float32")
    r = te.reduce_axis((0, k))
    wide = [lambda *i, t=t: t(*i).astype("float32") for t in operands]
    product = te.compute((m, n), lambda i, j: te.sum(wide[0](i, r) * wide[1](j, r), r))
    total = te.compute((m, n), lambda i, j: product[i, j] + bias[j])
    func = te.create_prim_func([*operands, bias, total])
    kernels = {"right": lambda: func, "for another layer": lambda: func.with_attr("x", 1)}
    layer = Layer(m, n, k, "float16")
    case = gpu_linear_bench.measure(layer, kernels, ON_CPU, ["right"], compiled_for_cpu)
    assert case["errors"]["right, then an add"] < 1e-6
    assert case["errors"]["right"] < 1e-6 and "refused" in case["missing"]["for another layer"]
    assert case["bytes"]["right"] == layer.bytes_moved("float32")
    assert "copy" not in case["seconds"]


def test_a_layer_of_one_row_is_timed_beside_a_copy_of_as_many_bytes(torch):
    layer = Layer(1, 64, 512, "bfloat16")
    case = gpu_linear_bench.measure(layer, {}, ON_CPU)
    assert set(case["seconds"]) == {"copy", gpu_tables.LINEAR, "PyTorch's matmul, then an add"}
    assert case["bytes"]["copy"] == layer.bytes_moved("bfloat16")
    copied = gpu_linear_bench.make_copy(case["bytes"]["copy"], "cpu")()
    assert abs(2 * copied.nbytes - case["bytes"]["copy"]) < 2


@pytest.fixture
def cuda_stand_in(torch, monkeypatch):
    """A machine without a GPU, where the kernels for TVM do not compile."""
    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "explain_no_gpu", str)
    monkeypatch.setitem(gpu_norms.IMPLEMENTATIONS, "torch.compile", gpu_norm_bench.eager)
    monkeypatch.setitem(gelu_layers.IMPLEMENTATIONS, "torch.compile", gelu_layers.eager)


def absent_kernel():
    raise ValueError("no kernel here")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where results files are looked for; there are none yet."""
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def save_gpu(name: str, measured: dict, chapter: int, folder) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "nvidia_gpu", lambda: {"gpu": "NVIDIA X", "driver": "1"})
        results.save(name, measured, f"python -m chapters bench {chapter}", folder)


def test_a_run_from_end_to_end_but_for_the_gpu(cuda_stand_in, folder, monkeypatch):
    monkeypatch.setattr(bench, "steps", lambda layer: {"a step": absent_kernel})
    monkeypatch.setattr(bench, "kernels_for", lambda layer: {"decode": absent_kernel})
    told = []
    found = bench.run(quick=True, say=told.append)
    assert set(found) == {"ch08_norm", "ch08_linear", "ch08_steps", "ch08_gelu"}
    for name, measured in found.items():
        assert measured["ceilings"]["copy_rate"] > 0 and measured["skipped"] == []
        save_gpu(name, measured, 8, folder)
    norm = found["ch08_norm"]["cases"][0]
    for times in (norm["seconds"], norm["graph_seconds"]):
        assert set(times) == {"copy", "PyTorch", "torch.compile"}
    assert "wide_kernel" in norm["missing"] and "wide_kernel" in "".join(told)
    linear = found["ch08_linear"]["cases"][0]
    assert gpu_tables.LINEAR in linear["seconds"] and "no kernel" in linear["missing"]["decode"]
    gelu = found["ch08_gelu"]["cases"][0]
    assert {gpu_tables.EAGER_GELU, "torch.compile"} <= set(gelu["seconds"])
    assert set(gelu["seconds"]) | set(gelu["missing"]) == set(gelu_layers.IMPLEMENTATIONS)
    for name in bench.TABLES:
        assert "<table" in bench.show_results(name)._repr_html_()
    assert "<table" in results_page.show_chapter(8)._repr_html_()


def test_chapter_4_measures_the_same_norms(cuda_stand_in, monkeypatch):
    monkeypatch.setattr(norm_page, "explain_no_gpu", str)
    monkeypatch.setattr(norm_page, "measure_cases", lambda *_, **__: {"cases": []})
    monkeypatch.setattr(norm_page, "Run", lambda *_: ON_CPU)
    measured = norm_page.run(quick=True, say=ignore)["ch08_norm"]
    assert measured["ceilings"]["copy_rate"] > 0 and len(measured["cases"]) == 1


def test_cases_that_begin_too_late_are_named(cuda_stand_in, monkeypatch):
    monkeypatch.setattr(gpu_ceilings.time, "monotonic", iter([0.0, *[1e6] * 20]).__next__)
    assert bench.run(quick=True, say=ignore) == {}


# --- kernels, tables, pages ----------------------------------------------------------------------


@pytest.mark.parametrize("layer", bench.plan(quick=True)["ch08_linear"], ids=str)
def test_layer_kernels_become_one_cuda_kernel_each(layer):
    kernels = {**(bench.steps(layer) if layer.m > 1 else {}), **bench.kernels_for(layer)}
    assert set(kernels) & set(gpu_tables.LINEAR_OURS)
    for name, make in kernels.items():
        if name == "dlight":
            continue  # importing the rules takes half a minute
        func = make()
        shapes = [shape for shape, _ in signature(func)]
        assert shapes == [(layer.m, layer.k), (layer.n, layer.k), (layer.n,), (layer.m, layer.n)]
        (kernel,) = HostProgram(func, CUDA).kernels.values()
        assert "__global__" in kernel.source


def test_pages_show_cases_of_which_a_part_was_measured(folder):
    """The pages of a whole run are in docs/outputs."""
    for name in set(bench.TABLES) - {"roofline"}:
        measured = results.load(name, TRACKED)["measured"]
        for case in measured["cases"][1:]:
            seconds = case["seconds"]
            slowest = max(seconds, key=lambda one, seconds=seconds: seconds[one]["median"])
            for lost in {slowest, "mma.sync"} - {gpu_tables.LINEAR, gpu_tables.EAGER_GELU}:
                seconds.pop(lost, None)
        measured["skipped"] = ["float16, (8192, 8192)"]
        save_gpu(name, measured, 8, folder)
    for name in bench.TABLES:
        shown = bench.show_results(name)
        assert "bench 8" in str(shown) and "<table" in shown._repr_html_()
    page = results_page.show_chapter(8)
    figures = [part for part in page.parts if isinstance(part, Figure)]
    assert len(figures) > 4 and all(one.claim for one in figures)
    assert "not measured for want of time: float16, (8192, 8192)" in str(page)


def test_equal_times_are_no_lead():
    def case(rows: int, ours: float) -> dict:
        times = {"copy": 0.9, "wide_kernel": ours, "Triton": 1.0}
        seconds = {n: asdict(Quantiles(s, 0.9 * s, 1.1 * s, 100)) for n, s in times.items()}
        shape = {"dtype": "float16", "bytes": 8, "shape": [rows, 8]}
        return {**shape, "seconds": seconds, "graph_seconds": {}}

    cases = [case(8, 1), case(9, 0.8)]
    (figure,) = gpu_page.draw_norms({"cases": cases, "ceilings": {"copy_rate": 10.0}})
    assert figure.caption.replace("\u00a0", " ").endswith(
        "Fastest in float16, of 2 cases: a tie in 1, this course in 1; the best of the others takes 1 (Triton, (8, 8)) "
        "to 1.25 (Triton, (9, 8)) times our time."
    )


def test_who_is_faster_is_named():
    seconds = {
        n: asdict(Quantiles(s, s, s, 9)) for n, s in {"mma.sync": 1.5, "Triton": 1.2}.items()
    }
    sizes = {"m": 1, "n": 2, "k": 3, "seconds": seconds}
    cases = [{"dtype": dtype, **sizes} for dtype in ("float16", "bfloat16")]
    told = gpu_page._compare_with_others(cases, ["mma.sync"]).replace("\u00a0", " ")
    assert told.startswith(
        "Fastest in float16, of 1 case: “Triton” in 1; the best of the others takes 0.8 (Triton, 1 × 2 × 3) times our "
        "time. Fastest in bfloat16, of 1 case: “Triton”"
    )


@pytest.mark.parametrize(
    ("printed", "code", "facts"),
    [
        ("NVIDIA H200, 580.1\n", 0, {"gpu": "NVIDIA H200", "driver": "580.1"}),
        ("NVIDIA A, 1.2\nNVIDIA B, 1.2\n", 0, {"gpu": "NVIDIA A", "driver": "1.2"}),
        ("No devices were found\n", 0, {}),
        ("NVIDIA-SMI has failed, no driver\n", 9, {}),
    ],
)
def test_the_gpu_and_its_driver_are_as_nvidia_smi_says(monkeypatch, printed, code, facts):
    done = subprocess.CompletedProcess([], code, printed, "")
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: done)
    assert machine.nvidia_gpu() == facts
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert machine.nvidia_gpu() == {}


def test_the_gpu_is_named_before_the_processor():
    facts = {
        "device": "a CPU",
        "cores": 2,
        "system": "Linux",
        "versions": {},
        "date": "today",
        "measured": {},
    }
    line = results.describe_origin({"gpu": "a GPU", "driver": "1.2", **facts, "command": "x"})
    assert line.startswith("a GPU, driver 1.2; a CPU, 2 cores")
