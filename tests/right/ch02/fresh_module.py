"""A module built anew from a dict of functions, one attribute after another; `update` for item assignment."""

from solutions.ch02_attach_metadata.attach_support_info import *


def map_relax_functions(mod, rewrite):
    functions = {
        gvar: rewrite(gvar.name_hint, func) if isinstance(func, relax.Function) else func
        for gvar, func in mod.functions_items()
    }
    fresh = tvm.IRModule(functions)
    return fresh.with_attrs(mod.attrs) if mod.attrs else fresh


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = {}
        for name in sorted(variable_bounds):
            if variable_bounds[name] >= 1:
                self.bounds[name] = variable_bounds[name]

    def transform_module(self, mod, _ctx):
        def attach(_name, func):
            func = func.with_attr("tir_non_negative_var", ["vocab_size"])
            return func.with_attr("tir_var_upper_bound", self.bounds)

        return map_relax_functions(mod, attach)


@tvm.transform.module_pass(opt_level=0, name="AttachAdditionalPrimFuncs")
class AttachAdditionalPrimFuncs:
    def __init__(self, functions):
        self.functions = functions

    def transform_module(self, mod, _ctx):
        result = tvm.IRModule(mod.functions).with_attrs(mod.attrs)
        for name, func in self.functions.items():
            known = {gvar.name_hint: one for gvar, one in mod.functions_items()}
            old = known.get(name)
            public = func.with_attr("global_symbol", name)
            same = isinstance(old, tirx.PrimFunc) and tvm_ffi.structural_equal(
                old.with_attr("global_symbol", name), public
            )
            if old is not None and not same:
                raise ValueError(f"{name} is taken: choose another name for the PrimFunc.")
            if same:
                result.update_func(result.get_global_var(name), public)
            else:
                result.update(tvm.IRModule({name: public}))
        return result


@tvm.transform.module_pass(opt_level=0, name="AttachMemoryPlanAttr")
class AttachMemoryPlanAttr:
    def transform_module(self, mod, _ctx):
        mod = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod.update_func(gvar, func.with_attr("relax.memory_plan_dynamic_func_output", True))
        return mod
