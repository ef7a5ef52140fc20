"""`python -m chapters chat`: a real model, compiled by the course's passes, answers in the terminal."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable

from chapters.runner.course import chapter
from chapters.runner.device_child import add_device_options

HELP = "talk to a real model that your passes compile; fetches it once (98 MB)"
CHAPTER = 11  # whose passes compile the model
DIGITS = 18  # of a number that is given
LONGEST = 2048  # tokens of context


def arguments(parser) -> None:
    parser.add_argument("--prompt", metavar="TEXT", help="answer this, and end")
    parser.add_argument("--gguf", metavar="FILE", help="another model: a Llama in a GGUF file")
    parser.add_argument(
        "--temperature",
        type=_parse_temperature,
        default=0.0,
        help="0, if not given: always the likeliest token; 1 chooses at random, as likely as the model says",
    )
    parser.add_argument(
        "--seed",
        type=_whole_number(0),
        default=0,
        help="of the random choices at a temperature above 0; 0 if not given",
    )
    parser.add_argument(
        "--threads", type=_whole_number(1), metavar="N", help="all cores, if not given"
    )
    parser.add_argument(
        "--context",
        type=_whole_number(1),
        metavar="N",
        default=LONGEST,
        help=f"tokens, {LONGEST} if not given",
    )
    parser.add_argument(
        "--exact", action="store_true", help="keep activations and cache in float32"
    )
    parser.add_argument(
        "--without",
        metavar="N.M",
        default="",
        help="with this exercise's answer replaced by nothing: shows what it is worth",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="first print whose code made each kernel, and its share of the time",
    )
    add_device_options(parser)


def _whole_number(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or len(text) > DIGITS or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r:.40} must be a whole number, {least} or more, of at most {DIGITS} digits"
            )
        return int(text)

    return number


def _parse_temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0 to 100")
    return value


def run(options) -> int:
    """Let the chapter's `chat.py` answer."""
    if options.threads:
        os.environ["TVM_NUM_THREADS"] = str(options.threads)  # read when TVM starts its threads
    try:
        program = importlib.import_module(f"chapters.{chapter(CHAPTER).slug}.chat")
        return program.run(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
