"""Packages that only the chat command or its measurements need."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

INSTALL = "run `pip install -e '.[{}]'`"


def extra(name: str, of: str = "model") -> ModuleType:
    """The module `name` of a package in the course's extra `of`. Raises ValueError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(_describe_missing(name.split(".")[0], str(error), of)) from error


def require(package: str) -> None:
    """Raise ValueError if `package`, of the extra `model`, is not installed. It is not imported, which takes longer."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(_describe_missing(package, "not installed", "model"))


def _describe_missing(package: str, reason: str, of: str) -> str:
    return f"The package {package} is missing or broken ({reason}); {INSTALL.format(of)}."
