"""How a schedule primitive of the course refuses: it raises a ScheduleError of one sentence and changes nothing."""

from __future__ import annotations

from tvm.s_tir import SBlock, ScheduleError


def require(holds: bool, block: SBlock, otherwise: str) -> None:
    """Raise a ScheduleError that names `block` and gives the reason, `otherwise`, unless the condition `holds`."""
    if not holds:
        raise ScheduleError(f"Block `{block.name_hint}` cannot be fused: {otherwise}.")
