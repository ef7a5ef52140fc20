"""TVMScript, parsed in a thread that has no callers.

For each function and inlined function TVM's parser asks `inspect` about all of its callers. For a caller that is in no
module, such as the part of Python that imports files, `inspect` looks through all modules that are loaded: a function
that is parsed in 0.01 s takes 0.1 s and more where a file is being imported, or under pytest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import tvm

Given, Returned = ParamSpec("Given"), TypeVar("Returned")


def parse_alone(makes_kernel: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """A decorator: the function runs in a thread of its own, which knows no `Target` or `PassContext` of the caller."""

    @functools.wraps(makes_kernel)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(makes_kernel, *args, **kwargs).result()

    return run


from_source = parse_alone(tvm.script.from_source)
