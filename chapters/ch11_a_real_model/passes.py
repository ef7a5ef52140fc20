"""The pipeline of the chat: chapter 9's phases, with this chapter's passes before FuseOps."""

from __future__ import annotations

from tvm.ir.transform import Pass
from tvm.target import Target

from chapters.runner.earlier import earlier


def phases(target: Target, **facts) -> dict[str, list[Pass]]:
    """What chapter 9's `phases` gives, with FuseDequantizeTake and FuseDequantizeMatmul in it.

    facts: what the model's author knows, as chapter 9 takes it. Each chapter's passes are the learner's own if they
    pass their checks.
    """
    found, ours = dict(earlier(9).phases(target, **facts)), earlier(11)
    lower = list(found["graph and lower"])
    at = [str(one.info.name) for one in lower].index("FuseOps")
    lower[at:at] = [ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul()]
    return {**found, "graph and lower": lower}
