"""Gives each kernel a name that a GPU's language accepts: the operator of a Python `lambda` is called "<lambda>"."""

from __future__ import annotations

import re

import tvm
from tvm import tirx
from tvm.relax.transform import NormalizeGlobalVar


@tvm.transform.module_pass(opt_level=0, name="NameKernels")
class NameKernels:
    """Replaces what is no letter, digit or underscore in the names of PrimFuncs, and keeps the names different."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        names = {gvar.name_hint for gvar in mod.get_global_vars()}
        result = mod.clone()
        for gvar, func in mod.functions_items():
            name = gvar.name_hint
            if isinstance(func, tirx.PrimFunc) and not re.fullmatch(
                r"[A-Za-z_]\w*", name, re.ASCII
            ):
                new = re.sub(r"\W", "_", f"kernel_{name}", flags=re.ASCII)
                while new in names:
                    new += "_"
                names.add(new)
                result[gvar] = func.with_attr("global_symbol", new)
        return NormalizeGlobalVar()(result)  # renames where the attribute is another name
