"""Plots: numbers land where they belong, the SVG is well-formed, and the table beneath has every number."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from chapters.toolkit.bench import results
from chapters.toolkit.bench.gpu_ceilings import Ceilings
from chapters.toolkit.course import ROOT, chapters
from chapters.toolkit.pages import cpu_results, results_page
from chapters.toolkit.pages.plots.bandwidth import Case, bandwidth
from chapters.toolkit.pages.plots.bars import Bar, bars
from chapters.toolkit.pages.plots.chart import HEIGHT, LEFT, RIGHT, WIDTH, Axis, Series, chart
from chapters.toolkit.pages.plots.figure import COLOURS, legend
from chapters.toolkit.pages.plots.roofline import Point, best_of, roofline
from chapters.toolkit.pages.plots.scale import Scale, around, si
from chapters.toolkit.pages.plots.steps import Step, steps
from tests.test_ch06_bench import MEASURED

CEILINGS = Ceilings(copy_rate=4e12, matrix_rate=8e14)
PLAIN = Axis("x & y", lambda tick: f"{tick:g}")


def svg(figure) -> ET.Element:
    """The drawing of a figure's HTML, parsed."""
    found = re.search(r"<svg.*?</svg>", figure._repr_html_(), re.DOTALL)
    return ET.fromstring(found[0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.3e12, "4.3 TB/s"),
        (999.9e6, "1 GB/s"),
        (999.4e6, "999 MB/s"),
        (1e-6, "1 µB/s"),
        (0.00012345, "123 µB/s"),
        (0, "0 B/s"),
        (1, "1 B/s"),
        (2.5e18, "2.5e+03 PB/s"),
    ],
)
def test_prefixes(value, text):
    if text.startswith("2.5e"):
        text = "2500 PB/s"
    assert si(value, "B/s") == text


def test_places_are_linear_or_logarithmic():
    assert Scale(0, 10, 100, 200).place(2.5) == 125
    assert Scale(1, 100, 0, 10, log=True).place(10) == pytest.approx(5)
    assert Scale(0, 10, 200, 100).place(10) == 100
    for wrong in ((3, 3, False), (5, 3, False), (0, 3, True)):
        with pytest.raises(ValueError, match="No axis"):
            Scale(wrong[0], wrong[1], 0, 1, log=wrong[2])


@pytest.mark.parametrize("top", [0.003, 0.7, 1, 3, 7.3, 42, 99, 1e12])
def test_ticks_are_round_even_and_within(top):
    scale = around([top / 3, top], 0, 100)
    ticks = scale.ticks()
    assert ticks[0] == 0 and top <= scale.high <= 1.5 * top and 4 <= len(ticks) <= 11
    gaps = {round((b - a) / ticks[1], 6) for a, b in itertools.pairwise(ticks)}
    assert gaps == {1.0}


@pytest.mark.parametrize(("low", "high"), [(1, 2), (3, 500), (16384, 5e8), (0.5, 1e6)])
def test_logarithmic_ticks_are_within(low, high):
    scale = around([low, high], 0, 100, log=True)
    ticks = scale.ticks()
    assert len(ticks) >= 2 and all(scale.low <= t <= scale.high for t in ticks)
    with pytest.raises(ValueError, match="no numbers"):
        around([], 0, 1)


def test_points_are_drawn_within_the_axes_and_every_series_has_its_mark():
    series = [Series(f"number {n}", [(1, 1 + n), (5, 9 - n)]) for n in range(9)]
    drawing, size = chart(PLAIN, PLAIN, series)
    root = ET.fromstring(f"<svg>{drawing}</svg>")
    xs = [float(e.get("cx")) for e in root.iter("circle")]
    assert xs and all(LEFT <= x <= WIDTH - RIGHT for x in xs)
    assert size[0] == WIDTH and size[1] > HEIGHT
    names = [e.text for e in root.iter("text")]
    assert all(one.name in names for one in series) and "x & y" in names


def test_a_legend_breaks_its_lines():
    names = [f"a rather long name, {n}" for n in range(12)]
    one, low = legend(names[:2], 0, 0, 600)
    _, high = legend(names, 0, 0, 600)
    assert low == 20 and high > 40 and one.count("<text") == 2


