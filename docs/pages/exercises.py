"""What the site adds to an exercise in a lesson: its anchor, its facts under the heading, its hints at the end."""

from __future__ import annotations

import re

from docs.pages.blocks import PageError
from docs.pages.fences import in_prose

HEADING = re.compile(r"^### Exercise (?P<id>\d+\.\d+) · (?P<title>.+?)\s*$")
_SECTION = re.compile(r"^#{1,3} ")


def with_exercises(markdown: str, chapter) -> str:
    """The lesson's Markdown with every exercise completed from the chapter's facts.

    Raises PageError where headings and front matter disagree or hints are missing.
    """
    lines = markdown.split("\n")
    prose = in_prose(lines)
    found = [(n, HEADING.match(line)) for n, line in enumerate(lines) if prose[n]]
    headings = [(number, match) for number, match in found if match]
    _agree([(match["id"], match["title"]) for _, match in headings], chapter)
    for number, match in reversed(headings):
        exercise = chapter.exercise(match["id"])
        end = number + 1
        while end < len(lines) and not (prose[end] and _SECTION.match(lines[end])):
            end += 1
        lines[end:end] = ["", *_hints(chapter, exercise), ""]
        lines[number : number + 1] = [
            f"{lines[number].rstrip()} {{ #{exercise.anchor} .exercise }}",
            "",
            f'<span class="kind kind-{exercise.kind}">{exercise.kind}</span> '
            f"{exercise.minutes} minutes · check it with `python -m chapters check {exercise.id}`",
            "{ .exercise-facts }",
            "",
        ]
    return "\n".join(lines)


def _agree(headings: list[tuple[str, str]], chapter) -> None:
    listed = {exercise.id: exercise.title for exercise in chapter.exercises}
    ids = [exercise_id for exercise_id, _ in headings]
    fault = ""
    for exercise_id, title in headings:
        if exercise_id not in listed:
            fault = (
                f"has a heading for exercise {exercise_id}, which its front matter does not list; add it under "
                "`exercises:` or remove the heading"
            )
        elif ids.count(exercise_id) > 1:
            fault = f"has two headings for exercise {exercise_id}; keep one"
        elif _plain(title) != _plain(listed[exercise_id]):
            fault = (
                f"calls exercise {exercise_id} “{title}” in its heading and “{listed[exercise_id]}” in its front "
                "matter; make them the same"
            )
    for exercise_id in set(listed) - set(ids):
        heading = f"`### Exercise {exercise_id} · {listed[exercise_id]}`"
        fault = f"lists exercise {exercise_id} in its front matter and has no heading {heading}; write it"
    if fault:
        raise PageError(f"chapters/{chapter.slug}/lesson.md {fault}.")


def _plain(title: str) -> str:
    return re.sub(r"[`*_\\]", "", title).strip()


def _hints(chapter, exercise) -> list[str]:
    hints = chapter.hints(exercise.id)
    if len(hints) != 3:
        raise PageError(
            f"tests/{chapter.short}/hints.yml has {len(hints)} hints for exercise {exercise.id}; "
            'every exercise has three, as in "2.1": [question, idea, almost the line].'
        )
    lines: list[str] = []
    # each hint lies inside the one before, so a reader opens them in order
    for level, hint in enumerate(hints):
        indent = "    " * level
        lines += ["", f'{indent}??? tip hint "Hint {level + 1}"', ""]
        lines += [f"{indent}    {line}".rstrip() for line in str(hint).strip().split("\n")]
    return lines
