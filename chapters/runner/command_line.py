"""The command line: which commands there are, and one sentence for each mistake in calling them."""

from __future__ import annotations

import argparse
import importlib
import sys

from chapters.program import run_program
from chapters.runner import learner_file
from chapters.runner.course import CourseError
from chapters.runner.terminal import shown

NAMES = ("status", "next", "check", "hint", "watch", "diff", "reset", "update", "quiz", "bench")
NAMES += ("trace", "compile", "chat", "serve-device", "doctor")
MODULES = {name: f"chapters.runner.commands.{name.replace('-', '_')}" for name in NAMES}
COMMANDS = {name: importlib.import_module(module) for name, module in MODULES.items()}


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one sentence and a next step."""

    def error(self, message: str):
        print(f"{message[0].upper()}{message[1:]}. `{self.prog} --help` shows how to call it.")
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="python -m chapters",
        description="Fusion by Hand: what you type while you work through the course.",
        epilog="Without a command: status.",
    )
    commands = top.add_subparsers(dest="command", metavar="command")
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.HELP, allow_abbrev=False
        )
        if hasattr(module, "arguments"):
            module.arguments(command)
    return top


def run(arguments: list[str]) -> int:
    """Run one command and return the exit status: 0 done, 1 not yet solved, 2 asked wrongly."""
    return run_program(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        print(f"There is no command {arguments[0]!r}; there are {', '.join(COMMANDS)}.")
        return 2
    top = parser()
    options, unknown = top.parse_known_args(arguments)
    if unknown:
        if options.command:  # whose help lists its options
            top.prog = f"{top.prog} {options.command}"
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        for path in learner_file.make_missing():
            print(f"Made {shown(path)}, where you write your answers.")
        return COMMANDS[options.command or "status"].run(options)
    except CourseError as error:
        print(error)
        return 2
