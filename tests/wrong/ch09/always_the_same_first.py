"""9.11: every round has one order."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.11"
WHAT = "every round begins with the same call"
WHY = (
    "What runs after the largest finds the caches as that one left them, in every round: not chance, "
    "but a bias."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Measure it”"


def interleaved(calls, rounds, clock=time.perf_counter):
    for call in calls.values():
        call()
    taken = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            taken[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in taken.items()}
