"""Changes the schedule first and looks at the bystanders afterwards."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "a schedule that is changed although the fusion is refused"
WHY = "Whoever catches the error goes on with the schedule. It must be the one from before."
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def fuse_reduction_epilogue(
    sch: Schedule, reduction_block: SBlockRV | str, epilogue_block: SBlockRV | str
) -> None:
    names = (reduction_block, epilogue_block)
    reduction, epilogue = (sch.get_sblock(n) if isinstance(n, str) else n for n in names)
    site = locate(sch, reduction, epilogue)
    step = check_reduction(site.producer)
    load, addend = split_sum(site.consumer.block, step.buffer)
    axes = match_axes(load.indices, step.indices, site.consumer.block, site.producer.block)
    output, indices = site.consumer.block.body.buffer, site.consumer.block.body.indices
    rewritten = substitute(indices, axes), substitute(addend, axes)
    fusion = Fusion(site, step.buffer, axes, output, *rewritten)
    check_domains(sch, fusion, step)
    fused = fused_block(fusion)
    scope = new_scope(fusion, fused)
    before = Fusion(site, step.buffer, axes, output, *rewritten)
    sch.state.replace(site.scope_sref, scope, {site.scope: scope, fusion.reduction: fused})
    check_bystanders(before)
