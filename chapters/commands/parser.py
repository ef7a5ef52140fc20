"""The command line: which commands there are, and one sentence for each mistake in calling them."""

from __future__ import annotations

import argparse
import importlib
import keyword
import os
import sys

from chapters.toolkit.course import CourseError

COMMANDS = {
    "status": ("where am I: a bar a chapter, the next exercise, minutes left", ()),
    "next": ("the next exercise: where it is, what it asks", ()),
    "check": ("check your code: all of it, or chapters (2) and exercises (2.1)", ("what*",)),
    "hint": ("the next of three hints of an exercise (4.2)", ("exercise",)),
    "watch": ("check again each time you save", ("what?",)),
    "diff": ("your answer beside the reference, once yours passes", ("exercise", "--give-up")),
    "reset": ("start an exercise (4.2) or a chapter's file (4) anew; keeps a copy", ("what",)),
    "quiz": ("predict, then let the compiler answer (4)", ("chapter",)),
    "bench": ("measure a chapter's kernels on this machine (3)", ("chapter", "--quick")),
    "trace": (
        "a pipeline pass by pass: time, what changed, the IR before and after",
        ("--pipeline=zero", "--config=tiny", "--function=decode", "--target=llvm", "--pass="),
    ),
    "doctor": ("what this machine can do, and what to do about what it lacks", ()),
}


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one sentence and a next step."""

    def error(self, message: str):
        print(f"{message[0].upper()}{message[1:]}. `python -m chapters --help` lists the commands.")
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="python -m chapters",
        description="Fusion by Hand: what you type while you work through the course.",
        epilog="Without a command: status.",
    )
    commands = top.add_subparsers(dest="command", metavar="command")
    for name, (text, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        for argument in arguments:
            if "=" in argument:
                _option_with_value(command, *argument.split("="))
            elif argument.startswith("--"):
                command.add_argument(argument, action="store_true")
            elif argument.endswith(("?", "*")):
                command.add_argument(argument[:-1], nargs=argument[-1])
            else:
                command.add_argument(argument)
    return top


def _option_with_value(command: argparse.ArgumentParser, name: str, default: str) -> None:
    """`--name VALUE`; an option called like a keyword of Python has `_name` at its end."""
    word = name[2:]
    shown = {"help": f"{default} if not given"} if default else {}
    command.add_argument(
        name,
        dest=f"{word}_name" if keyword.iskeyword(word) else word,
        default=default or None,
        metavar=word.upper(),
        **shown,
    )


def run(arguments: list[str]) -> int:
    """Run one command and return the exit status: 0 done, 1 not yet solved, 2 asked wrongly."""
    _unicode_output()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        print(f"There is no command {arguments[0]!r}; there are {', '.join(COMMANDS)}.")
        return 2
    options = parser().parse_args(arguments)
    command = importlib.import_module(f"chapters.commands.{options.command or 'status'}")
    try:
        return command.run(options)
    except CourseError as error:
        print(error)
        return 2
    except BrokenPipeError:  # `python -m chapters doctor | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(
            f"{error.strerror}: {error.filename}. The course must be able to read and write its folder."
        )
        return 2
    except (KeyboardInterrupt, EOFError):
        print()
        return 130


def _unicode_output() -> None:
    """Terminals with an old code page (Windows) get `?` for a sign they lack, not an exception."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
