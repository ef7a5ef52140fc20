"""Whether this Python can run the course from here: asked before anything else is imported.

Python 3.6 can read this file and `chapters/__init__.py`, so that an old Python gets a sentence and not a syntax error.
"""

import os
import sys

NEEDS = (3, 10)
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# what the course, TVM and pytest import, by the names of modules
PACKAGES = [
    "hypothesis",
    "iniconfig",
    "ml_dtypes",
    "numpy",
    "packaging",
    "platformdirs",
    "pluggy",
    "psutil",
    "pygments",
    "pytest",
    "sortedcontainers",
    "torch",
    "tvm",
    "tvm_ffi",
    "typing_extensions",
    "yaml",
]


def refuse_to_start():
    """End a process that `python -m chapters…` has just started, with status 2 and one sentence, if it cannot work.

    Python sets `sys.argv[0]` to "-m" while it looks for the module to run.
    """
    if sys.argv[:1] == ["-m"]:
        try:
            folder = os.getcwd()
        except OSError:  # it has been removed
            folder = ROOT
        fault = find_fault(folder)
        if fault:
            print(fault, file=sys.stderr)
            sys.exit(2)


def find_fault(folder):
    """One sentence on why the course cannot be run in `folder`, and what to do; "" if it can be."""
    if sys.version_info < NEEDS:
        return (
            "The course needs Python {}.{} or newer, and this is {}.{}. Make a virtual environment with "
            "a newer one: python3.12 -m venv .venv".format(*NEEDS, *sys.version_info[:2])
        )
    if not os.path.isfile(os.path.join(ROOT, "pyproject.toml")):
        return (
            f"The course was installed as a copy, in {ROOT}, without its lessons and without a place for your answers. "
            "It works in its own folder: clone the repository, and run `pip install -e .` there."
        )
    checkout = find_checkout(folder)
    if checkout and checkout != ROOT:
        return (
            f"You are in the course at {checkout}, but this Python uses the one at {ROOT}. "
            f"Run `pip install -e .` in {checkout} to use that one."
        )
    on_path = [] if getattr(sys.flags, "safe_path", False) else [folder]
    return _unreadable_root() or find_hidden_module(*on_path)


def find_checkout(folder):
    """The checkout of the course that contains `folder`; "" if none does."""
    folder = os.path.realpath(folder)
    while not os.path.isfile(os.path.join(folder, "chapters", "runner", "course.py")):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    return folder


def _unreadable_root():
    """A sentence if TVM and the child processes, which use UTF-8, would not find the course by its name."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower() in ("utf-8", "utf8") or ROOT.isascii():
        return ""
    return (
        f"Python takes file names for {encoding} here, and the path of the course's folder needs UTF-8. "
        "Set the environment variable PYTHONUTF8=1."
    )


def find_hidden_module(*folders):
    """A sentence if a file in the course's folder or in `folders` hides a module of Python or a package; else ""."""
    for place in dict.fromkeys([ROOT, *map(os.path.realpath, folders)]):
        for name, module in _modules_in(place):
            owner = "Python's own module" if module in sys.stdlib_module_names else "the package"
            if module in sys.stdlib_module_names or module in PACKAGES:
                return f"{name} in {place} hides {owner} {module}: rename it."
    return ""


def _modules_in(place):
    """(name of the file or folder, name of the module) of what can be imported from the folder `place`."""
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return
    for name in names:
        if name.endswith(".py"):
            yield name, name[:-3]
        elif os.path.isfile(os.path.join(place, name, "__init__.py")):
            yield name, name
