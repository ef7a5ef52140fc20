"""A conversation with the chat model, kept for the site: `python -m chapters.ch11_a_real_model.recorded`.

It writes docs/results/ch11_conversation.json: what was asked, what the model said, and how fast.
"""

from __future__ import annotations

import sys
import textwrap
import time
from types import SimpleNamespace

from chapters.kit.bench.results import load, made_with, save

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
    from chapters.kit.chat.conversation import resident

    here = {"gguf": None, "device": None, "remote": None}  # the course's model, on this CPU
    options = {"context": 2048, "exact": False, "temperature": 0.0, "seed": 0}
    chat = program.start(SimpleNamespace(**here, **options))
    turns = []
    with chat.renderer:
        for prompt in PROMPTS:
            ids, _ = chat.prompt(prompt)
            begin, moments, said = time.perf_counter(), [], []
            for piece in chat.answer(ids):
                moments.append(time.perf_counter())
                said.append(piece)
            count = len(moments) - 1  # the last piece is the rest of a character
            turns.append(
                {
                    "user": prompt,
                    "answer": "".join(said),
                    "tokens": count,
                    "tokens_per_second": (count - 1) / (moments[-2] - moments[0]),
                    "first_token_seconds": moments[0] - begin,
                    "tokens_to_read": chat.new,
                    "resident_bytes": resident(),
                }
            )
    return {"turns": turns}


def told_of(turn: dict) -> str:
    """The line that `chat` printed below the answer."""
    from chapters.kit.chat.conversation import told

    names = ("tokens", "tokens_per_second", "first_token_seconds", "tokens_to_read")
    return told(*(turn[name] for name in names), turn["resident_bytes"])


def text() -> str:
    """The kept conversation as a terminal shows it, and how it was made; a sentence if there is none."""
    results = load(NAME)
    if results is None:
        return f"Not yet recorded: `{COMMAND}` does it on your machine."
    lines = ["$ python -m chapters chat"]
    for turn in results["measured"]["turns"]:
        lines += [f"> {turn['user']}", turn["answer"]]
        lines.append(told_of(turn))
    wrapped = (textwrap.fill(line, WIDTH) for line in [*lines, "", made_with(results)])
    return "\n".join(wrapped)


if __name__ == "__main__":
    found = record()
    print(f"Written to {save(NAME, found, COMMAND)}.", file=sys.stderr)
    print(text())
