"""9.11: the clock that is given is not used."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.11"
WHAT = "times are taken by another clock than the one that was given"
WHY = "A function that is given its clock can be tested on a machine that never was. time.perf_counter is the default."
READ = "chapters/ch09_the_compiler/lesson.md, “Measure it”"


def interleaved(calls, rounds, clock=time.perf_counter):
    names = list(calls)
    taken = {name: [] for name in names}
    for turn in range(-1, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            calls[name]()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}
