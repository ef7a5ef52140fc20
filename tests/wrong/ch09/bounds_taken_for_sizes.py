"""9.2: bounded dimensions are bound."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.2"
WHAT = "a bound is taken for a size"
WHY = "batch_size is at most 16 and today it is 3. Bound to 16, the kernels would accept nothing else."
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


def attach_phase(
    target,
    variable_bounds,
    cuda_graph_symbolic_capture_hints,
    pipeline_parallel_stages,
    additional_tirs,
    metadata,
):
    sizes = {
        **variable_bounds,
        **{name: metadata[name] for name in ("vocab_size",) if name in metadata},
    }
    return [
        BindKnownSizes(sizes),
        ch2.AttachVariableBounds(variable_bounds),
        ch2.AttachCUDAGraphSymbolicCaptureHints(cuda_graph_symbolic_capture_hints),
        ch2.AttachPipelineParallelStages(pipeline_parallel_stages),
        ch2.AttachAdditionalPrimFuncs(additional_tirs),
        ch2.AttachMemoryPlanAttr(),
        ch2.AttachSequenceLengthPaddingFactor(target, metadata),
    ]
