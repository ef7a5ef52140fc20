"""Plots of measured numbers: drawn by matplotlib as SVG in the page's colours, with a table of the numbers."""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from chapters.kit.bench.cases import find_fastest, select_medians
from chapters.kit.bench.gpu_ceilings import Ceilings, Point
from chapters.kit.bench.gpu_tables import copy_table, roofline_table
from chapters.kit.bench.results import Parts
from chapters.kit.draw.bars import Bar, Bars
from chapters.kit.draw.table import Table, count_noun, format_duration, format_si, tabulate

COLOURS = ("#c96f12", "#4276d6", "#2f8f5b", "#9a62d3", "#c2486f", "#6b7f8f", "#93820f", "#18929b")
OURS = COLOURS[0]
# how the name of what was measured begins -> its colour, the same on every plot; the longest that fits counts
NAME_COLOURS = {
    "this course": OURS,
    "a copy": COLOURS[5],
    "predicted": COLOURS[5],
    "NumPy": COLOURS[3],
    "PyTorch": COLOURS[4],
    "PyTorch, weights packed": COLOURS[7],
    "Transformers": COLOURS[4],
    "torch.compile": COLOURS[6],
    "Transformers, torch.compile": COLOURS[6],
    "TVM": COLOURS[1],
    "llama.cpp": COLOURS[2],
    "Triton": COLOURS[3],
    "FlashInfer": COLOURS[2],
    "quack": COLOURS[7],
}
# how a name begins in a results file -> what every plot calls it; the longest that fits counts
DISPLAY_NAMES = {
    "ours": "this course",
    "fusion_by_hand": "this course",
    "copy": "a copy",
    "unfused": "TVM, not fused",
    "PyTorch, packed ahead": "PyTorch, weights packed",
    "TVM's zero, default": "TVM's zero, then its default",
    "wide_kernel": "this course, wide_kernel",
    "row_kernel": "this course, row_kernel",
    "dlight": "TVM's dlight",
}
EQUAL = 5e-4  # two times that differ by a smaller share are equal
MARKERS = "os^Dv"  # shapes differ too, for readers who cannot tell the colours apart
Points = Sequence[tuple[float, float]]
INK = "#010203"  # matplotlib writes this colour; the page's text colour replaces it
STYLE = """
.plot svg{max-width:29rem;width:100%;height:auto;margin:0}
.plt text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
"""
_INKED = "text.color axes.edgecolor axes.labelcolor xtick.color ytick.color grid.color"
# inches of 72 units: with letters of 11 units, a phone of 390 pixels still shows 10-pixel letters
SIZE = (5.4, 3.9)
SETTINGS = {
    "svg.fonttype": "none",  # text stays text: it can be read, copied and follows the page's font
    "svg.hashsalt": "plot",  # the same ids in every build
    **dict.fromkeys(_INKED.split(), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.16,
    "font.size": 11,
}


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption and the table of its numbers.

    title: what it shows, also for screen readers. claim: what a reader should see in it, in a sentence.
    """

    drawing: str  # HTML
    title: str
    caption: str
    table: Table
    claim: str = ""
    measured: str = ""  # on what, and when

    def __str__(self) -> str:
        parts = (self.claim, self.title, str(self.table), self.caption, self.measured)
        return "\n\n".join(filter(None, parts))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        title = html.escape(self.title)
        claim = f'<p class="plot-claim">{html.escape(self.claim)}</p>' if self.claim else ""
        beneath = html.escape(" ".join(filter(None, (self.caption, self.measured))))
        return (
            f"{claim}<style data-course>{STYLE}</style>"
            f'<figure class="ir-picture plot">{self.drawing}'
            f"<figcaption><b>{title}.</b> {beneath}</figcaption></figure>"
            f'<details class="plot-numbers"><summary>The numbers of this chart</summary>{self.table._repr_html_()}'
            "</details>"
        )


class Details(Parts):
    """Parts that a reader opens."""

    def __init__(self, summary: str, parts: Iterable[object]):
        super().__init__(parts)
        self.summary = summary

    def __str__(self) -> str:
        return f"{self.summary}\n\n{super().__str__()}"

    def _repr_html_(self) -> str:
        summary = f"<summary>{html.escape(self.summary)}</summary>"
        return f'<details class="plot-numbers">{summary}{super()._repr_html_()}</details>'


def draw_figure(draw: Callable, title: str, caption: str, table: Table, claim: str = "") -> Figure:
    """The figure that `draw(axes)` draws."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas  # without pyplot: no window, no global state

    with matplotlib.rc_context(SETTINGS):
        canvas = Canvas(figsize=SIZE, layout="constrained")
        canvas.patch.set_alpha(0)
        axes = canvas.subplots()
        axes.patch.set_alpha(0)
        draw(axes)
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return Figure(_embed_svg(written.getvalue(), title), title, caption, table, claim)


def display_name(name: str) -> str:
    """The name of what was measured, on every plot: "fusion_by_hand, bias" is "this course, bias"."""
    fitting = [begin for begin in DISPLAY_NAMES if name == begin or name.startswith(f"{begin},")]
    if not fitting:
        return name
    begin = max(fitting, key=len)
    return DISPLAY_NAMES[begin] + name.removeprefix(begin)


def describe_fastest(
    where: str, cases: Mapping[str, Mapping], ours: Sequence[str], known: Sequence[str]
) -> str:
    """A sentence: who is the fastest in how many cases, and the least and the largest time of the best of the others.

    cases: title of a case -> seconds by name. known: ours, and what does not count as another's. "" without a case that
    has both.
    """
    fastest, ratios = Counter(), {}
    for title, seconds in cases.items():
        others = [name for name in seconds if name not in known]
        mine, other = find_fastest(seconds, ours), find_fastest(seconds, others)
        if mine and other:
            times = select_medians(seconds)
            ratio = times[other] / times[mine]
            ratios[f"{display_name(other)}, {title}"] = ratio
            winner = "this course" if ratio > 1 else f"“{display_name(other)}”"
            fastest["a tie" if abs(ratio - 1) < EQUAL else winner] += 1
    if not ratios:
        return ""
    ends = dict.fromkeys(pick(ratios, key=ratios.get) for pick in (min, max))
    return (
        f"Fastest {where}, of {count_noun(len(ratios), 'case')}: "
        f"{', '.join(f'{name} in {count}' for name, count in fastest.most_common())}; the best of the others takes "
        f"{' to '.join(f'{ratios[end]:.3g} ({end})' for end in ends)} times our time."
    )


def find_colour(name: str) -> str:
    """The colour that `name` has on every plot; "" if it has none of its own."""
    name = display_name(name)
    fitting = [begin for begin in NAME_COLOURS if name.startswith(begin)]
    return NAME_COLOURS[max(fitting, key=len)] if fitting else ""


def choose_colour(name: str, number: int) -> str:
    """The colour of `name`; if it has none of its own, that of its number, and never ours."""
    return find_colour(name) or COLOURS[1 + number % (len(COLOURS) - 1)]


def _embed_svg(svg: str, title: str) -> str:
    """matplotlib's SVG as an element of a page: with a name, without a fixed size, with ids that occur only here."""
    key = hashlib.sha256(title.encode()).hexdigest()[:6]
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace("xlink:href", "href")
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{key}-", svg)
    svg = re.sub(r"font(?:-family)?:[^;\"]*?'[^;\"]*", _keep_font_size, svg)
    used = set(re.findall(rf"#({key}-[\w.-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = re.sub(r"(\.\d\d)\d+", r"\1", svg)  # a hundredth of a unit is less than a pixel
    box = re.search(r'viewBox="[^"]*"', svg)[0]
    name = html.escape(title)
    head = f'<svg class="plt" {box} role="img" aria-label="{name}"><title>{name}</title>'
    svg = re.sub(r"<svg[^>]*>", lambda _: head, svg, count=1)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def _keep_font_size(declared: re.Match) -> str:
    size = re.search(r"[\d.]+px", declared[0])
    return f"font-size: {size[0]}" if size else "font-weight: normal"


def draw_series(axes, series: Mapping[str, Points], joined: bool = True) -> None:
    """Lines and marks, or marks alone, and a legend beneath the axes."""
    used = set()
    for number, (name, points) in enumerate(series.items()):
        drawn = choose_colour(name, number)
        style = "--" if drawn in used else "-"
        used.add(drawn)
        axes.plot(
            *zip(*sorted(points), strict=True),
            label=display_name(name),
            color=drawn,
            marker=MARKERS[number % len(MARKERS)],
            fillstyle="full" if number < len(MARKERS) else "none",
            linestyle=style if joined else "",
        )
    longest = max(len(display_name(name)) for name in series)
    columns = 3 if longest < 13 else 2 if longest < 25 else 1
    axes.figure.legend(loc="outside lower left", ncols=columns, frameon=False)


def format_ticks(axis, unit: str) -> None:
    """Ticks of an axis as numbers with SI prefixes."""
    axis.set_major_formatter(lambda value, _: format_si(value, unit))
    axis.set_minor_formatter(lambda value, _: "")


def draw_guide(axes, height: float, words: str) -> None:
    """A horizontal line with its words above it, such as a ceiling."""
    axes.axhline(height, color=INK, alpha=0.75, linewidth=1.2)
    axes.set_ylim(0, 1.1 * max(height, axes.get_ylim()[1]))
    place, above = ("axes fraction", "data"), "offset points"
    axes.annotate(words, (0.01, height), xycoords=place, xytext=(0, 3), textcoords=above)


# --- the kinds of plot ----------------------------------------------------------------------------


def draw_lines(
    series: Mapping[str, Points],
    labels: tuple[str, str],
    title: str,
    caption: str,
    claim: str,
    level: tuple[float, str] | None = None,
    unit: str | None = None,
    table: Table | None = None,
    x_unit: str | None = None,
    filled: bool = False,
) -> Figure:
    """Lines over a logarithmic axis with a tick at each point. labels: of the two axes.

    level: a height and its words, a horizontal line. unit: what y is counted in, in the table; then the axis
    has SI prefixes. table: by default of the points. x_unit: what x is counted in, with SI prefixes; None for plain
    numbers. filled: colour the area between the first two lines.
    """
    ticks = sorted({x for points in series.values() for x, _ in points})

    def draw(axes) -> None:
        axes.set_xscale("log")
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        if filled:
            high, low = (dict(points) for points in list(series.values())[:2])
            area = [low[x] for x in ticks], [high[x] for x in ticks]
            axes.fill_between(ticks, *area, color=OURS, alpha=0.25)
        draw_series(axes, series)
        if level:
            draw_guide(axes, *level)
        else:
            axes.set_ylim(0)
        if unit is not None:
            format_ticks(axes.yaxis, "")
        axes.xaxis.set_ticks(ticks)
        axes.xaxis.set_ticks([], minor=True)
        if x_unit is None:
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            format_ticks(axes.xaxis, x_unit)

    columns = {labels[0]: int}
    for name, points in series.items():
        numbers = dict(points)
        columns[display_name(name)] = lambda x, numbers=numbers: (
            f"{numbers[x]:.3g}" if unit is None else format_si(numbers[x], unit)
        )
    return draw_figure(draw, title, caption, table or tabulate(ticks, columns), claim)


def draw_bandwidth(
    cases: Sequence[dict], title: str, caption: str, claim: str, copy_rate: float | None = None
) -> Figure:
    """Bytes per second over bytes moved, with a table of each implementation's share of the copy's speed.

    cases: with their "bytes", and "seconds" that have a copy's. copy_rate: what no size can exceed, if there is one.
    """
    rates: dict[str, list] = {}
    for case in cases:
        for name, time in select_medians(case["seconds"]).items():
            rates.setdefault(name, []).append((case["bytes"], case["bytes"] / time))
    level = (copy_rate, f"a large copy: {format_si(copy_rate, 'B/s')}") if copy_rate else None
    labels = "bytes that are read and written", "bytes per second"
    caption = f"The table gives shares of the speed of a copy at the same size, in the same rounds. {caption}".strip()
    return draw_lines(rates, labels, title, caption, claim, level, "B/s", copy_table(cases), "B")


def time_bar(name: str, seconds: float) -> Bar:
    """A bar as long as a time, which stands at its end."""
    return Bar(name, seconds, format_duration(seconds))


def draw_bars(
    entries: Sequence[Bar],
    words: str,
    title: str,
    caption: str,
    claim: str,
    limit: tuple[float, str] | None = None,
    table: Table | None = None,
) -> Figure:
    """Horizontal bars. words: what their length means. limit: a value and its name, a line across the bars.

    table: by default of the bars.
    """
    mark, line = limit or (None, "")
    drawn = [
        replace(
            one,
            name=display_name(one.name),
            ours=one.ours or find_colour(one.name) == OURS,
            mark=mark,
        )
        for one in entries
    ]
    heading = f"{words}; the line: {line}" if line else words
    table = table or Table(("bar", words.split(",")[0]), [(one.name, one.words) for one in drawn])
    return Figure(Bars(heading, drawn).figure(), title, caption, table, claim)


def draw_roofline(points: Sequence[Point], ceilings: Ceilings, machine: str, claim: str) -> Figure:
    """Operations per second over arithmetic intensity, beneath a machine's two ceilings."""
    groups = list(dict.fromkeys(point.group for point in points))
    intensities = [p.intensity for p in points] + [ceilings.ridge]
    low, high = min(intensities) / 1.6, max(intensities) * 4

    def draw(axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.set_xlabel("arithmetic intensity, operations per byte")
        axes.set_ylabel("operations per second")
        corner = [low, ceilings.ridge, high]
        heights = [low * ceilings.copy_rate, ceilings.matrix_rate, ceilings.matrix_rate]
        axes.plot(corner, heights, color=INK, alpha=0.75, linewidth=1.2)
        memory = f"memory: {format_si(ceilings.copy_rate, 'B/s')}"
        middle = (low * ceilings.ridge) ** 0.5
        cores = f"tensor cores: {format_si(ceilings.matrix_rate, 'FLOP/s')}"
        place = (middle, middle * ceilings.copy_rate)
        axes.annotate(memory, place, (-8, 4), textcoords="offset points", ha="right")
        axes.annotate(cores, (high, heights[2]), (0, 4), textcoords="offset points", ha="right")
        by_group = {g: [(p.intensity, p.rate) for p in points if p.group == g] for g in groups}
        draw_series(axes, by_group, joined=False)
        format_ticks(axes.yaxis, "")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")

    caption = (
        "Left of the corner memory decides, right of it arithmetic; both ceilings were measured in the same run. "
        "The table gives shares of the speed that the ceilings allow."
    )
    table = roofline_table(points, ceilings)
    return draw_figure(draw, f"Roofline of {machine}", caption, table, claim)
