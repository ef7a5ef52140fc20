"""Names of pipelines: TVM lets a name be registered once in a process, and a chapter's file may be read twice there."""

from __future__ import annotations

from tvm.relax import pipeline


def forget(name: str) -> None:
    """Free the pipeline name `name`, if it is taken, so that it can be registered anew."""
    pipeline.PIPELINE_MAP.pop(name, None)
