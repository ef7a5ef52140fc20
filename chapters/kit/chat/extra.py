"""Packages that only the chat command needs."""

from __future__ import annotations

import importlib
from types import ModuleType


def extra(name: str) -> ModuleType:
    """The module `name` of a package in the course's extra `model`. Raises ValueError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ValueError(
            f"The package {package} is missing or broken ({error}); run `pip install -e '.[model]'`."
        ) from error
