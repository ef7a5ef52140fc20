"""`python -m chapters`: where the learner is, read from the last checks without running any."""

from __future__ import annotations

from chapters.runner.course import chapters
from chapters.runner.states import states
from chapters.runner.terminal import STATE_WORDS, bar, describe

HELP = "where am I: one bar per chapter, the next exercise, minutes left"


def run(_options) -> int:
    """Print a bar a chapter, the minutes left and the next exercise."""
    left, upcoming = 0, None
    width = max(len(chapter.title) for chapter in chapters())
    for chapter in chapters():
        now = states(chapter)
        done = sum(state == "passed" for state in now.values())
        left += sum(e.minutes for e in chapter.exercises if now[e.id] != "passed")
        print(f"{chapter.number}  {chapter.title:<{width}} {bar(done, len(now))} {done}/{len(now)}")
        for exercise in chapter.exercises:
            if now[exercise.id] in ("failed", "changed"):
                print(f"     {exercise.id} {STATE_WORDS[now[exercise.id]]}")
            if upcoming is None and now[exercise.id] != "passed":
                upcoming = (chapter, exercise)
    if upcoming is None:
        diff = "python -m chapters diff 0.1"
        print(f"\nEvery exercise passes. `{diff}` compares yours with the reference.")
        return 0
    print(f"\nAbout {left} minutes of exercises left. Next:\n")
    print(describe(*upcoming))
    print(f"     then python -m chapters check {upcoming[1].id}")
    return 0
