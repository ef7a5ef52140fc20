"""Plots: what the kept output of docs/results.md does not say of them: colours, shares, labels, what is missing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from chapters.kit.bench import results
from chapters.kit.draw.table import format_si
from chapters.runner.course import ROOT, chapters
from docs.pages import plots, results_page
from docs.pages.course_map import import_from_chapter

BENCHES = [one.number for one in chapters() if (one.folder / "bench.py").exists()]


def parse_svg(figure) -> ET.Element:
    """The drawing of a figure's HTML, parsed."""
    found = re.search(r"<svg.*?</svg>", figure._repr_html_(), re.DOTALL)
    return ET.fromstring(found[0])


SPEEDS = {4.3e12: "4.3 TB/s", 999.9e6: "1 GB/s", 999.4e6: "999 MB/s", 2.5e18: "2500 PB/s"}
SPEEDS |= {1: "1 B/s", 0: "0 B/s", 0.00012345: "123 µB/s", 1e-6: "1 µB/s"}


@pytest.mark.parametrize(("value", "text"), SPEEDS.items())
def test_prefixes(value, text):
    assert format_si(value, "B/s") == text


def list_texts(figure) -> list[str]:
    return ["".join(e.itertext()) for e in parse_svg(figure).iter("text")]


def test_each_size_has_its_label():
    sizes = (134_000_000, 537_000_000)
    case = {"dtype": "float32", "shape": [8], "seconds": {"copy": 1.0}}
    cases = [{"bytes": size, **case} for size in sizes]
    figure = plots.draw_bandwidth(cases, "A <made-up> title", "", "")
    assert {"134 MB", "537 MB"} <= set(list_texts(figure))
    assert parse_svg(figure).get("aria-label") == "A <made-up> title"


@pytest.mark.parametrize("paper", ["#fdfcfa", "#171a20"])
def test_colours_have_contrast_on_both_papers(paper):
    """3 : 1, what a mark needs; text never has these colours."""
    for colour in plots.COLOURS:
        light, dark = sorted((_compute_luminance(colour), _compute_luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, f"{colour} on {paper}"


def _compute_luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_baseline_has_one_colour_on_all_plots_and_ours_is_nobody_elses():
    assert (
        plots.choose_colour("ours", 3)
        == plots.choose_colour("fusion_by_hand, float32 activations", 0)
        == plots.OURS
    )
    assert plots.choose_colour("Transformers, torch.compile", 1) == plots.choose_colour(
        "torch.compile", 5
    )
    assert plots.OURS not in [plots.choose_colour(f"step {n}", n) for n in range(20)]


def test_every_bench_has_its_part_of_the_page_and_each_figure_says_something():
    """In letters that a phone shows: of its 390 pixels the page leaves 358 to a drawing."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for number in BENCHES:
        assert f"`python -m chapters bench {number}`" in text
        for drawn in results_page.show_chapter(number).parts:
            if not isinstance(drawn, plots.Figure):
                continue
            assert re.search(r"\d", drawn.claim) and drawn.claim.endswith("."), drawn.title
            if "<svg" not in drawn.drawing:
                continue  # bars are HTML, in the letters of the page
            width = float(re.search(r'viewBox="0 0 ([\d.]+)', drawn.drawing)[1])
            sizes = re.findall(r"font-size: ([\d.]+)px", drawn.drawing)
            assert min(map(float, sizes)) * 358 / width >= 9, drawn.title


@pytest.mark.parametrize("number", BENCHES)
def test_what_was_not_measured_says_how(number, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    bench = import_from_chapter(number)
    for told in (results_page.show_chapter(number), *map(bench.show_results, bench.TABLES)):
        assert "Not yet measured" in str(told) and "python -m chapters bench" in str(told)


def test_the_page_shows_tables_plots_and_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    seconds = {"ours": 1e-3, "NumPy": 2e-3, "read w": 5e-4, "multiply-add": 1e-3}
    case = {"n": 64, "k": 64, "threads": 1, "seconds": seconds}
    measured = {"cases": [{"rows": rows, **case} for rows in (1, 16)]}
    results.save("ch05_kernels", measured, "python -m chapters bench 5", tmp_path)
    page = results_page.show_chapter(5)._repr_html_()
    assert page.count("<svg") == 1 and page.count("<table") == 2 and "bench 5" in page
    assert "Not yet" not in page
