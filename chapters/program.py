"""What each program of the course does around its work: no terminal, pipe or full disk ends it in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def run_program(main: Callable[[], int | None]) -> int:
    """Run `main` and return the exit status of the program: what `main` returns (None is 0), or

    0 if the reader of the output has seen enough (`| head`), 130 after Ctrl-C or at the end of the input, and 2, with a
    sentence, if the system refuses to read or write a file.
    """
    prepare_streams()
    try:
        try:
            return main() or 0
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _print_no_more()
        return 0
    except OSError as error:
        try:
            print(describe_refusal(error), flush=True)
        except OSError:  # it is the output that cannot be written
            _print_no_more()
            print(describe_refusal(error), file=sys.stderr)
        return 2
    except (KeyboardInterrupt, EOFError):
        print()
        return 130


def prepare_streams() -> None:
    """Let output work everywhere: `?` for a character that the terminal lacks, and a closed stream leads nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def describe_refusal(error: OSError) -> str:
    """One sentence for an operation that the system refused, and what the course needs."""
    if error.filename is None:
        return f"{error.strerror or error}."
    must = "The course must be able to read and write its folder."
    return f"{error.strerror}: {error.filename}. {must}"


def _print_no_more() -> None:
    """Send what is still printed nowhere, also at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
