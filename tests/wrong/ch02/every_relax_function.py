"""2.5: every Relax function is marked."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.5"
WHAT = "every Relax function is marked"
WHY = (
    "embed, get_logits and create_kv_cache run no layers and are called outside of the pipeline; "
    "marked, they would be cut too."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachPipelineParallelStages")
class AttachPipelineParallelStages:
    def __init__(self, pipeline_parallel_shards):
        self.stages = pipeline_parallel_shards

    def transform_module(self, mod, _ctx):
        def attach(name, func):
            chosen = True
            return func.with_attr("pipeline_parallel_stages", self.stages) if chosen else func

        return map_relax_functions(mod, attach)
