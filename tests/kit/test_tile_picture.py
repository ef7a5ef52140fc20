"""The picture of a tiled matmul says what its IR says."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import naive_matmul, shared_matmul
from chapters.kit.draw.tile_picture import tile_picture
from chapters.kit.gpu.gpu_matmul import matmul_bias

LAYER = matmul_bias(64, 96, 40, "float32")
TILE = ThreadTile(32, 48, 8, 2, 4)


def test_facts_are_those_of_the_tile():
    picture = tile_picture(shared_matmul(LAYER, TILE))
    assert picture.size == (64, 96, 40) and picture.grid == (2, 2) and picture.tile == (32, 48)
    assert picture.threads == TILE.threads == (16, 12) and picture.own == (2, 4)
    assert (picture.turns, picture.steps) == (5, 8)
    assert picture.shared == ("A_shared", "B_shared")


def test_without_shared_memory_it_says_so():
    assert "at every step" in str(tile_picture(naive_matmul(LAYER, TILE)))


def test_the_drawing_is_well_formed_and_inside_its_frame():
    drawn = tile_picture(shared_matmul(LAYER, TILE)).figure().replace("<br>", "<br/>")
    root = ElementTree.fromstring(drawn).find("div/svg")
    width, height = (float(n) for n in root.get("viewBox").split()[2:])
    boxes = [e.attrib for e in root.iter() if e.tag.endswith("rect")]
    assert len(boxes) > 6
    for box in boxes:
        assert float(box["x"]) >= 0 and float(box["x"]) + float(box["width"]) <= width
        assert float(box["y"]) >= 0 and float(box["y"]) + float(box["height"]) <= height
    assert "sums in registers" in root.get("aria-label")


def test_what_is_not_tiled_is_refused():
    with pytest.raises(ValueError, match="no tile"):
        tile_picture(LAYER)
