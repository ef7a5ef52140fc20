"""A linear layer with bias and GELU, ours and its baselines, without a GPU; and the record of what Inductor writes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from chapters.ch08_gpu_targets import gelu_layers
from chapters.ch08_gpu_targets import other_compilers as others
from chapters.checking.gpu_kernels import draw_arrays, exact
from chapters.kit.bench import gpu_linear_bench
from chapters.kit.bench.gpu_clock import WrongNumbersError
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.bench.results import load
from chapters.kit.gpu.mma import TILES
from tests.support import injected_faults

NO_TRITON = "Triton or PyTorch is not installed"
with_triton = pytest.mark.skipif(
    not (importlib.util.find_spec("triton") and importlib.util.find_spec("torch")), reason=NO_TRITON
)
INTERPRETED = """
import torch
from chapters.ch04_add_rms_norm.triton_add_norm import add_norm
from chapters.ch08_gpu_targets.triton_linear_gelu import linear_gelu
from chapters.kit.bench import gpu_linear_bench, gpu_norm_bench

for dtype in ("float16", "float32"):
    for sizes in ((33, 48, 80), (64, 64, 64), (1, 96, 32)):
        operands = gpu_linear_bench.draw_inputs(gpu_linear_bench.Layer(*sizes, dtype), "cpu")
        result = linear_gelu(*operands, {"M": 32, "N": 32, "K": 32, "GROUP": 2})
        error = gpu_linear_bench.compute_error(result, *operands, torch.nn.functional.gelu)
        assert error < gpu_linear_bench.TOLERANCE[dtype]
    given = gpu_norm_bench.draw_inputs((4, 1, 300), dtype, "cpu")
    error = gpu_norm_bench.compute_error(*add_norm(*given, gpu_norm_bench.EPSILON), *given)
    assert error < gpu_norm_bench.TOLERANCE[dtype]
"""


@injected_faults.runs_here
def test_our_kernel_gives_the_layer_with_gelu():
    from math import erf

    tile = TILES[-1]
    a, b, c, d = draw_arrays(77, 128, 192, "float16", 1, "float16")
    injected_faults.run_changed(
        gelu_layers.make_kernel(Layer(77, 128, 192, "float16"), tile), [a, b, c, d]
    )
    total = exact(a, b, c)
    right = total * (0.5 + 0.5 * np.vectorize(erf)(total / 2**0.5))
    assert np.abs(d.astype("float64") - right).max() < 2e-3 * np.abs(right).max()


@with_triton
def test_the_triton_kernels_give_the_same_in_its_interpreter():
    """In float16 and float32: Triton's interpreter does not multiply bfloat16."""
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr


def test_peers_are_compared_with_float64():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    operands = gpu_linear_bench.draw_inputs(Layer(70, 48, 64, "float16"), "cpu")
    call, result = gelu_layers.eager(*operands)
    check = gpu_linear_bench.check_result
    assert 0 < check(call, result, *operands, torch.nn.functional.gelu) < 1e-3
    without = torch.nn.functional.linear(*operands)
    with pytest.raises(WrongNumbersError, match="off by"):
        check(lambda: None, lambda: without, *operands, torch.nn.functional.gelu)


def test_peers_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "chapters.ch08_gpu_targets.triton_linear_gelu", raising=False)
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(ImportError, match="triton"):
        gelu_layers.by_triton(*gpu_linear_bench.draw_inputs(Layer(2, 16, 16, "float16"), "cpu"))


def test_the_record_says_what_the_page_says():
    texts, candidates = (load(others.NAME)["measured"][key] for key in ("texts", "candidates"))
    norm, default, tuned = (texts[p] for p in (others.NORM, others.LINEAR, others.TUNED))
    assert norm.count("tl.store(out_ptr0") == norm.count("tl.load(out_ptr0") == 1
    assert "extern_kernels.addmm" in default and "erf" in others.cut_kernel(default)
    assert "tl.dot" not in default
    suffix = others.cut_kernel(tuned).partition("inductor generates a suffix")[2]
    assert "libdevice.erf" in suffix and "extern_kernels.addmm(" not in tuned
    assert candidates[0] == "addmm" and len(candidates) > 2
    assert all(f"{name} : tl.constexpr = {size}" in tuned for name, size in others.TILE.items())


@with_triton
def test_inductor_still_writes_what_was_recorded():
    """In a process of its own, for PyTorch then takes it that there is a GPU."""
    recorded = load(others.NAME)
    now = {"torch": "torch", "triton": "triton"}
    now = {name: importlib.import_module(module).__version__ for name, module in now.items()}
    if any(recorded["versions"].get(name) != version for name, version in now.items()):
        pytest.skip("the record was made with other versions")
    code = "from chapters.ch08_gpu_targets import other_compilers as o; import json\n"
    code += "print(json.dumps(o.recorded()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    import json

    assert json.loads(done.stdout.splitlines()[-1]) == recorded["measured"]


def test_an_excerpt_says_how_many_lines_it_leaves_out():
    text = "a\nb\nc\nd\ne"
    assert others.excerpt(text, ("b", "c", 9), ("e", "e", 9)) == (
        "    … 1 line\nb\nc\n    … 1 line\ne"
    )
    assert others.excerpt("long\nb", ("lo", "lo", 2)) == "lo…\n    … 1 line"
