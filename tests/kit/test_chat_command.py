"""`python -m chapters chat` as a person in a terminal uses it; the real model's logits, its answers, and what it takes.

`chat_answers.json` says which version and options of llama.cpp gave its answers, and how the prompts were chosen.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from chapters.ch11_a_real_model import chat as program
from chapters.ch11_a_real_model import recorded, your_machine
from chapters.ch11_a_real_model.passes import PASSES, chat_model
from chapters.ch11_a_real_model.perplexity import make_verifier
from chapters.child import patience
from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.model_cache import MODEL
from chapters.kit.chat.weights import read_config
from chapters.kit.machine import llvm_host, processors
from chapters.kit.quantized.dot_products import dot_products
from chapters.runner.command_line import parser
from chapters.runner.commands import chat as command
from chapters.runner.course import ROOT
from tests.kit.llama_in_numpy import logits_of
from tests.kit.real_model import real_model_path, real_tokenizer

ANSWER = "answer.txt"  # in the cache: what the first start answered to ASKED
ASKED = "What is a compiler? Answer in two sentences."
BELOW = r"\[\d+ tokens, \d+ per second; the first after [\d.]+ s, for \d+ tokens? to read; \d+ MB of memory\]"


def run(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess:
    """`chat` with these arguments in a process of its own; or `code`, which calls it."""
    program = ["-c", code] if code else ["-m", "chapters", "chat"]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture(scope="module")
def model() -> str:
    return str(real_model_path())


@pytest.fixture(scope="module")
def cache(tmp_path_factory, model):
    """A cache with what the first start compiled."""
    folder = tmp_path_factory.mktemp("cache")
    done = run("--gguf", model, "--prompt", ASKED, FUSION_CACHE=str(folder))
    assert done.stdout.startswith("A compiler is a software tool") and "compiled by" in done.stderr
    assert re.search(BELOW, done.stderr)
    (folder / ANSWER).write_text(done.stdout, "utf-8")
    if not any(folder.glob("compiled/*/manifest.json")):
        pytest.skip("this machine has no compiler that links a library")
    return folder


@pytest.fixture
def terminal(model):
    """Starts the chat in a terminal."""
    pexpect = pytest.importorskip("pexpect", reason="a terminal needs Linux or macOS")
    started = []

    def start(folder, *arguments: str):
        started.append(
            pexpect.spawn(
                sys.executable,
                ["-m", "chapters", "chat", "--gguf", model, *arguments],
                cwd=str(ROOT),
                env={**os.environ, "FUSION_CACHE": str(folder), "TERM": "dumb"},
                encoding="utf-8",
                timeout=30 * patience(),
                # a test that runs in the background may have been started with Ctrl-C ignored
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        )
        return started[-1]

    yield start
    for one in started:
        one.close(force=True)


# --- in the terminal --------------------------------------------------------------------------------------


def test_a_conversation_of_several_turns_that_ctrl_c_does_not_end(cache, terminal):
    chat = terminal(cache)
    chat.expect("loaded what was compiled by")
    chat.expect("> ")
    chat.sendline("What is a compiler? Answer in one sentence.")
    chat.expect("\nA compiler is")
    chat.expect(BELOW)
    chat.expect("> ")
    chat.sendline("Write a long story about a king.")
    chat.expect(r"\n\w+ \w+ \w+")  # it has begun to answer
    chat.sendintr()
    chat.expect(" …")
    chat.expect("> ")
    for _ in range(3):  # before the first token
        chat.sendline("Write another one.")
        chat.expect(r"another one\.\r\n")
        chat.sendintr()
        chat.expect("\n> ")
    chat.sendintr()  # the conversation goes on
    chat.expect("Ctrl-D ends the conversation.")
    chat.expect("\n> ")
    chat.sendline("What is a compiler? Answer in one sentence.")
    chat.expect(BELOW)
    # what Ctrl-C kept from being read, up to 70 tokens; the first turns, as many again, are not read anew
    assert int(re.search(r"for (\d+) tokens to read", chat.after)[1]) < 100
    chat.expect("> ")
    chat.sendeof()
    chat.expect(end_of_output())
    chat.close()
    assert chat.exitstatus == 0


def end_of_output():
    import pexpect

    return pexpect.EOF


def test_ctrl_c_ends_a_single_answer_and_says_so_to_the_shell(cache, terminal):
    chat = terminal(cache, "--prompt", "Write a long story about a king.")
    chat.expect(r" in [\d.]+ s\r\n")
    chat.expect(r"\w+ \w+ \w+ \w+ \w+")
    chat.sendintr()
    chat.expect(end_of_output())
    chat.close()
    assert " …" in chat.before and chat.exitstatus == program.INTERRUPTED


def test_ctrl_c_while_the_model_is_compiled_is_one_sentence(tmp_path, terminal):
    chat = terminal(tmp_path, "--prompt", "Hi")
    chat.expect("Compiling the model")
    with pytest.raises(Exception, match="Timeout"):  # it is busy
        chat.expect("compiled by", timeout=1.5)
    chat.sendintr()
    chat.expect("Stopped before the model was ready.")
    chat.expect(end_of_output())
    chat.close()
    assert "Traceback" not in chat.before and chat.exitstatus == program.INTERRUPTED
    assert not list((tmp_path / "compiled").iterdir())


# --- one command after the other ----------------------------------------------------------------------------


LOADED = """
import json, sys
from pathlib import Path
from chapters.runner.command_line import run
status = run(["chat", *sys.argv[1:]])
maps = Path("/proc/self/maps")
libraries = maps.read_text() if maps.exists() else ""
modules = [name for name in sys.modules if name.partition(".")[0] == "tvm"]
tvm = [name for name in ("runtime", "compiler") if f"libtvm_{name}." in libraries]
print(json.dumps([status, modules, "tvm_ffi" in sys.modules, tvm]))
"""


def test_the_second_start_loads_no_compiler(cache, model):
    asked = ["--gguf", model, "--prompt", ASKED, "--threads", "1"]
    done = run(*asked, code=LOADED, FUSION_CACHE=str(cache))
    assert "loaded what was compiled by" in done.stderr
    answer, loaded = done.stdout.strip().rsplit("\n", 1)
    assert answer == (cache / ANSWER).read_text("utf-8").strip()
    libraries = ["runtime"] if sys.platform == "linux" else []
    assert json.loads(loaded) == [0, [], True, libraries]


def test_the_chapters_that_are_named_are_those_whose_code_compiles(cache):
    """The manifest lists each file that took part. Chapter 5 schedules matrices of floats, which this model lacks."""
    (manifest,) = cache.glob("compiled/*/manifest.json")
    kept = json.loads(manifest.read_text("utf-8"))
    took_part = {int(one[12:14]) for one in kept["files"] if one.startswith("solutions/ch")}
    assert {int(number) for number in kept["owners"]} == set(PASSES) == took_part | {5}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", "  "], "The prompt is empty"),
        (["--gguf", "no such file", "--prompt", "x"], "is not a file"),
        (["--gguf", "", "--prompt", "x"], "is not a file"),
        (["--threads", "0"], "'0' must be a whole number, 1 or more"),
        (["--temperature", "warm"], "'warm' must be a number from 0 to 100"),
    ],
)
def test_a_wrong_call_gets_one_sentence(arguments, says, capsys):
    try:
        status = command.run(parser().parse_args(["chat", *arguments]))
    except SystemExit as end:
        status = end.code
    assert status == 2 and says in "".join(capsys.readouterr())


@pytest.fixture
def real_model(cache, model, monkeypatch):
    """The real model is the default, and was compiled before."""
    monkeypatch.setenv("FUSION_CACHE", str(cache))
    if not (cache / MODEL).exists():
        (cache / MODEL).symlink_to(model)


def test_your_machine_measures_the_real_model(real_model, monkeypatch, capsys):
    def kept(file, config, exact):
        facts = config, your_machine.list_types(file), exact, ""
        return your_machine.load_or_compile(facts, your_machine.owners(), None)[0]

    # to compile takes a quarter of a minute
    monkeypatch.setattr(your_machine, "compile_model", kept)
    monkeypatch.setattr(your_machine, "STEPS", 5)
    assert your_machine.main() == 0
    said = capsys.readouterr().out
    for part in ("compile", "load", "prompt", "one step after it"):
        assert re.search(rf"^{part} +\S+ [mµ]?s +\S+ [mµ]?s$", said, re.M), said
    predicted, measured = map(float, re.findall(r"(\d+) tokens per second", said))
    assert min(measured, predicted) > 0


def test_a_conversation_is_recorded(real_model, monkeypatch):
    monkeypatch.setattr(recorded, "PROMPTS", recorded.PROMPTS[:1])
    (turn,) = recorded.record()["turns"]
    assert turn["user"] == recorded.PROMPTS[0] and "compiler" in turn["answer"]
    assert turn["tokens"] > 10 and turn["tokens_per_second"] > 0
    assert turn["resident_bytes"] > 1e8


# --- the options, and what is said before the first answer --------------------------------------------------


def make_options(**changed) -> SimpleNamespace:
    given = vars(parser().parse_args(["chat", "--prompt", "Hi"]))
    return SimpleNamespace(**{**given, **changed})


def test_temperature_and_seed_choose_the_answer(rounding, model, monkeypatch):
    monkeypatch.setattr(program, "chat_model", lambda *_: (rounding, {}, True))

    def answer(**changed) -> str:
        chat = program.start(make_options(gguf=model, **changed))
        with chat.renderer:
            ids, _ = chat.prompt("Write a poem.")
            pieces = chat.answer(ids)
            return "".join(next(pieces) for _ in range(12))

    warm = [answer(temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    assert warm[0] == warm[1] != warm[2] and answer() == answer(seed=1) not in warm


def test_threads_are_those_that_tvm_starts(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "7")
    monkeypatch.setattr(program, "run", lambda _: int(os.environ["TVM_NUM_THREADS"]))
    assert command.run(make_options(threads=1)) == 1 and command.run(make_options()) == 1


def test_more_threads_than_processors_are_refused():
    """They would wait for each other, each keeping a processor busy: an answer then takes minutes."""
    with pytest.raises(ValueError, match=f"N is at most {processors()} here"):
        program.run(make_options(threads=processors() + 1))


@pytest.mark.parametrize(
    ("by", "kept", "said"),
    [
        ({"3": "yours", "4": "the reference's", "11": "yours"}, False, "compiled by your passes of chapter 3, 11, and"),
        ({"3": "the reference's"}, True, "loaded what was compiled by the reference's passes in"),
    ],
)  # fmt: skip
def test_whose_passes_compiled_the_model_is_said(by, kept, said, model, monkeypatch, capsys):
    monkeypatch.setattr(program, "chat_model", lambda *_: (None, by, kept))
    program.start(make_options(gguf=model))
    assert said in capsys.readouterr().err


def test_the_default_model_is_fetched_if_it_is_not_there(model, monkeypatch, capsys):
    monkeypatch.setattr(program, "cached_model", lambda: None)
    monkeypatch.setattr(program, "fetch_model", lambda: Path(model))
    file, _, renderer = program._open_model(None)
    renderer.close()
    assert file.path == Path(model)
    assert capsys.readouterr().err.endswith(f"once.\nIt is kept in {file.path.parent}.\n")


# --- Ctrl-C where C++ code runs -----------------------------------------------------------------------------


def test_ctrl_c_is_never_taken_for_another_error(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)

    def swallowed() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return

    def changed() -> None:
        swallowed()
        raise RuntimeError("in C++")

    for within in (swallowed, changed, lambda: signal.raise_signal(signal.SIGINT)):
        with pytest.raises(KeyboardInterrupt), program.interruptible():
            within()
    with pytest.raises(RuntimeError), program.interruptible():
        raise RuntimeError("of its own")


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with program.interruptible():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


# --- the real model's logits and answers --------------------------------------------------------------------

RECORD = json.loads(Path(__file__).with_name("chat_answers.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def file():
    return read_gguf(real_model_path())


@pytest.fixture(scope="module")
def rounding(cache, file):
    """The model as the chat runs it: loaded if the first start could keep it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSION_CACHE", str(cache))
        return chat_model(file, read_config(file), False)[0]


