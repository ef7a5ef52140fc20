"""The pipelines that can be traced, by name: TVM's own, and the one the course builds where chapter 9 stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import tvm
from tvm import relax

from chapters.toolkit.course import CourseError, chapters
from chapters.toolkit.decoder.llama import FUNCTIONS, decoder
from chapters.toolkit.decoder.llama_config import CONFIGS, LlamaConfig
from chapters.toolkit.earlier import earlier
from chapters.toolkit.pipeline.pass_trace import Trace, trace

OURS = 9  # the chapter that puts the course's passes together


def _zero(target: tvm.target.Target) -> tvm.transform.Pass:
    return tvm.transform.Sequential(
        [relax.get_pipeline("zero"), relax.get_pipeline("default_build")]
    )


def _default(target: tvm.target.Target) -> tvm.transform.Pass:
    """As `tvm.compile` chooses: the target's own for a GPU, elsewhere the general one, which fuses nothing."""
    if "gpu" in target.keys:
        return relax.get_default_pipeline(target)
    return relax.get_pipeline("default")


def _ours(target: tvm.target.Target) -> tvm.transform.Pass:
    return earlier(OURS).fusion_pipeline(target)


def pipelines() -> dict[str, Callable[[tvm.target.Target], tvm.transform.Pass]]:
    """name -> what makes the pipeline for a target.

    zero: TVM's general fusion, then its lowering. default: what `tvm.compile` runs. fusion_by_hand: chapter 9's.
    """
    known = {"zero": _zero, "default": _default}
    if any(chapter.number == OURS and chapter.solution.exists() for chapter in chapters()):
        known["fusion_by_hand"] = _ours
    return known


def trace_decoder(
    pipeline: str = "zero",
    config: str | LlamaConfig = "tiny",
    function: str = "decode",
    target: str = "llvm",
    layers: int | None = None,
) -> Trace:
    """Run the pipeline of that name on one function of the decoder, recording each pass.

    layers: a decoder of so many layers, of the same sizes otherwise. Raises CourseError for a name there is not.
    """
    for what, name, known in (
        ("pipeline", pipeline, pipelines()),
        ("configuration", config, CONFIGS),
        ("function of the decoder", function, FUNCTIONS),
    ):
        if isinstance(name, str) and name not in known:
            raise CourseError(f"There is no {what} {name!r}; there are {', '.join(known)}.")
    sizes = CONFIGS[config] if isinstance(config, str) else config
    mod, _ = decoder(
        replace(sizes, num_hidden_layers=layers) if layers else sizes, functions=[function]
    )
    where = _target(target)
    with where:
        passes = pipelines()[pipeline](where)
    return trace(passes, mod, where)


def _target(name: str) -> tvm.target.Target:
    try:
        return tvm.target.Target(name)
    except ValueError:
        raise CourseError(
            f"TVM knows no target {name!r}; there are llvm, cuda, and tags such as nvidia/nvidia-h100."
        ) from None
