"""9.2: every number of the metadata is bound."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.2"
WHAT = "every number in the metadata is taken for a size"
WHY = (
    "Metadata says many things: a batch size in it is the largest there can be. Only the vocabulary "
    "is the same in every call."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


def attach_phase(
    target,
    variable_bounds,
    cuda_graph_symbolic_capture_hints,
    pipeline_parallel_stages,
    additional_tirs,
    metadata,
):
    sizes = metadata
    return [
        BindKnownSizes(sizes),
        ch2.AttachVariableBounds(variable_bounds),
        ch2.AttachCUDAGraphSymbolicCaptureHints(cuda_graph_symbolic_capture_hints),
        ch2.AttachPipelineParallelStages(pipeline_parallel_stages),
        ch2.AttachAdditionalPrimFuncs(additional_tirs),
        ch2.AttachMemoryPlanAttr(),
        ch2.AttachSequenceLengthPaddingFactor(target, metadata),
    ]
