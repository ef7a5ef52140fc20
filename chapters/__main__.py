"""`python -m chapters …`: the learner's command.

Python 3.6 can read this file, so that an old Python gets a sentence and not a syntax error.
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

        return run(sys.argv[1:])
    except KeyboardInterrupt:  # while the course's modules are imported
        return 130
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] in ("chapters", "tests"):
            raise
        print(
            f"The package {missing.name} is not installed in this Python ({sys.executable}). Run "
            "`pip install -e .` in the course's folder, in the virtual environment you use."
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
