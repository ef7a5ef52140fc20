"""Passes and schedule rules around the learner's, replacements for faulty ones of TVM, and memory plans.

A pass rewrites a module; its name is a verb, and so is its file's. A schedule rule schedules one kernel or declines;
`dl.ApplyDefaultSchedule` tries rules in order. Its name is a noun, like dlight's own `Matmul` and `GEMV`.
"""
