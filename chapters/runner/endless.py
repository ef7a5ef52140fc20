"""Stops a visitor or mutator that asks itself about the same node again and again.

Such a recursion passes through TVM's C++ at every step. At Python's own limit it takes many seconds to unwind, and
depending on where it was stopped it ends the process. A few rounds are enough to recognize it.

It wraps six of TVM's functions, and only in the child process in which `python -m chapters check` runs a learner's
answer. The kit, the benches and a learner's own scripts run TVM as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

MOST_ROUNDS = 20
SEEN_BY = [
    f"PyExpr{kind}Visit{what}"
    for kind in ("Visitor", "Mutator")
    for what in ("Expr", "Binding", "BindingBlock")
]


def stop_endless_visits() -> None:
    """From now on, raise RecursionError in this process if visits of one node are nested more than MOST_ROUNDS deep."""
    from tvm.relax import expr_functor

    for name in SEEN_BY:
        visit = getattr(expr_functor._ffi_api, name)
        setattr(expr_functor._ffi_api, name, _counted(visit))


def _counted(visit: Callable) -> Callable:
    in_flight: Counter[tuple] = Counter()

    def counted(visitor: object, node: object) -> object:
        key = (visitor, node)  # TVM's objects compare and hash by identity
        if in_flight[key] >= MOST_ROUNDS:
            raise RecursionError(
                "maximum recursion depth exceeded: a visit of a node led back to it"
            )
        in_flight[key] += 1
        try:
            return visit(visitor, node)
        finally:
            in_flight[key] -= 1
            if not in_flight[key]:
                del in_flight[key]

    return counted
