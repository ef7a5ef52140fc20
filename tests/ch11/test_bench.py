"""The tables of `python -m chapters bench 11`, from made-up seconds, and the checks that come before the clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from chapters.ch11_a_real_model import bench, bench_inputs, bench_kernels, first_token
from chapters.kit.decoder.llama_config import LlamaConfig

SECONDS = {
    "fusion_by_hand decode": 10e-3,
    "fusion_by_hand prefill": 0.5,
    "llama.cpp decode": 20e-3,
    "llama.cpp prefill": 1.0,
    "llama.cpp, Q4_0, flash attention decode": 16e-3,
    "llama.cpp, Q4_0, flash attention prefill": 0.8,
    "llama.cpp, Q4_0, plain attention decode": 15e-3,
    "llama.cpp, Q4_0, plain attention prefill": 0.9,
    "Transformers decode": 50e-3,
    "Transformers prefill": 2.0,
}
HALVES = {name: value / 2 for name, value in SECONDS.items()}
KERNELS = dict.fromkeys(bench_kernels.ORDER, 1e-3) | {"gate, up": 4e-3}
MEASURED = {
    "threads": {
        "1": {"seconds": SECONDS, "errors": {}, "bandwidth": 20e9},
        "2": {"seconds": HALVES, "errors": {}, "bandwidth": 25e9},
    },
    "bytes": {
        name: 540_000_000 if name.startswith("T") else 100_000_000 for name in bench_inputs.NAMES
    },
    "context": 100,
    "prefill": 256,
    "first token": {"fusion_by_hand": 2.0, "llama.cpp": 0.5},
    "kernels": {
        bench_kernels.FLOATS: KERNELS,
        bench_kernels.ROUNDED: KERNELS,
        bench_kernels.BYTES: {
            **dict.fromkeys(bench_kernels.PRODUCTS, 30_000_000),
            "gate, up": 60_000_000,
            bench_kernels.PER_SECOND: 20e9,
        },
    },
    "perplexity": dict.fromkeys(bench_inputs.NAMES, 28.621),
}


def test_units_and_shares_of_the_decoder():
    rows = {row[0]: row[1:] for row in bench.table_of(MEASURED).rows}
    assert rows["fusion_by_hand"] == (
        "100 MB",
        "28.62",
        "10 / 5",
        "100 / 200",
        "10.0 / 20.0",  # 100 MB in 10 and in 5 ms
        "50% / 80%",  # of 20 and 25 GB/s
        "512 / 1024",
    )
    assert rows["Transformers"][:5] == ("540 MB", "28.62", "50 / 25", "20 / 40", "10.8 / 21.6")
    assert "20.0 / 25.0 GB/s" in bench.table_of(MEASURED).note


def test_llama_cpp_at_its_best_is_the_faster_attention_of_each_function():
    row = next(row for row in bench.table_of(MEASURED).rows if row[0] == bench_inputs.BEST)
    assert row[3] == "15 / 7.5" and row[-1] == "320 / 640"


def test_what_was_not_measured_has_no_row():
    names = [row[0] for row in bench.table_of(MEASURED).rows]
    assert names == ["fusion_by_hand", "llama.cpp", "llama.cpp, Q4_0", "Transformers"]
    alone = {"1": {**MEASURED["threads"]["1"], "seconds": dict(list(SECONDS.items())[:2])}}
    table = bench.table_of({**MEASURED, "threads": alone})
    assert [row[:4] for row in table.rows] == [("fusion_by_hand", "100 MB", "28.62", "10")]
    assert "With 1 thread." in table.note


def test_first_token_is_compared_with_ours():
    rows = first_token.table_of(MEASURED["first token"]).rows
    assert rows == [("fusion_by_hand", "2 s", "1.00 ×"), ("llama.cpp", "500 ms", "0.25 ×")]


def test_kernels_and_the_rest_add_up_to_a_step():
    table = bench_kernels.table_of(MEASURED["kernels"])
    assert table.rows[2] == ("gate, up", "4.00 ms (33%)", "4.00 ms (33%)")
    assert table.rows[-1] == ("a step", "12.00 ms", "12.00 ms")


def test_the_mark_of_a_product_is_the_time_of_reading_its_weights():
    drawn = {bar.name: bar for bar in bench.tables(MEASURED)["step"].bars}
    assert list(drawn) == list(bench_kernels.ORDER)
    assert drawn["gate, up"].mark == 3e-3  # 60 MB at 20 GB/s
    assert drawn["head"].mark == 1.5e-3  # longer than its bar: both have noise
    assert drawn["attention"].mark is None and drawn["attention"].words == "1.00 ms, 8%"


SIZES = LlamaConfig(64, 96, 2, 4, 2, 16, 320, 64)


def test_groups_of_kernels():
    def group(name: str, *shapes: tuple[int, ...]) -> str:
        return bench_kernels.group_of(name, shapes, SIZES)

    assert group("dequantize_NT_matmul1", (8, 2, 4, 16), (1, 1, 64), (1, 1, 128)) == "q, k, v"
    assert group("fused_NT_matmul_add", (64, 64), (1, 1, 64), (1, 1, 64)) == "attention's output"
    assert group("NT_matmul3", (192, 64), (1, 1, 64), (1, 1, 192)) == "gate, up"
    assert group("fused_NT_matmul_add1", (64, 96), (1, 1, 96), (1, 1, 64)) == "down"
    assert group("dequantize_NT_matmul4", (20, 8), (1, 1, 64), (1, 1, 320)) == "head"
    assert group("attention1", (1, 1, 64)) == "attention"
    assert group("append_to_cache1") == "append to the cache"
    assert group("fuse_add_norm_decode", (1, 1, 320)) == "norms and residuals"
    assert group("fused_split_silu_multiply") == "rest"
    assert set(bench_kernels.ORDER) == {*bench_kernels.GROUPS, *bench_kernels.PRODUCTS, "rest"}


class MachineThatTells:
    """A virtual machine of one product and one builtin, which tells an instrument about both.

    busy: what takes as long as the product.
    """

    def __init__(self, busy: str = "vm.builtin.make_tuple"):
        self.busy, self.note = busy, lambda *_: 0

    def __getitem__(self, name: str) -> Callable:
        return {"set_instrument": self.set_instrument}[name]

    def set_instrument(self, note) -> None:
        self.note = note or (lambda *_: 0)

    def step(self) -> None:
        for name in (self.busy, "NT_matmul"):
            shapes = np.zeros((192, 64)), np.zeros((1, 64)), np.zeros((1, 192))
            self.note(None, name, True, None, *shapes)
            sum(range(20_000))
            self.note(None, name, False, None, *shapes)


def test_time_of_kernels_is_what_passes_between_call_and_return():
    vm = MachineThatTells()
    model = SimpleNamespace(vm=vm, config=SIZES)
    found = bench_kernels.grouped(model, vm.step, steps=5)
    assert set(found) == set(bench_kernels.ORDER)
    assert found["gate, up"] > 0 and found["rest"] > 0 and found["head"] == 0
    assert found["rest"] < 10 * found["gate, up"]


def test_the_time_that_telling_takes_is_not_a_kernels():
    vm = MachineThatTells(busy=bench_kernels.IDLE)
    found = bench_kernels.grouped(SimpleNamespace(vm=vm, config=SIZES), vm.step, steps=15)
    assert found["gate, up"] < found["rest"]


@pytest.fixture
def inputs(tmp_path):
    """The inputs of a bench whose model has four logits."""
    path, logits = tmp_path / "inputs.npz", np.array([1.0, -10.0, 4.0, 3.0])
    facts = {"models": {"file": "model.gguf"}, "bytes": {"file": 1}}
    exact = {f"file {name}": logits for name in ("prefill", "decode", "first")}
    np.savez(path, facts=json.dumps(facts), **exact)
    return str(path), logits


def test_a_peer_with_wrong_numbers_is_refused(inputs):
    path, logits = inputs
    close = logits.astype("float32")[None] + np.float32(0.5)  # 0.05 of the largest
    assert bench_inputs.checked(
        close, path, "file decode", bench_inputs.ROUNDED_LIMIT
    ) == pytest.approx(0.05)
    for wrong in (close, logits * np.nan, logits[::-1]):
        with pytest.raises(ValueError, match="wrong numbers"):
            bench_inputs.checked(wrong, path, "file decode", bench_inputs.EXACT_LIMIT)


def test_a_first_token_may_be_one_of_two_that_are_as_good(inputs):
    path, _ = inputs
    assert first_token.WITHIN == 2 * bench_inputs.ROUNDED_LIMIT
    for token in (2, 3):
        first_token.check(token, path, "file")
    with pytest.raises(ValueError, match="the first token is 0, and 2 is the best"):
        first_token.check(0, path, "file")


def test_a_process_without_a_token_says_why(inputs, monkeypatch):
    seconds, reason = first_token.once("fusion_by_hand", inputs[0] + ".missing", threads=1)
    assert seconds is None and "No such file" in reason
    monkeypatch.setenv("FUSION_PEER_PYTHON", "/no/such/python")
    assert first_token.once("llama.cpp", inputs[0], threads=1)[0] is None


def test_without_llama_cpp_nothing_is_stored_anew_and_no_peer_reads_it(
    inputs, tmp_path, monkeypatch
):
    monkeypatch.setenv("FUSION_PEER_PYTHON", "/no/such/python")
    assert bench.stored_as_q4_0(tmp_path / "model.gguf", tmp_path) is None
    found = [peer.arguments.get("name") for peer in bench.peers(inputs[0], threads=1)]
    assert found.count("llama.cpp") == 1 and not any("Q4_0" in (name or "") for name in found)


def test_bytes_of_weights():
    tensors = {
        "codes": SimpleNamespace(nbytes=20, shape=(1, 32)),
        "norm": SimpleNamespace(nbytes=16, shape=(4,)),
    }
    files = {bench_inputs.FILE: SimpleNamespace(tensors=tensors)}
    assert bench_inputs.weight_bytes(files) == {
        bench_inputs.FILE: 36,
        bench_inputs.FLOATS: 4 * 36,
        bench_inputs.BFLOATS: 2 * 36,
        bench_inputs.INT8: 32 + 2 + 2 * 4,  # one row has one scale
    }


def test_the_bandwidth_is_that_of_reading():
    timings = {
        "reading": SimpleNamespace(seconds=3.0, rounds=(4.0, 2.0, 3.0), error=None),
        "x": SimpleNamespace(seconds=1.0, rounds=(1.0,), error=0.5),
    }
    found = bench.of_threads(timings, nbytes=120)
    assert found["bandwidth"] == 40
    assert found["seconds"] == {"x": 1.0} and found["errors"] == {"x": 0.5}


def test_the_reference_is_that_of_the_tests(tmp_path):
    """Two readers of a file, and two forward passes in float64."""
    pytest.importorskip("gguf")
    from chapters.ch11_a_real_model.float_weights import FloatWeights, by_layer
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.weights import read_config
    from chapters.kit.decoder import llama_reference as reference
    from tests.kit.llama_in_numpy import logits_of
    from tests.kit.test_chat_model import Llama

    kinds, tokens = {"attn_v": "Q8_0", "ffn_down": "F16", "": "Q4_1"}, [5, 300, 7, 8, 19]
    path = Llama(kinds, tied=True).save(tmp_path / "llama.gguf")
    file = read_gguf(path)
    config = read_config(file)
    weights = by_layer(FloatWeights(file, config, lanes=1))
    found = reference.verify(config, weights, tokens, reference.Cache(config))
    expected = logits_of(path, tokens)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
