"""9.11: the mean is taken."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.11"
WHAT = "the mean is taken and not the median"
WHY = "One interruption of a second weighs as much as all other rounds together."
READ = "chapters/ch09_the_compiler/lesson.md, “Measure it”"


def interleaved(calls, rounds, clock=time.perf_counter):
    for call in calls.values():
        call()
    taken = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            start = clock()
            calls[name]()
            taken[name].append(clock() - start)
    return {name: statistics.mean(times) for name, times in taken.items()}
