"""A conversation with a compiled model, and how the terminal shows it."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import psutil

from chapters.kit.chat.template import Renderer
from chapters.kit.chat.tokenizer import Streamer, Tokenizer

ANSWER = 64  # tokens of context, at least, that are left for an answer
# an answer repeats itself that said at most PERIOD tokens TIMES times in a row, REPEATED tokens in all, or more
REPEATED, PERIOD, TIMES = 96, 128, 3
LOOK = 24  # tokens after which it is looked at again
READ = 512  # tokens that the model reads at a time: between them, Ctrl-C is heard
ROUND, RARER = "the answer repeats itself", 0.5  # a temperature that makes it rarer
# what a terminal would obey; tab and newline may pass
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Chat:
    """One conversation: its messages, and the model that has read them.

    model: a ChatModel. temperature: 0 always takes the most likely token. seed: of the random choices otherwise.
    """

    def __init__(
        self, model, tokenizer: Tokenizer, renderer: Renderer, temperature: float, seed: int
    ):
        self.model, self.tokenizer, self.renderer = model, tokenizer, renderer
        self.temperature = temperature
        if temperature:  # NumPy loads its random numbers when they are asked for
            self.random = np.random.default_rng(seed)
        self.messages: list[dict[str, str]] = []  # shielded, but for tags that the model wrote
        self.read: list[int] = []  # the tokens that the model has in its cache
        self.new = 0  # tokens that the model had to read before the last answer
        self.stopped = ""  # why the last answer ended before the model ended it

    @property
    def window(self) -> int:
        return self.model.config.context_window_size

    def prompt(self, text: str) -> tuple[list[int], str]:
        """(the tokens of the conversation with the message `text` at its end, a sentence on what was left out, or "").

        The oldest messages are left out first; if `text` alone is too long, its beginning. If this raises an exception,
        such as a KeyboardInterrupt, the conversation stays as it was.
        """
        before = self.messages
        try:
            return self._add_message(text)
        except BaseException:
            self.messages = before
            raise

    def _add_message(self, text: str) -> tuple[list[int], str]:
        room, left_out = self.window - ANSWER, 0
        words = self.tokenizer.encode(text)
        kept = len(words)
        if kept > self.window:  # the template should not have to write what cannot fit
            kept = self.window
            text = self.tokenizer.decode(words[-kept:])
        self.messages = [*self.messages, {"role": "user", "content": self.tokenizer.shield(text)}]
        while len(ids := self._render()) > room and len(self.messages) > 2:
            self.messages, left_out = self.messages[2:], left_out + 2  # a message and its answer
        needed, cut = len(ids) + len(words) - kept + ANSWER, 4
        while len(ids) > room:
            # more each time, because a template may always write too much, and slowly
            cut = max(2 * cut, len(ids) - room)
            kept -= cut
            if kept <= 0:
                raise ValueError(
                    f"A context of {self.window} tokens is too small for the model's template, this message and an "
                    f"answer; choose a --context of {needed} or more."
                )
            rest = self.tokenizer.decode(words[-kept:])
            self.messages[-1]["content"] = self.tokenizer.shield(rest)
            ids = self._render()
        if kept < len(words):
            return ids, (
                f"This message has {len(words)} tokens, and {kept} fit beside the model's template and an answer; its "
                f"first {len(words) - kept} are left out."
            )
        said = f"The first {left_out} messages no longer fit into {self.window} tokens and are left out."
        return ids, said if left_out else ""

    def _render(self) -> list[int]:
        if ids := self.tokenizer.encode_prompt(self.renderer.render(self.messages)):
            return ids
        raise ValueError(
            "The model's chat template writes nothing that has a token; use a model whose template works."
        )

    def count_known(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of `ids` need not be fed: they are in the model's cache. Never the last."""
        pairs = zip(self.read, ids[:-1], strict=False)
        different = (n for n, (a, b) in enumerate(pairs) if a != b)
        return next(different, min(len(self.read), len(ids) - 1))

    def answer(self, ids: list[int]) -> Iterator[str]:
        """The model's answer to the tokens `ids`, piece by piece; it becomes part of the conversation.

        Stops at an end-of-turn token, when the context is full, or when the answer repeats itself: a small model that
        always takes the most likely token may never get out of that. Tokens in the model's cache are not fed again.
        """
        same = self.count_known(ids)
        streamer, said, tags = Streamer(self.tokenizer), [], []
        self.read, self.model.length = self.read[:same], same
        new, self.stopped = ids[same:], ""
        self.new = len(new)
        try:
            while len(self.read) + len(new) <= self.window:
                for at in range(0, len(new), READ):
                    logits = self.model.feed(new[at : at + READ])
                    self.read += new[at : at + READ]
                token = self._choose_token(logits)
                if token in self.tokenizer.end_of_turn:
                    break
                new = [token]
                if token in self.tokenizer.control:  # such as </think>, by which a template may cut
                    tags.append(len(said))
                said.append(CONTROL.sub("", streamer.add(token)))
                yield said[-1]
                if len(said) % LOOK == 0 and repeats(self.read[len(ids) :]):
                    self.stopped = ROUND
                    if self.temperature < RARER:
                        self.stopped += f"; --temperature {RARER} makes that rarer"
                    break
            else:
                self.stopped = f"the context of {self.window} tokens is full"
            said.append(streamer.finish())
            yield said[-1]
        finally:  # also if the reader of the answer stops it
            runs = (
                self.tokenizer.shield("".join(said[tag + 1 : end])) + "".join(said[end : end + 1])
                for tag, end in pairwise([-1, *tags, len(said)])
            )
            self.messages.append({"role": "assistant", "content": "".join(runs)})

    def _choose_token(self, logits: np.ndarray) -> int:
        best = int(logits.argmax())  # of NaN, if there is one
        if not np.isfinite(logits[best]):
            raise ValueError(
                f"The model computes {logits[best]} in place of a number for the next token; its file is damaged, or "
                "needs more precision: try --exact, then another file."
            )
        if self.temperature == 0:
            return best
        with np.errstate(over="ignore"):  # -inf, if the temperature is small: exp makes 0 of it
            weights = np.exp((logits.astype("float64") - logits[best]) / self.temperature)
        return int(self.random.choice(len(weights), p=weights / weights.sum()))


