"""2.5: a PrimFunc of that name is marked."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.5"
WHAT = "a PrimFunc that has the name of an entry point is marked"
WHY = (
    "A PrimFunc called prefill is one kernel: there are no bindings in it to cut. Ask for the "
    "kind of a function before you ask for its name."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachPipelineParallelStages")
class AttachPipelineParallelStages:
    def __init__(self, pipeline_parallel_shards):
        self.stages = pipeline_parallel_shards

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if gvar.name_hint in ENTRY_POINTS:
                result[gvar] = func.with_attr("pipeline_parallel_stages", self.stages)
        return result
