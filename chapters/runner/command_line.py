"""The command line: which commands there are, and one sentence for each mistake in calling them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from types import ModuleType

from chapters.child import WrongPatience, patience
from chapters.code_owner import LEARNER, is_about_learner, set_owner
from chapters.program import run_program
from chapters.runner import learner_file
from chapters.runner.copies import follow_checkout
from chapters.runner.course import CourseError, chapters
from chapters.runner.progress import lock_answers
from chapters.runner.terminal import relative

NAMES = (
    "status",
    "next",
    "path",
    "check",
    "hint",
    "watch",
    "diff",
    "reset",
    "restore",
    "update",
    "quiz",
)
NAMES += ("bench", "trace", "compile", "chat", "serve-device", "doctor")
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
    command = COMMANDS[options.command or "status"]
    set_owner(command.about(options) if hasattr(command, "about") else LEARNER)
    try:
        patience()  # a wrong FUSION_PATIENCE is said before anything runs
        if is_about_learner():
            _look_after_answers(command)
        # commands that write a learner's file read it before
        writes = command in [COMMANDS[name] for name in ("reset", "restore", "update")]
        with lock_answers() if writes else contextlib.nullcontext():
            return command.run(options)
    except (CourseError, WrongPatience) as error:
        print(error)
        return 2


def _look_after_answers(command: ModuleType) -> None:
    """Make the learner's files that are missing, offer copies of what was lost, and keep copies of what there is.

    What was lost is offered by `status`, and by any command that had to make the file.
    """
    if said := follow_checkout():
        print(said)
    made = learner_file.make_missing()
    for path in made:
        print(f"Made {relative(path)}, where you write your answers.")
    status, restore = COMMANDS["status"], COMMANDS["restore"]
    asked = [c for c in chapters() if command in (status, restore) or c.stub in made]
    offers = {c: said for c in asked if (said := restore.describe_offer(c))}
    if command is not restore:
        for said in offers.values():
            print(f"!! {said}")
    # until the learner has answered the offer, the copy that it names stays the newest
    learner_file.keep_answers([c for c in chapters() if c not in offers])
