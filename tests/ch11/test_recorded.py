"""What the pages say of the chat model is what was measured and recorded."""

from __future__ import annotations

import re

from chapters.ch11_a_real_model import bench_inputs, bench_kernels, given, recorded
from chapters.child import ROOT
from chapters.kit.bench.results import load
from chapters.kit.chat.conversation import describe_turn

README = " ".join((ROOT / "README.md").read_text("utf-8").split())
LESSON = (ROOT / "chapters/ch11_a_real_model/lesson.md").read_text("utf-8")
CHAT = load("ch11_chat")["measured"]


def test_the_conversation_is_the_recorded_one(monkeypatch):
    kept = load(recorded.NAME)["measured"]
    said = " ".join(recorded.text().split())
    for turn in kept["turns"]:
        assert f"> {turn['user']} {' '.join(turn['answer'].split())} [{turn['tokens']} tok" in said
    assert all(len(line) <= recorded.WIDTH for line in recorded.text().splitlines())
    monkeypatch.setattr(recorded, "load", lambda name: None)
    assert recorded.COMMAND in recorded.text()


def test_the_readme_quotes_it():
    turn = load(recorded.NAME)["measured"]["turns"][0]
    assert f"> {turn['user']} {turn['answer']} {describe_turn(turn)}" in README


def test_the_readme_says_what_was_measured():
    """Tokens per second on all threads, bytes per token, and seconds until the first token, of what it names."""
    threads, found = list(CHAT["threads"].items())[-1]
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
        f"{threads} threads, {CHAT['context']} tokens into a conversation",
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
            for one in CHAT["threads"].values()
        ]
        return [f"{theirs / mine:.1f}" for theirs, mine in of]

    said = re.findall(r"(\d\.\d) times(?: as fast| with)", LESSON)
    assert said == times(bench_inputs.OURS, "llama.cpp") + times(
        bench_inputs.OURS_Q4_0, bench_inputs.BEST
    )


def test_the_lesson_says_how_close_a_step_comes_to_reading():
    found = list(CHAT["threads"].values())[-1]

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