def test_logits_equal_numpy(file, rounding):
    """Without rounding within 1e-4 of the largest logit: float32 against float64 through 30 layers.

    With x rounded to 8 bits the logits are off by 0.25 on average, where their standard deviation is 7. llama.cpp's,
    which rounds in the same way, are off by as much.
    """
    answer = RECORD["answers"][0]
    ids = answer["tokens"] + answer["answer"]
    expected = logits_of(file.path, ids)
    exact = make_verifier(file, exact=True)(ids)
    assert np.abs(exact - expected).max() < 1e-4 * np.abs(expected).max()
    if dot_products(llvm_host()["target"]):
        rounding.length = 0
        found = np.stack([rounding.feed([one]).copy() for one in ids])
        error = np.abs(found - expected)
        assert 0.01 < error.mean() < 0.05 * expected.std()


@pytest.mark.parametrize("answer", RECORD["answers"], ids=lambda one: one["prompt"])
def test_answers_equal_llama_cpp(rounding, answer):
    rounding.length, found = 0, []
    logits = rounding.feed(answer["tokens"])
    for _ in answer["answer"]:
        found.append(int(logits.argmax()))
        logits = rounding.feed(found[-1:])
    assert found == answer["answer"]


def test_prompts_are_tokenized_as_llama_cpp_does():
    for answer in RECORD["answers"]:
        text = (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            f"<|im_start|>user\n{answer['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert real_tokenizer().encode_prompt(text) == answer["tokens"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux counts")
def test_a_step_asks_the_system_for_no_memory(rounding):
    """Its tensors lie in storages that TVM's allocator has kept from the steps before: no new page is touched."""
    import resource

    rounding.length = 0
    rounding.feed(RECORD["answers"][0]["tokens"])
    before, faults = rounding.length, []
    for _ in range(60):
        rounding.length = before
        start = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        rounding.feed([5])
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - start)
    assert (
        sum(faults[10:]) < 50
    )  # a tensor of 5 kB would touch one page in each step, if it were new memory
