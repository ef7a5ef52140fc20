"""`python -m chapters trace`: a pipeline pass by pass, and with --pass what one of them made of the IR."""

from __future__ import annotations

import importlib

from chapters.runner.course import CourseError
from chapters.runner.course import chapter as find

HELP = "a pipeline pass by pass: time, what changed, the IR before and after"
CHAPTER = 9  # the one about pipelines


def arguments(parser) -> None:
    parser.add_argument("--pipeline", default="zero", help="zero if not given")
    parser.add_argument("--config", default="tiny", help="tiny if not given")
    parser.add_argument("--function", default="decode", help="decode if not given")
    parser.add_argument("--target", default="llvm", help="llvm if not given")
    parser.add_argument("--pass", dest="pass_name", metavar="PASS", help="a pass's name or number")


def run(options) -> int:
    """Let the chapter's `trace.py` print the table, or one pass's differences."""
    tracer = importlib.import_module(f"chapters.{find(CHAPTER).slug}.trace")
    o = options
    try:
        tracer.show(o.pipeline, o.config, o.function, o.target, o.pass_name)
    except (KeyError, ValueError) as error:
        raise CourseError(error.args[0]) from None
    return 0
