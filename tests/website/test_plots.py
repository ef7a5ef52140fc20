"""Plots: numbers land where they belong, the SVG is well-formed, and the table beneath has every number."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from chapters.kit.bench import results
from chapters.kit.bench.gpu_ceilings import Ceilings, Point, best_of
from chapters.kit.draw.bars import Bar
from chapters.kit.draw.table import Table, si
from chapters.runner.course import ROOT, chapters
from docs.pages import cpu_results, plots, results_page
from tests.ch06.test_bench import MEASURED

CEILINGS = Ceilings(copy_rate=4e12, matrix_rate=8e14)
TABLE = Table(("a",), [("b",)])


def svg(figure) -> ET.Element:
    """The drawing of a figure's HTML, parsed."""
    found = re.search(r"<svg.*?</svg>", figure._repr_html_(), re.DOTALL)
    return ET.fromstring(found[0])


SPEEDS = {4.3e12: "4.3 TB/s", 999.9e6: "1 GB/s", 999.4e6: "999 MB/s", 2.5e18: "2500 PB/s"}
SPEEDS |= {1: "1 B/s", 0: "0 B/s", 0.00012345: "123 µB/s", 1e-6: "1 µB/s"}


@pytest.mark.parametrize(("value", "text"), SPEEDS.items())
def test_prefixes(value, text):
    assert si(value, "B/s") == text


def texts(figure) -> list[str]:
    return ["".join(e.itertext()) for e in svg(figure).iter("text")]


def test_a_drawing_takes_the_pages_colours_and_font_and_is_the_same_in_every_build():
    def draw(axes) -> None:
        plots.draw_series(axes, {f"number {n}": [(1, 1 + n), (5, 9 - n)] for n in range(9)})
        axes.set_xlabel("x & y")

    one = plots.figure(draw, "A <title>", "", TABLE)
    assert one.drawing == plots.figure(draw, "A <title>", "", TABLE).drawing
    assert (
        plots.INK not in one.drawing
        and "currentColor" in one.drawing
        and "DejaVu" not in one.drawing
    )
    assert "<metadata" not in one.drawing and "width=" not in one.drawing[: one.drawing.index(">")]
    assert svg(one).get("aria-label") == "A <title>" and "x & y" in texts(one)
    assert all(f"number {n}" in texts(one) for n in range(9))


def test_two_drawings_on_a_page_share_no_id():
    def draw(axes) -> None:
        plots.draw_series(axes, {"a": [(1, 2), (2, 3)]})

    drawn = [plots.figure(draw, title, "", TABLE).drawing for title in "AB"]
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in drawn]
    assert ids[0] and not ids[0] & ids[1]


def widths(figure) -> list[float]:
    """How long the bars are, as shares of the longest."""
    return [float(length) for length in re.findall(r"--w:([\d.]+)", figure.drawing)]


def test_bars_are_as_long_as_their_values_and_a_line_crosses_them_at_the_limit():
    entries = [Bar("a", 10, "10 s"), Bar("ours", 5, "5 s")]
    drawn = plots.bars(entries, "s", "Bars", "", TABLE, (8, "the limit"))
    assert widths(drawn) == [1, 0.5] and re.findall(r"--m:([\d.]+)", drawn.drawing) == [
        "0.8000",
        "1.6000",
    ]
    assert "s; the line: the limit" in drawn.drawing
    assert '<li class="ours"><span>this course</span>' in drawn.drawing


def test_a_roofline_gives_shares_of_what_the_ceilings_allow():
    points = [
        Point("ours", "norm", "small", operations=1e9, bytes=1e9, seconds=1e9 / 4e12 / 0.8),
        Point("ours", "product", "large", operations=8e14, bytes=1e9, seconds=2.0),
        Point("library", "product", "large", operations=8e14, bytes=1e9, seconds=1.0),
    ]
    figure = plots.roofline(points, CEILINGS, "a made-up machine")
    shares = [row[2:] for row in figure.table.rows]
    assert shares == [("80%, norm", "–"), ("50%, product", "100%, product")]
    assert "made-up machine" in svg(figure).get("aria-label")
    assert CEILINGS.ridge == 200 and CEILINGS.floor(4e12, 8e14) == 1.0
    assert CEILINGS.floor(8e12, 8e14) == 2.0
    with pytest.raises(ValueError, match="no kernel"):
        plots.roofline([], CEILINGS)


def test_the_best_is_the_fastest_of_those_there():
    seconds = {"a": {"median": 3.0}, "b": {"median": 2.0}, "c": {"median": 1.0}}
    assert best_of(seconds, ["a", "b", "z"]) == ("b", 2.0)
    assert best_of(seconds, ["z"]) is None


def test_bandwidth_compares_with_the_copy_of_the_same_size():
    cases = [
        plots.Size("large", 1000, {"copy": 1.0, "ours": 1.25, "theirs": 2.0}),
        plots.Size("small", 10, {"copy": 1.0, "ours": 1.0}),
    ]
    figure = plots.bandwidth(cases, 1200.0, "A title")
    assert [row[0] for row in figure.table.rows] == ["small", "large"]
    assert [row[2:] for row in figure.table.rows] == [("100%", "–"), ("80%", "50%")]
    assert svg(figure).get("aria-label") == "A title"


