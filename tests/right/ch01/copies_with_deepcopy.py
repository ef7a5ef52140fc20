"""Python's own copies of the module, whose GlobalVars are copies too; aliases removed from the whole module
before what became dead is removed function by function; one visitor a function."""

import copy

from solutions.ch01_walk_the_ir.walk_the_ir import *


def count_calls(mod):
    total = Counter()
    for name in mod.get_global_vars():
        func = mod[name]
        if isinstance(func, relax.Function):
            counter = CallCounter()
            counter.visit_expr(func)
            total.update(counter.calls)
    return total


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    def transform_module(self, mod, _ctx):
        result = copy.deepcopy(mod)
        for name, func in result.functions_items():
            if isinstance(func, relax.Function) and not may_overwrite(func):
                result[name] = TransposeDropper().visit_expr(func)
        result = relax.transform.CanonicalizeBindings()(result)
        for name, func in result.functions_items():
            if isinstance(func, relax.Function):
                result[name] = relax.analysis.remove_all_unused(func)
        return result


@tvm.transform.module_pass(opt_level=0, name="AttachOrigin")
class AttachOrigin:
    def __init__(self, origin):
        self.origin = origin

    def transform_module(self, mod, _ctx):
        result = copy.copy(mod)
        for name, func in result.functions_items():
            if isinstance(func, relax.Function):
                result.update_func(name, func.with_attr("course.origin", self.origin))
        return result
