"""9.7: phases gets the target alone."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.7"
WHAT = "what the caller knows does not reach the phases"
WHY = (
    "Nothing fails: the module has no bounds and no sizes, so memory is allocated while it runs, and "
    "the head has no schedule."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


def fusion_pipeline(target, **facts):
    passes = [one for phase in phases(target).values() for one in phase]

    @tvm.transform.module_pass(opt_level=0, name="fusion_by_hand")
    def pipeline(mod, _ctx):
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return pipeline