def test_two_sizes_close_together_have_labels_beside_them():
    cases = [plots.Size(str(size), size, {"copy": 1.0}) for size in (134_000_000, 537_000_000)]
    assert {"100 MB", "1 GB"} <= set(texts(plots.bandwidth(cases, None, "A title")))


def test_steps_are_compared_with_the_one_before_and_the_limit():
    taken = {"naive": {"median": 4.0, "low": 3.9, "high": 4.1}, "tiled": {"median": 1.0}}
    figure = plots.steps(taken, 100.0, "Steps", (200.0, "the library"))
    assert [row[3:] for row in figure.table.rows] == [("–", "12%"), ("4.00×", "50%")]
    assert "of the library" in figure.table.header
    assert figure.table.rows[0][1] == "4 s (3.9 s to 4.1 s)" and widths(figure) == [0.125, 0.5]


# --- what the CPU benches measured ----------------------------------------------------------------


def test_matmul_speeds_are_operations_over_seconds():
    seconds = {"ours": 1e-3, "NumPy": 2e-3, "read w": 5e-4, "multiply-add": 1e-3}
    by_rows = {"1": seconds, "16": {**seconds, "PyTorch": 4e-3}}
    (figure,) = cpu_results.matmul_speed({"n": 64, "k": 64, "threads": {"1": by_rows}})
    assert figure.table.header == ("rows of x", "this course", "NumPy", "PyTorch")
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
    figure = cpu_results.bias_speedup(MEASURED)[0]
    names = texts(figure)
    assert {"this course, fused", "predicted", "this course, bias added per tile"} <= set(names)
    # the larger output stands in the table, not on the line over K
    assert len(figure.table.rows) == 3


@pytest.mark.parametrize("paper", ["#fdfcfa", "#171a20"])
def test_colours_have_contrast_on_both_papers(paper):
    """3 : 1, what a mark needs; text never has these colours."""
    for colour in plots.COLOURS:
        light, dark = sorted((_luminance(colour), _luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, f"{colour} on {paper}"


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_decode_speed_has_a_bar_for_each_compiler():
    seconds = {"ours prefill": 1.0, "ours decode": 0.01, "theirs decode": 0.04}
    (figure,) = cpu_results.decode_speed({"tiny": {"seconds": seconds}})
    assert figure.table.rows == [("this course", "10 ms", "100"), ("theirs", "40 ms", "25")]
    assert widths(figure)[0] == pytest.approx(4 * widths(figure)[1], rel=0.01)


def test_a_contender_has_one_colour_on_all_plots_and_ours_is_nobody_elses():
    assert (
        plots.colour("ours", 3)
        == plots.colour("fusion_by_hand, float32 activations", 0)
        == plots.OURS
    )
    assert plots.colour("Transformers, torch.compile", 1) == plots.colour("torch.compile", 5)
    assert plots.OURS not in [plots.colour(f"step {n}", n) for n in range(20)]


def test_a_claim_says_where_another_is_ahead():
    by_rows = {"1": {"ours": 1.0, "NumPy": 2.0}, "16": {"ours": 2.0, "NumPy": 1.0}}
    seconds = {rows: {**one, "multiply-add": 1.0} for rows, one in by_rows.items()}
    (drawn,) = cpu_results.matmul_speed({"n": 64, "k": 64, "threads": {"1": seconds}})
    assert drawn.claim.endswith("better library at 1 row, and 0.5 times at 16 rows.")


def test_every_bench_has_its_part_of_the_page_and_each_figure_says_something():
    """In letters that a phone shows: of its 390 pixels the page leaves 358 to a drawing."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for chapter in chapters():
        if (chapter.folder / "bench.py").exists():
            assert f"`python -m chapters bench {chapter.number}`" in text
            part = results_page.of_chapter(chapter.number)
            assert str(part).strip()
            for drawn in getattr(part, "parts", ()):
                if not isinstance(drawn, plots.Figure):
                    continue
                assert re.search(r"\d", drawn.claim) and drawn.claim.endswith("."), drawn.title
                if "<svg" not in drawn.drawing:
                    continue  # bars are HTML, in the letters of the page
                width = float(re.search(r'viewBox="0 0 ([\d.]+)', drawn.drawing)[1])
                sizes = re.findall(r"font-size: ([\d.]+)px", drawn.drawing)
                assert min(map(float, sizes)) * 358 / width >= 9, drawn.title


def test_the_page_shows_tables_plots_and_what_is_missing(tmp_path, monkeypatch):
    from chapters.ch05_schedules_and_their_limits import bench

    for module in (results_page, bench):
        monkeypatch.setattr(module, "load", lambda name: results.load(name, tmp_path))
    assert str(results_page.of_chapter(5)).count("Not yet measured") == 1
    seconds = {"ours": 1e-3, "NumPy": 2e-3, "read w": 5e-4, "multiply-add": 1e-3}
    measured = {"n": 64, "k": 64, "threads": {"1": {"1": seconds, "16": seconds}}}
    results.save("ch05_kernels", measured, "python -m chapters bench 5", tmp_path)
    page = results_page.of_chapter(5)._repr_html_()
    assert page.count("<svg") == 1 and page.count("<table") == 2 and "bench 5" in page
    assert "Not yet" not in page
