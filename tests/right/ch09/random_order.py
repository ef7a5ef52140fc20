"""Rounds in random order, logits with a constant added, and a pipeline that looks its phases up when it runs."""

import random

from solutions.ch09_the_compiler.pipeline import *


def interleaved(calls, rounds, clock=time.perf_counter):
    for call in calls.values():
        call()
    order = random.Random(0)
    taken = {name: [] for name in calls}
    for _ in range(rounds):
        for name in order.sample(list(calls), len(calls)):
            start = clock()
            calls[name]()
            taken[name].append(clock() - start)
    return {name: sorted(times)[len(times) // 2] for name, times in taken.items()}


def slips_through(mod):
    @mutator
    class Shifted(PyExprMutator):
        def visit_call_(self, call):
            call = super().visit_call_(call)
            if call.op != tvm.ir.Op.get("relax.matmul") or "vocab_size" not in str(call.ty):
                return call
            return relax.op.add(call, relax.const(100.0, "float32"))

    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = Shifted(mod).visit_expr(func)
    return result


def fusion_pipeline(target, **facts):
    @tvm.transform.module_pass(opt_level=0, name="fusion_by_hand")
    def pipeline(mod, _ctx):
        with target:
            for phase in phases(target, **facts).values():
                mod = tvm.transform.Sequential(phase)(mod)
        return mod

    return pipeline