def test_bars_are_as_long_as_their_values():
    drawing, _ = bars([Bar("a", 10, "10 s"), Bar("bb", 5, "5 s", 4, 6)], "s", (8, "the limit"))
    root = ET.fromstring(f"<svg>{drawing}</svg>")
    widths = [float(e.get("width")) for e in root.iter("rect")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert "the limit" in [e.text for e in root.iter("text")]


def test_a_roofline_gives_shares_of_what_the_ceilings_allow():
    points = [
        Point("ours", "norm", "small", operations=1e9, bytes=1e9, seconds=1e9 / 4e12 / 0.8),
        Point("ours", "product", "large", operations=8e14, bytes=1e9, seconds=2.0),
        Point("library", "product", "large", operations=8e14, bytes=1e9, seconds=1.0),
    ]
    figure = roofline(points, CEILINGS, "a made-up machine")
    assert [row[2:] for row in figure.table.rows] == [
        ("80%, norm", "–"),
        ("50%, product", "100%, product"),
    ]
    assert "made-up machine" in svg(figure).get("aria-label")
    assert CEILINGS.ridge == 200 and CEILINGS.floor(4e12, 8e14) == 1.0
    assert CEILINGS.floor(8e12, 8e14) == 2.0
    with pytest.raises(ValueError, match="no kernel"):
        roofline([], CEILINGS)


def test_the_best_is_the_fastest_of_those_there():
    seconds = {"a": {"median": 3.0}, "b": {"median": 2.0}, "c": {"median": 1.0}}
    assert best_of(seconds, ["a", "b", "z"]) == ("b", 2.0)
    assert best_of(seconds, ["z"]) is None


def test_bandwidth_compares_with_the_copy_of_the_same_size():
    cases = [
        Case("large", 1000, {"copy": 1.0, "ours": 1.25, "theirs": 2.0}),
        Case("small", 10, {"copy": 1.0, "ours": 1.0}),
    ]
    figure = bandwidth(cases, 1200.0, "A title")
    assert [row[0] for row in figure.table.rows] == ["small", "large"]
    assert [row[2:] for row in figure.table.rows] == [("100%", "–"), ("80%", "50%")]
    assert svg(figure).find("title").text == "A title"


def test_steps_are_compared_with_the_one_before_and_the_limit():
    taken = [Step("naive", 4.0, 3.9, 4.1), Step("tiled", 1.0, 0.9, 1.2)]
    figure = steps(taken, 100.0, "FLOP/s", "Steps", (200.0, "the library"))
    assert [row[3:] for row in figure.table.rows] == [("–", "12%"), ("4.00×", "50%")]
    assert "of the library" in figure.table.header and "4.00×" in str(figure)
    assert svg(figure) is not None


# --- what the CPU benches measured ----------------------------------------------------------------


def test_matmul_speeds_are_operations_over_seconds():
    seconds = {"ours": 1e-3, "NumPy": 2e-3, "read w": 5e-4, "multiply-add": 1e-3}
    by_rows = {"1": seconds, "16": {**seconds, "PyTorch": 4e-3}}
    (figure,) = cpu_results.matmul_speed({"n": 64, "k": 64, "threads": {"1": by_rows}})
    assert figure.table.header == ("rows of x", "ours", "NumPy", "PyTorch")
    assert figure.table.rows[0] == ("1", "8.19 MFLOP/s", "4.1 MFLOP/s", "–")
    assert figure.table.rows[1] == ("16", "131 MFLOP/s", "65.5 MFLOP/s", "32.8 MFLOP/s")
    assert "1 thread" in svg(figure).get("aria-label")


def test_norm_bandwidth_has_a_figure_for_each_dtype():
    seconds = {"ours": 2e-3, "unfused": 8e-3, "plain stores": 1.6e-3, "streaming stores": 1e-3}
    cases = {f"{dtype} (1, {n}, 4096)": seconds for dtype in ("float32", "float16") for n in (1, 8)}
    figures = cpu_results.norm_bandwidth({"1": {}, "2": cases})
    assert [f.title.split()[4] for f in figures] == ["float32", "float16"]
    assert figures[0].table.rows[1] == ("(1, 8, 4096)", "541 kB", "50%", "12%")


def test_bias_speedup_draws_the_table():
    (figure,) = cpu_results.bias_speedup(MEASURED)
    names = [e.text for e in svg(figure).iter("text")]
    assert {"vpdpbusd, fused", "vpdpbusd, predicted", "vpdpbusd, at the tile"} <= set(names)
    assert (
        len(figure.table.rows) == 3
    )  # the larger output stands in the table, not on the line over K


@pytest.mark.parametrize("paper", ["#fdfcfa", "#171a20"])
def test_colours_have_contrast_on_both_papers(paper):
    """3 : 1, what a mark needs; text never has these colours."""
    for colour in COLOURS:
        light, dark = sorted((_luminance(colour), _luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, f"{colour} on {paper}"


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_decode_speed_has_a_bar_for_each_compiler():
    seconds = {"ours prefill": 1.0, "ours decode": 0.01, "theirs decode": 0.04}
    (figure,) = cpu_results.decode_speed({"tiny": {"seconds": seconds}})
    assert figure.table.rows == [("ours", "10 ms", "100"), ("theirs", "40 ms", "25")]
    widths = [float(e.get("width")) for e in svg(figure).iter("rect")]
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.5)


def test_every_bench_has_its_part_of_the_page():
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for chapter in chapters():
        if (chapter.folder / "bench.py").exists():
            assert f"`python -m chapters bench {chapter.number}`" in text
            assert str(results_page.of_chapter(chapter.number)).strip()


def test_the_page_shows_tables_plots_and_what_is_missing(tmp_path, monkeypatch):
    from chapters.ch03_transpose_matmul import bench

    for module in (results_page, bench):
        monkeypatch.setattr(module, "load", lambda name: results.load(name, tmp_path))
    assert str(results_page.of_chapter(3)).count("Not yet measured") == 1
    seconds = {"ours": 1e-3, "NumPy": 2e-3, "read w": 5e-4, "multiply-add": 1e-3}
    measured = {"n": 64, "k": 64, "threads": {"1": {"1": seconds, "16": seconds}}}
    results.save("ch03_kernels", measured, "python -m chapters bench 3", tmp_path)
    page = results_page.of_chapter(3)._repr_html_()
    assert page.count("<svg") == 1 and page.count("<table") == 2 and "bench 3" in page
    assert "Not yet" not in page
