"""Which exercises the chat's pipeline uses, for `chat --without` and `chat --explain`: by pass, and by exercise."""

from __future__ import annotations

MULTIPLY = "11.4"  # a function in place of a pass: without it, one weight is multiplied at a time
# an exercise, or a chapter: the passes that do nothing without it
PASSES_OF = {
    "3": ("FuseTransposeMatmul",),
    "4": ("FuseAddRMSNorm",),
    "6": ("FuseEpilogues",),
    "7": ("FuseEpilogues",),
    "9.1": ("BindKnownSizes",),
    "9.3": ("FuseEpilogues",),
    "9.4": ("ScheduleMatmuls",),
    "11.3": ("FuseDequantizeTake", "FuseDequantizeMatmul"),
}


def passes_without(exercise: str) -> tuple[str, ...]:
    """The names of the passes that are left out if `exercise` is answered by nothing; none for "" and MULTIPLY.

    Raises ValueError in one sentence if the pipeline does not use the exercise, or does not work without it.
    """
    if exercise in ("", MULTIPLY):
        return ()
    found = PASSES_OF.get(exercise) or PASSES_OF.get(exercise.split(".")[0])
    if found is None:
        known = ", ".join(
            sorted([*PASSES_OF, MULTIPLY], key=lambda one: [*map(int, one.split("."))])
        )
        raise ValueError(
            f"The model cannot be compiled without exercise {exercise}, or does not use it; --without takes one of "
            f"{known}, where a chapter's number stands for each exercise of it."
        )
    return found


def exercise_of(pass_name: str) -> str | None:
    """The exercise or chapter whose answer the pass runs; None for a pass that is given."""
    if pass_name == "ScheduleCodedProducts":
        return f"11.3, {MULTIPLY}"
    mine = [exercise for exercise, names in PASSES_OF.items() if pass_name in names]
    return mine[-1] if mine else None
