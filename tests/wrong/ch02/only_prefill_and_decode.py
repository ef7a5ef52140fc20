"""2.5: the batched functions and those without the head are forgotten."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.5"
WHAT = "only prefill and decode are marked"
WHY = (
    "A serving engine calls the batched functions, and those that stop at the last hidden state. "
    "A stage that one of them lacks cannot be run by its devices."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachPipelineParallelStages")
class AttachPipelineParallelStages:
    def __init__(self, pipeline_parallel_shards):
        self.stages = pipeline_parallel_shards

    def transform_module(self, mod, _ctx):
        def attach(name, func):
            chosen = name in ("prefill", "decode")
            return func.with_attr("pipeline_parallel_stages", self.stages) if chosen else func

        return map_relax_functions(mod, attach)
