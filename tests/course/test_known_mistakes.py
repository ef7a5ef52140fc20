"""A known mistake is named if it explains everything that an answer does; of two at once, none is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chapters.ch02_attach_metadata import checks as ch02
from chapters.runner.course import chapter
from chapters.runner.known_mistakes import Diagnoser

SCORES = 8 * 12 * 64 * 4  # bytes of the attention scores, which are not the largest storage
WEIGHT = 128 * 2 * 352 * 4


def _like(largest: int, at_16: int, symbolic: int) -> dict[str, str]:
    said = {"largest": largest, "largest_at_batch_16": at_16, "symbolic": symbolic}
    answer = SimpleNamespace(predicted_storage=lambda: said, _text=str(said))
    return Diagnoser().diagnose(ch02, chapter(2), "2.4", answer)


def test_a_mistake_is_named():
    assert _like(SCORES, 2 * SCORES, 1)["name"] == "largest_is_an_activation"
    assert _like(WEIGHT, WEIGHT, 0)["name"] == "everything_is_bounded"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param((WEIGHT, WEIGHT, 1), id="nothing is wrong"),
        pytest.param((SCORES, 2 * SCORES, 0), id="two known mistakes"),
        pytest.param((SCORES, WEIGHT, 1), id="the mistake shows in one of its two places"),
    ],
)
def test_what_is_not_explained_is_not_named(said):
    assert _like(*said) == {}
