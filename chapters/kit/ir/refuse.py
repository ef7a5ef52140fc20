"""How a schedule primitive of the course refuses: a ScheduleError of one sentence, and nothing has changed."""

from __future__ import annotations

from tvm.s_tir import SBlock, ScheduleError


def require(holds: bool, block: SBlock, otherwise: str) -> None:
    """Go on if `holds`; else raise a ScheduleError that names `block` and says `otherwise`, the condition it misses."""
    if not holds:
        raise ScheduleError(f"Block `{block.name_hint}` cannot be fused: {otherwise}.")
