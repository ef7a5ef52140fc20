"""Two catalogued mistakes in one answer are both named, but only if they explain everything that it does wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chapters.ch02_attach_metadata import checks as ch02
from chapters.runner import diagnose as module
from chapters.runner.course import chapter
from chapters.runner.diagnose import Diagnoser

SCORES = 8 * 12 * 64 * 4  # bytes of the attention scores, which are not the largest storage
WEIGHT = 128 * 2 * 352 * 4


def _like(largest: int, at_16: int, symbolic: int) -> dict[str, str]:
    said = {"largest": largest, "largest_at_batch_16": at_16, "symbolic": symbolic}
    answer = SimpleNamespace(predicted_storage=lambda: said)
    return Diagnoser().diagnose(ch02, chapter(2), "2.9", answer)


def test_one_mistake_is_named_alone():
    assert _like(SCORES, 2 * SCORES, 1)["name"] == "largest_is_an_activation"
    assert _like(WEIGHT, WEIGHT, 0)["name"] == "everything_is_bounded"
    assert _like(WEIGHT, WEIGHT, 1) == {}


def test_two_mistakes_are_both_named():
    like = _like(SCORES, 2 * SCORES, 0)
    assert like["name"] == "everything_is_bounded and largest_is_an_activation"
    both = "two mistakes at once: no storage is taken to stay symbolic; and "
    assert like["what"].startswith(both)
    assert "vocab_size is not" in like["why"] and "transposes its weight" in like["why"]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param((SCORES, WEIGHT, 0), id="the first mistake shows in one of its two places"),
        pytest.param((SCORES, 2 * SCORES, 7), id="something is left that neither explains"),
    ],
)
def test_what_is_not_explained_is_not_named(said):
    assert _like(*said) == {}


def test_no_pair_is_looked_for_without_time(monkeypatch):
    monkeypatch.setattr(module, "PAIR_SECONDS", -1)
    assert _like(SCORES, 2 * SCORES, 0) == {}
    assert _like(WEIGHT, WEIGHT, 0)["name"] == "everything_is_bounded"
