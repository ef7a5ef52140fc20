"""Another correct design: try, and count.

The reference has a rule: at least three products, and no reader that could have been fused into one of them. The rule
is short, needs no other pass, and takes no time. It also leaves out groups that would pay: two products whose split
is merged into their reader, or four of which one has an epilogue.

This pass knows no such rule. It combines a group, lets chapter 9's passes make kernels of both modules, and keeps the
change if fewer kernels are launched. So it is exact, for this pipeline. The price is a lowering of the module for each
group, and a dependency: change the pipeline behind it, and it decides differently. A tuner works like this; a pass that
has to be fast and predictable has a rule.
"""

from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.ir.relax_effects import calls_of_module
from chapters.kit.measure.pass_trace import LAUNCHING
from chapters.runner.earlier import earlier
from solutions.ch12_combine_products.combine_products import *
from solutions.ch12_combine_products.combine_products import Finder as Reference


class Finder(Reference):
    def may_join(self, var: relax.Var) -> bool:
        return True

    def groups(self) -> Iterator[list[Product]]:
        for scope in scopes(self.func):
            for block in scope.blocks:
                yield from (group for group in self.in_block(block) if len(group) > 1)


def launches(mod: IRModule) -> int:
    """How many kernels the code of `mod` launches once chapter 9's passes have made them."""
    # folding constants compiles kernels, which run once and are called as they declare
    with QUICK, tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        lowered = tvm.transform.Sequential(earlier(9).phases(QUICK)["graph and lower"])(mod)
    called = (call.op.name for call in calls_of_module(lowered) if isinstance(call.op, Op))
    return sum(name in LAUNCHING for name in called)


@tvm.transform.module_pass(opt_level=0, name="CombineProducts")
class CombineProducts:
    def transform_module(self, mod: IRModule, _ctx: tvm.transform.PassContext) -> IRModule:
        uses, best = count_uses(mod), None
        for gvar, func in mod.functions_items():
            if not isinstance(func, relax.Function) or offloaded(func):
                continue
            for group in Finder(func, uses).groups():
                best = best or launches(mod)
                trial = mod.clone()
                # the products of other groups keep their variables, so the next group is still in the new function
                trial[gvar] = Combiner(mod, [group]).visit_expr(mod[gvar])
                if (count := launches(trial)) < best:
                    mod, best = trial, count
        return mod
