"""9.2: AttachMemoryPlanAttr is missing."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.2"
WHAT = "AttachMemoryPlanAttr is left out"
WHY = (
    "Without its attribute the planner leaves outputs of symbolic shape to be allocated when the "
    "function runs."
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
    sizes = {name: metadata[name] for name in ("vocab_size",) if name in metadata}
    return [
        BindKnownSizes(sizes),
        ch2.AttachVariableBounds(variable_bounds),
        ch2.AttachCUDAGraphSymbolicCaptureHints(cuda_graph_symbolic_capture_hints),
        ch2.AttachPipelineParallelStages(pipeline_parallel_stages),
        ch2.AttachAdditionalPrimFuncs(additional_tirs),
        ch2.AttachSequenceLengthPaddingFactor(target, metadata),
    ]
