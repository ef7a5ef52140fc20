"""What the site adds to an exercise in a lesson: its anchor, its facts under the heading, its hints at the end."""

from __future__ import annotations

import re

from fences import in_prose
from mkdocs.exceptions import PluginError

HEADING = re.compile(r"^### Exercise (?P<id>\d+\.\d+) · (?P<title>.+?)\s*$")
_SECTION = re.compile(r"^#{1,3} ")


def with_exercises(markdown: str, chapter) -> str:
    """The lesson's Markdown with every exercise completed from the chapter's facts.

    Raises PluginError where headings and front matter disagree or hints are missing.
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
    lesson = f"chapters/{chapter.slug}/lesson.md"
    listed = {exercise.id: exercise.title for exercise in chapter.exercises}
    ids = [exercise_id for exercise_id, _ in headings]
    for exercise_id, title in headings:
        if exercise_id not in listed:
            raise PluginError(
                f"{lesson} has a heading for exercise {exercise_id}, which its front matter does not "
                "list; add it under `exercises:` or remove the heading."
            )
        if ids.count(exercise_id) > 1:
            raise PluginError(f"{lesson} has two headings for exercise {exercise_id}; keep one.")
        if _plain(title) != _plain(listed[exercise_id]):
            raise PluginError(
                f"{lesson} calls exercise {exercise_id} “{title}” in its heading and "
                f"“{listed[exercise_id]}” in its front matter; make them one."
            )
    for exercise_id in listed:
        if exercise_id not in ids:
            raise PluginError(
                f"{lesson} lists exercise {exercise_id} in its front matter and has no heading "
                f"`### Exercise {exercise_id} · {listed[exercise_id]}`; write it."
            )


def _plain(title: str) -> str:
    return re.sub(r"[`*_\\]", "", title).strip()


def _hints(chapter, exercise) -> list[str]:
    hints = chapter.hints(exercise.id)
    if len(hints) != 3:
        raise PluginError(
            f"tests/hints/{chapter.short}.yml has {len(hints)} hints for exercise {exercise.id}; "
            'every exercise has three, as in "2.1": [question, idea, almost the line].'
        )
    lines: list[str] = []
    # each hint lies within the one before: to read the last is to have opened the others
    for level, hint in enumerate(hints):
        indent = "    " * level
        lines += ["", f'{indent}??? tip hint "Hint {level + 1}"', ""]
        lines += [f"{indent}    {line}".rstrip() for line in str(hint).strip().split("\n")]
    return lines
