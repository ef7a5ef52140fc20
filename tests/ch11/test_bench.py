"""What `bench 11` measures and pages say of it; what `chat --without` leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from chapters.ch11_a_real_model import (
    bench,
    bench_answers,
    bench_inputs,
    bench_kernels,
    first_token,
    given,
    recorded,
)
from chapters.ch11_a_real_model.passes import MULTIPLY, PASSES_OF, passes_without, phases
from chapters.child import ROOT
from chapters.kit.bench.results import load
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.chat.conversation import describe_turn
from chapters.kit.decoder.llama_config import LlamaConfig

README = " ".join((ROOT / "README.md").read_text("utf-8").split())
LESSON = (ROOT / "chapters/ch11_a_real_model/lesson.md").read_text("utf-8")
CHAT = load("ch11_chat")["measured"]


def test_what_was_not_measured_has_no_row():
    """The tables of everything are on the page of results."""
    case = CHAT["cases"][0]
    ours = {n: s for n, s in case["seconds"].items() if n.startswith(f"{bench_inputs.OURS} ")}
    table = bench.make_table({**CHAT, "cases": [{**case, "seconds": ours}]})
    assert [row[0] for row in table.rows] == [bench_inputs.OURS]
    assert "With 1 thread." in table.note


SIZES = LlamaConfig(64, 96, 2, 4, 2, 16, 320, 64)


def test_groups_of_kernels():
    def group(name: str, *shapes: tuple[int, ...]) -> str:
        return bench_kernels.find_group(name, shapes, SIZES)

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
    found = bench_kernels.time_groups(model, vm.step, steps=5)
    assert set(found) == set(bench_kernels.ORDER)
    assert found["gate, up"] > 0 and found["rest"] > 0 and found["head"] == 0
    assert found["rest"] < 10 * found["gate, up"]


def test_the_time_that_telling_takes_is_not_a_kernels():
    vm = MachineThatTells(busy=bench_kernels.IDLE)
    found = bench_kernels.time_groups(SimpleNamespace(vm=vm, config=SIZES), vm.step, steps=15)
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
    assert bench_inputs.check_logits(
        close, path, "file decode", bench_inputs.ROUNDED_LIMIT
    ) == pytest.approx(0.05)
    for wrong in (close, logits * np.nan, logits[::-1]):
        with pytest.raises(ValueError, match="wrong numbers"):
            bench_inputs.check_logits(wrong, path, "file decode", bench_inputs.EXACT_LIMIT)


def test_a_first_token_may_be_one_of_two_that_are_as_good(inputs):
    path, _ = inputs
    assert first_token.WITHIN == 2 * bench_inputs.ROUNDED_LIMIT
    for token in (2, 3):
        first_token.check(token, path, "file")
    with pytest.raises(ValueError, match="the first token is 0, and 2 is the best"):
        first_token.check(0, path, "file")


def test_a_process_without_a_token_says_why(inputs, monkeypatch):
    seconds, reason = first_token.time_once("fusion_by_hand", inputs[0] + ".missing", threads=1)
    assert seconds is None and "No such file" in reason
    monkeypatch.setenv("FUSION_PEER_PYTHON", "/no/such/python")
    assert first_token.time_once("llama.cpp", inputs[0], threads=1)[0] is None


def test_without_llama_cpp_nothing_is_stored_anew_and_no_peer_reads_it(
    inputs, tmp_path, monkeypatch
):
    monkeypatch.setenv("FUSION_PEER_PYTHON", "/no/such/python")
    assert bench.store_as_q4_0(tmp_path / "model.gguf", tmp_path) is None
    found = [one.arguments.get("name") for one in bench.list_candidates(inputs[0], 1)]
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
        "reading": SimpleNamespace(seconds=3.0, error=None),
        "x": SimpleNamespace(seconds=1.0, error=0.5),
    }
    found = bench.summarize(timings, nbytes=120)
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


# --- `chat --without`; tests/kit/test_chat_model.py runs a model without a pass ----------------------


def pass_names(**facts) -> list[str]:
    found = phases(QUICK_HERE, **facts)
    return [str(one.info.name) for passes in found.values() for one in passes]


@pytest.mark.parametrize("exercise", PASSES_OF)
def test_the_passes_of_an_exercise_are_left_out(exercise):
    left = [name for name in pass_names() if name not in PASSES_OF[exercise]]
    assert pass_names(without=exercise) == left and len(left) < len(pass_names())


def test_a_chapter_stands_for_its_exercises():
    assert passes_without("3.2") == passes_without("3") and passes_without(MULTIPLY) == ()


@pytest.mark.parametrize("exercise", ["9.2", "10.1", "11.1", "2.1", "quick"])
def test_what_cannot_be_left_out_is_refused(exercise):
    with pytest.raises(
        ValueError, match=r"takes one of 3, 4, 6, 7, 9\.1, 9\.3, 9\.4, 11\.3, 11\.4"
    ):
        passes_without(exercise)


def test_a_table_of_what_answers_are_worth():
    seconds = {bench_answers.ALL: 0.002, "11.3": 0.06, MULTIPLY: 0.5}
    case = {"seconds": seconds, "context": 100, "threads": 2}
    table = str(bench_answers.make_table({"cases": [case]}))
    assert "500" in table and "FuseDequantizeTake" in table


# --- what was measured, as pages say it -----------------------------------------------------------


def test_a_conversation_that_is_not_recorded_says_what_records_it(monkeypatch):
    assert all(len(line) <= recorded.WIDTH for line in recorded.text().splitlines())
    monkeypatch.setattr(recorded, "load", lambda name: None)
    assert recorded.COMMAND in recorded.text()


def test_the_readme_quotes_it():
    turn = load(recorded.NAME)["measured"]["turns"][0]
    assert f"> {turn['user']} {turn['answer']} {describe_turn(turn)}" in README


def test_the_readme_says_what_was_measured():
    """Tokens per second on all threads, bytes per token, and seconds until the first token, of what it names."""
    found = CHAT["cases"][-1]
    said = README.partition("Measured there with ")[2].partition("in llama.cpp.")[0]

    def rate(name: str) -> str:
        return f"{1 / bench_inputs.seconds_of(found['seconds'], name, 'decode'):.0f}"

    def size(name: str) -> str:
        return f"{CHAT['bytes'][name] / 1e6:.0f} MB"

    whole, half, eighths = (
        bench_inputs.COMPILED,
        f"{bench_inputs.COMPILED}, bfloat16",
        f"{bench_inputs.COMPILED}, int8",
    )
    first = CHAT["first token"]
    for text in (
        f"{found['threads']} threads, {CHAT['context']} tokens into a conversation",
        f"{rate(bench_inputs.OURS)} tokens per second from the 4-bit file, {size(bench_inputs.OURS)} per token",
        f"llama.cpp gives {rate(bench_inputs.LLAMA_CPP)} from the same file, and {rate(bench_inputs.BEST)} from Q4_0",
        f"{rate(whole)} from float32 weights ({size(whole)}), {rate(half)} from bfloat16 ({size(half)})",
        f"and {rate(eighths)} from 8-bit weights ({size(eighths)})",
        f"after {first[bench_inputs.OURS]:.2f} s here and after {first[bench_inputs.LLAMA_CPP]:.2f} s",
    ):
        assert text in said, text


def test_the_lesson_says_how_much_faster_it_is_than_llama_cpp():

    def times(ours: str, other: str) -> list[str]:
        of = [
            [bench_inputs.seconds_of(one["seconds"], n, "decode") for n in (other, ours)]
            for one in CHAT["cases"]
        ]
        return [f"{theirs / mine:.1f}" for theirs, mine in of]

    said = re.findall(r"(\d\.\d) times(?: as fast| with)", LESSON)
    assert said == times(bench_inputs.OURS, "llama.cpp") + times(
        bench_inputs.OURS_Q4_0, bench_inputs.BEST
    )


def test_the_lesson_says_how_close_a_step_comes_to_reading():
    found = CHAT["cases"][-1]

    def share(name: str) -> str:
        rate = CHAT["bytes"][name] / bench_inputs.seconds_of(found["seconds"], name, "decode")
        return f"{100 * rate / found['bandwidth']:.0f}"

    paragraph = LESSON.partition("How much faster could kernels be")[2].partition("\n\n")[0]
    said = re.findall(r"(\d+) %", paragraph)
    assert said == [share(bench_inputs.OURS), share(bench_inputs.BEST)]


def test_no_product_is_faster_than_reading_its_weights():
    """But for the noise of two measurements: a tenth."""
    measured = CHAT["kernels"]
    seconds, nbytes = measured[bench_kernels.ROUNDED], measured[bench_kernels.BYTES]
    for product in bench_kernels.PRODUCTS:
        least = nbytes[product] / nbytes[bench_kernels.PER_SECOND]
        assert seconds[product] > 0.9 * least


def test_the_perplexities_in_the_runtimes_are_those_of_the_same_weights():
    """Ours as another command measured it; llama.cpp's and Transformers' within half a per cent of ours."""
    found = CHAT["perplexity"]
    known = {n: v["perplexity"] for n, v in load("ch11_perplexity")["measured"]["variants"].items()}
    same = {
        bench_inputs.OURS: "file, x in 8 bits",
        bench_inputs.EXACT: "file, x in float32",
        bench_inputs.OURS_Q4_0: "Q4_0 and the file's embedding, x in 8 bits",
    }
    for name, variant in same.items():
        assert abs(found[name] / known[variant] - 1) < 1e-3
    assert found[bench_inputs.TRANSFORMERS] == found[bench_inputs.COMPILED]
    for name, ours in (
        (bench_inputs.LLAMA_CPP, bench_inputs.OURS),
        (bench_inputs.BEST, bench_inputs.OURS_Q4_0),
        (bench_inputs.TRANSFORMERS, bench_inputs.EXACT),
    ):
        assert abs(found[name] / found[ours] - 1) < 5e-3
    assert found[bench_inputs.OURS] < 1.005 * known["float32"]  # what a default may lose


def test_the_tables_hold_what_was_measured():
    measured = load("ch11_perplexity")["measured"]
    assert set(given.KINDS) == set(measured["alone"]) and len(given.KINDS) == 8
    for name, kind in given.KINDS.items():
        sizes = measured["alone"][name]["bytes_of_kind"]
        assert (kind.in_4_bits * 1e6, kind.in_8_bits * 1e6) == (sizes["Q4_0"], sizes["Q8_0"])
        assert kind.loss == measured["alone"][name]["loss"] > 0
    assert given.token_bytes(measured)["float32"] == 4 * 134_479_872
    assert "96 MB" in str(given.bytes_table()) and "attn_v" in str(given.kinds_table())
