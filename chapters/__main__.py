"""`python -m chapters …`: the learner's command.

This file can be read by every Python 3, so that an old one gets a sentence and not a syntax error.
"""

import sys

NEEDS = (3, 10)


def main():
    if sys.version_info < NEEDS:
        print(
            "The course needs Python {}.{} or newer, and this is {}.{}. Make a virtual environment with "
            "a newer one: python3.12 -m venv .venv".format(*NEEDS, *sys.version_info[:2])
        )
        return 2
    try:
        from chapters.runner.command_line import run
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] in ("chapters", "tests"):
            raise
        print(
            f"The package {missing.name} is not installed in this Python ({sys.executable}). Run "
            "`pip install -e .` in the course's folder, in the virtual environment you use."
        )
        return 2
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
