"""Schedule rules, passes that schedule kernels, and what both rewrite kernels with.

A schedule rule schedules one kernel or declines; `dl.ApplyDefaultSchedule` tries rules in order. Its name is a noun,
like dlight's own `Matmul` and `GEMV`. A pass's name is a verb.
"""
