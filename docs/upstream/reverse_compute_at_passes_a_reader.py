"""reverse_compute_at moves a block behind another block that reads its result.

Should: a ScheduleError, because one of its readers would run first.
Kind: wrong numbers
Upstream: none found
"""

from tvm import s_tir, te

a = te.placeholder((4,), "int32")
doubled = te.compute((4,), lambda i: a[i] * 2, "doubled")
first = te.compute((4,), lambda i: doubled[i] + 1, "first")
other = te.compute((4,), lambda i: doubled[i], "other")
sch = s_tir.Schedule(te.create_prim_func([a, first, other]))
try:
    sch.reverse_compute_at("doubled", sch.get_loops("other")[0])
    text = sch.mod.script()
    fine = text.index('sblock("doubled")') < text.index('sblock("first")')
except s_tir.ScheduleError:
    fine = True
print(
    f"TVM gives `doubled` {'before' if fine else 'behind'} `first`, which reads it; should be before"
)
raise SystemExit(fine)
