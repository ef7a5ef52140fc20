"""A conversation with the chat model, kept for the site: `python -m chapters.ch11_a_real_model.recorded`.

It writes docs/results/ch11_conversation.json: what was asked, what the model said, and how fast.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from types import SimpleNamespace

from chapters.kit.bench.results import describe_origin, load, measure_and_save
from chapters.kit.chat.conversation import describe_turn, reply

NAME = "ch11_conversation"
COMMAND = "python -m chapters.ch11_a_real_model.recorded"
WIDTH = 96  # characters of a line on a page
PROMPTS = (
    "What is a compiler? Answer in one sentence.",
    "Explain in one sentence why the sky is blue.",
)


def record() -> dict:
    """The conversation: per turn what was said, its tokens and their rate, and the memory after it, in bytes."""
    from chapters.ch11_a_real_model import chat as program

    # the course's model, on this CPU, with every answer
    here = {"gguf": None, "device": None, "remote": None, "without": "", "explain": False}
    options = {"context": 2048, "exact": False, "temperature": 0.0, "seed": 0}
    chat = program.start(SimpleNamespace(**here, **options))
    turns = []
    with chat.renderer, contextlib.redirect_stdout(sys.stderr):
        for prompt in PROMPTS:
            measured = reply(chat, prompt)
            turns.append({"user": prompt, "answer": chat.messages[-1]["content"], **measured})
    return {"turns": turns}


def text() -> str:
    """The kept conversation as a terminal shows it, and how it was made; a sentence if there is none."""
    results = load(NAME)
    if results is None:
        return f"Not yet recorded: `{COMMAND}` does it on your machine."
    return f"{tell(results['measured'])}\n\n{textwrap.fill(describe_origin(results), WIDTH)}"


def tell(measured: dict) -> str:
    """A conversation as a terminal shows it."""
    lines = ["$ python -m chapters chat"]
    for turn in measured["turns"]:
        lines += [f"> {turn['user']}", turn["answer"], describe_turn(turn)]
    return "\n".join(textwrap.fill(line, WIDTH) for line in lines)


if __name__ == "__main__":
    sys.exit(measure_and_save(NAME, record, tell, COMMAND))
