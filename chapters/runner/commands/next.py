"""`python -m chapters next [8]`: the first exercise that is left to solve here, of all or from a chapter on."""

from __future__ import annotations

from chapters.runner.course import Chapter, chapters
from chapters.runner.course import chapter as find
from chapters.runner.earlier import YOURS, describe_owner, describe_owners, join_with_and
from chapters.runner.states import chosen_path, find_next_exercise, states
from chapters.runner.terminal import STATE_WORDS, describe, describe_all_passed

HELP = "the next exercise: where it is, what it asks; `next 8` begins at chapter 8"


def arguments(parser) -> None:
    parser.add_argument(
        "chapter", nargs="?", help="begin here, even if earlier chapters are unsolved"
    )


def run(options) -> int:
    """Print where the next exercise is and the commands that belong to it."""
    first = find(options.chapter) if options.chapter else chapters()[0]
    left = find_next_exercise(first.number)
    if left is None:
        said = describe_all_passed(chosen_path())
        print(f"From chapter {first.number} on: {said}" if first.number else said)
        return 0
    chapter, exercise = left
    if said := _describe_skipped(first):
        print(f"{said}\n")
    print(describe(chapter, exercise))
    print(f"     state: {STATE_WORDS[states(chapter)[exercise.id]]}")
    print(f"     python -m chapters check {exercise.id}")
    print(f"     python -m chapters hint {exercise.id}")
    return 0


def _describe_skipped(first: Chapter) -> str:
    """What to say of unsolved chapters before `first`, and of whose code `first` uses; "" if there are none."""
    before = [chapter for chapter in chapters() if chapter.number < first.number]
    unsolved = [c.number for c in before if describe_owner(c.number) != YOURS]
    if not unsolved:
        return ""
    said = f"Beginning at chapter {first.number}, although {_describe_chapters(unsolved)} not solved yet."
    uses = (
        describe_owners(first.needs) if first.needs else f"Chapter {first.number} uses none of it."
    )
    return f"{said} {uses}"


def _describe_chapters(numbers: list[int]) -> str:
    """ "chapters 0 to 3 and 5 are"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = []
    for run in runs:
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    one = len(numbers) == 1
    return f"chapter{'' if one else 's'} {join_with_and(texts)}{' is' if one else ' are'}"
