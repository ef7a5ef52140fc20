"""2.5: a name that begins like an entry point counts as one."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.5"
WHAT = "functions are chosen by how their name begins"
WHY = (
    "batch_select_last_hidden_states and batch_get_logits begin like entry points and run no "
    "layer: there is nothing in them to cut. The names are ten; compare with all of each."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachPipelineParallelStages")
class AttachPipelineParallelStages:
    def __init__(self, pipeline_parallel_shards):
        self.stages = pipeline_parallel_shards

    def transform_module(self, mod, _ctx):
        def attach(name, func):
            chosen = name.startswith(("prefill", "decode", "batch_"))
            return func.with_attr("pipeline_parallel_stages", self.stages) if chosen else func

        return map_relax_functions(mod, attach)
