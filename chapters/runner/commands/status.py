"""`python -m chapters`: where the learner is, read from the last checks without running any."""

from __future__ import annotations

from chapters.runner.course import PATHS, chapters
from chapters.runner.engine import FINE
from chapters.runner.learner_file import describe_faults, find_forgotten_files
from chapters.runner.progress import data_folder
from chapters.runner.states import chosen_path, find_next_exercise, states
from chapters.runner.terminal import STATE_WORDS, bar, describe, describe_all_passed, relative

HELP = "where am I: one bar per chapter, the next exercise, minutes left"


def run(_options) -> int:
    """Print a bar per chapter, the minutes left and the next exercise."""
    minutes, path = 0, chosen_path()
    width = max(len(chapter.title) for chapter in chapters())
    for chapter in chapters():
        now, own = states(chapter), chapter.exercises_on(path)
        done = sum(now[exercise.id] == "passed" for exercise in own)
        minutes += sum(e.minutes for e in own if now[e.id] not in FINE)
        if own:
            progress = f"{bar(done, len(own))} {done}/{len(own)}"
            print(f"{chapter.number:>2}  {chapter.title:<{width}} {progress}")
        lost = describe_faults(chapter) if chapter.stub.exists() else ""
        if lost:
            print(f"     !! {lost}")
        for exercise in chapter.exercises if not lost else ():
            if now[exercise.id] in ("failed", "changed", "outdated", "skipped"):
                print(f"     {exercise.id} {STATE_WORDS[now[exercise.id]]}")
    for path in find_forgotten_files():
        print(
            f"!! {relative(path)} has answers, and the course has no such file any more: copy them to where they "
            "belong now."
        )
    print(f"\nCopies of your answers and your progress are in {data_folder()}.")
    left = find_next_exercise()
    if left is None:
        diff = "python -m chapters diff 0.1"
        print(f"\n{describe_all_passed(path)} `{diff}` compares yours with the reference.")
        return 0
    of_path = "" if path == PATHS[-1] else f" of the path `{path}`"
    print(f"\nAbout {minutes} minutes of exercises{of_path} left. Next:\n")
    print(describe(*left))
    print(f"     then python -m chapters check {left[1].id}")
    return 0
