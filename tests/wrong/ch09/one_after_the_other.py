"""9.11: all rounds of one call, then of the next."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.11"
WHAT = "each call is measured for itself, one after the other"
WHY = (
    "A machine that gets slower in the meantime makes the last one slow. In turns, all of them meet "
    "the same machine."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Measure it”"


def interleaved(calls, rounds, clock=time.perf_counter):
    for call in calls.values():
        call()
    medians = {}
    for name, call in calls.items():
        times = []
        for _ in range(rounds):
            start = clock()
            call()
            times.append(clock() - start)
        medians[name] = statistics.median(times)
    return medians
