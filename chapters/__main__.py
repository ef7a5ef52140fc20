"""`python -m chapters …`: the learner's command."""

import sys


def main():
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
