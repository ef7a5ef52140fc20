"""9.2: the number of stages is not passed on."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.2"
WHAT = "the number of pipeline stages is always 1"
WHY = "A model cut into two stages would be compiled as if one device held it."
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


def attach_phase(
    target,
    variable_bounds,
    cuda_graph_symbolic_capture_hints,
    pipeline_parallel_stages,
    additional_tirs,
    metadata,
):
    sizes = {name: metadata[name] for name in ("vocab_size",) if name in metadata}
    return [
        BindKnownSizes(sizes),
        ch2.AttachVariableBounds(variable_bounds),
        ch2.AttachCUDAGraphSymbolicCaptureHints(cuda_graph_symbolic_capture_hints),
        ch2.AttachPipelineParallelStages(1),
        ch2.AttachAdditionalPrimFuncs(additional_tirs),
        ch2.AttachMemoryPlanAttr(),
        ch2.AttachSequenceLengthPaddingFactor(target, metadata),
    ]