def repeats(tokens: Sequence[int]) -> bool:
    """Whether `tokens` end with at most PERIOD of them, said TIMES times or more, and at least REPEATED in all."""
    for period in range(1, PERIOD + 1):
        count = max(REPEATED, TIMES * period)
        last = tokens[-count:]
        if len(last) == count and last[period:] == last[:-period]:
            return True
    return False


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def reply(chat: Chat, text: str) -> dict:
    """Print the answer to one message as it comes, then `describe_turn` of what is returned.

    Ctrl-C stops the answer, or the reading of the message; then this raises KeyboardInterrupt when all is printed.
    Returns {"tokens", "tokens_per_second", "first_token_seconds", "tokens_to_read" before the first, "resident_bytes"},
    or {} if there are too few tokens for a rate.
    """
    moments: list[float] = []
    interrupt = None
    try:
        ids, said = chat.prompt(text)
        if said:
            note(said)
        begin, unread = time.perf_counter(), len(ids) - chat.count_known(ids)
        if unread > READ:
            note(f"Reading {unread} tokens …")
        with contextlib.closing(chat.answer(ids)) as pieces:
            for piece in pieces:
                moments.append(time.perf_counter())
                print(piece, end="", flush=True)
    except KeyboardInterrupt as error:
        interrupt = error
        print(" …", end="")
    print()
    if chat.stopped and not interrupt:
        note(f"[stopped: {chat.stopped}]")
    tokens = moments if interrupt else moments[:-1]  # an answer ends with the rest of a character
    measured = {}
    if len(tokens) > 1:
        measured = {
            "tokens": len(tokens),
            "tokens_per_second": (len(tokens) - 1) / (tokens[-1] - tokens[0]),
            "first_token_seconds": tokens[0] - begin,
            "tokens_to_read": chat.new,
            "resident_bytes": psutil.Process().memory_info().rss,
        }
        note(describe_turn(measured))
    if interrupt:
        raise interrupt
    return measured


def describe_turn(measured: dict) -> str:
    """The line below an answer, of what `reply` returned."""
    return (
        "[{tokens} tokens, {tokens_per_second:.0f} per second; the first after {first_token_seconds:.2f} s, "
        "for {tokens_to_read} token{s} to read; {megabytes:.0f} MB of memory]"
    ).format(
        **measured,
        s="" if measured["tokens_to_read"] == 1 else "s",
        megabytes=measured["resident_bytes"] / 1e6,
    )
