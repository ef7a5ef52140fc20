"""The parts of the front page: what the course gives, in numbers read from the course and its results files."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from chapters.kit.bench.results import load
from chapters.kit.chat.conversation import describe_turn
from chapters.kit.draw.bars import Bar, Bars
from chapters.kit.draw.picture import Picture, picture
from chapters.kit.draw.stepper import Panel, Stepper, step_attribute
from chapters.kit.draw.table import Html, count_noun, format_duration
from chapters.runner.course import PATHS, ROOT, Chapter, chapters
from docs.pages.course_map import (
    PATH_NAMES,
    format_hours,
    format_path_hours,
    import_from_chapter,
    link_chapter,
    read_goals,
    render_inline,
    select_timed_chapters,
)

OURS = "fusion_by_hand"  # in the results of chapter 9
FUSION = ("FuseTransposeMatmul", "LegalizeOps", "AnnotateTIROpPattern", "FuseOps", "FuseTIR")
MARKUP = re.compile(r"<[^>]+>")


@dataclass(frozen=True)
class Part:
    """A part of the page: HTML on a page, its text without markup elsewhere."""

    html: str

    def __str__(self) -> str:
        return html.unescape(" ".join(MARKUP.sub(" ", self.html).split()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html


def show_facts() -> Part:
    """How long the course is and what it needs, from its chapters and pyproject.toml."""
    chosen = select_timed_chapters()
    paths = [round(sum(c.minutes_on(path) for c in chosen) / 60) for path in PATHS]
    exercises = sum(len(c.exercises) for c in chosen)
    capstones = len(chapters()) - len(chosen)
    needed = [c for c in chapters() if c.gpu == "needed"]
    low, high = read_python_range()
    each = [
        f"<b>{len(chosen)}</b> chapters, <b>{capstones}</b> capstones",
        f"<b>{exercises}</b> exercises",
        "about <b>{}</b>, <b>{}</b> or <b>{}</b> hours".format(*paths),
        f"Python {low} to {high}",
        "on your laptop",
        f"a GPU for {len(needed)} chapters" if needed else "no GPU needed",
    ]
    return Part(f'<ul class="front-facts">{"".join(f"<li>{one}</li>" for one in each)}</ul>')


def read_python_range() -> tuple[str, str]:
    """The oldest and the newest Python that pyproject.toml allows: ("3.10", "3.14")."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    low, beyond = re.search(
        r'^requires-python = ">=3\.(\d+),<3\.(\d+)"', text, re.MULTILINE
    ).groups()
    return f"3.{low}", f"3.{int(beyond) - 1}"


def show_conversation() -> Part:
    """The first turn of the recorded conversation, as a terminal shows it."""
    results = load("ch11_conversation")
    turn = results["measured"]["turns"][0]
    text = (
        '<span class="front-typed">$ python -m chapters chat</span>\n'
        f'<span class="front-typed">&gt; {html.escape(turn["user"])}</span>\n'
        f"{html.escape(turn['answer'])}\n<b>{describe_turn(turn)}</b>"
    )
    where = f"Recorded {results['date']} on {results['cores']} cores of an {results['device']}."
    return Part(
        f'<figure class="front-terminal"><pre class="no-copy"><code>{text}</code></pre>'
        f"<figcaption>SmolLM2-135M, compiled by the passes of this course. {html.escape(where)}</figcaption></figure>"
    )


def draw_chat_bars() -> Bars:
    """Tokens per second of our decoder and of llama.cpp, from chapter 11's bench."""
    results = load("ch11_chat")
    measured = results["measured"]
    found = measured["cases"][-1]
    bench = import_from_chapter(11, "bench_inputs")
    names = {
        "This course": bench.OURS,
        "llama.cpp, same file": "llama.cpp",
        "llama.cpp, its fastest format": bench.BEST,
    }
    seconds = {n: bench.seconds_of(found["seconds"], key, "decode") for n, key in names.items()}
    exact = bench.seconds_of(found["seconds"], bench.EXACT, "decode")
    rows = [Bar(n, 1 / t, f"{1 / t:.0f}", n == "This course") for n, t in seconds.items() if t]
    note = (
        f"{measured['context']} tokens into a conversation, {found['threads']} threads, "
        f"{html.escape(results['device'])}. The model alone, without choosing a token. Both round activations "
        f"to 8 bits; with float32 activations ours makes {1 / exact:.0f}. You write the passes that fuse the unpacking "
        "of the weights into the products, and the loop that multiplies them; the weights' layout and the work of "
        "threads come with the course. "
        f"{link_chapter(11, 'How it was measured')}."
    )
    return Bars("Tokens per second, more is better", rows, Html(note))


def draw_decode_bars() -> Bars:
    """The time of one decode step by TVM's default, torch.compile and this course, from chapter 9's bench."""
    results = load("ch09_decoder")
    measured = results["measured"]["cases"][-1]
    names = {
        "TVM’s default pipeline": "TVM's default",
        "torch.compile": "torch.compile",
        "This course": OURS,
    }
    seconds = {words: measured["seconds"].get(f"{name} decode") for words, name in names.items()}
    rows = [Bar(n, t, format_duration(t), n == "This course") for n, t in seconds.items() if t]
    note = (
        f"One token through the decoder “{html.escape(measured['decoder'])}” in float32, {measured['threads']} "
        f"threads, {html.escape(results['device'])}. TVM’s default has no schedules for a CPU, so its bar "
        f"says as much about its defaults as about our passes. {link_chapter(9, 'How it was measured')}."
    )
    return Bars("Time of one decode step (one token), less is better", rows, Html(note))


def show_chapter_cards() -> Part:
    """For each path, in a tab of its own, a card per chapter: its title, the first of its goals, time and exercises."""
    inputs = labels = blocks = ""
    for number, (path, words) in enumerate(PATH_NAMES.items(), 1):
        tab, checked = f"__tabbed_paths_{number}", " checked" if path == PATHS[-1] else ""
        inputs += f'<input id="{tab}" name="__tabbed_paths" type="radio"{checked}>'
        labels += f'<label for="{tab}">{words}</label>'
        on_path = [chapter for chapter in chapters() if chapter.minutes_on(path)]
        cards = "".join(f"<li>{_render_card(chapter, path)}</li>" for chapter in on_path)
        blocks += (
            f'<div class="tabbed-block"><div class="grid cards"><ol>{cards}</ol></div>'
            f"<p>{format_path_hours(path)} hours: reading, labs and exercises, without capstones. "
            f"<code>python -m chapters path {path}</code> chooses it.</p></div>"
        )
    return Part(
        f'<div class="tabbed-set tabbed-alternate" data-tabs="paths:{len(PATHS)}">{inputs}'
        f'<div class="tabbed-labels">{labels}</div><div class="tabbed-content">{blocks}</div></div>'
    )


def _render_card(one: Chapter, path: str) -> str:
    link = link_chapter(one.number)
    goal = render_inline(read_goals(one)[0].rstrip(";.,"))
    gpu = "" if one.gpu == "no" else f" · GPU {one.gpu}"
    exercises = f" · {count_noun(len(one.exercises_on(path)), 'exercise')}"
    facts = f"{format_hours(one.minutes_on(path))} h{exercises}{gpu}"
    return f"<p><b>{link}</b></p><p>After it you can {goal}.</p><p><small>{facts}</small></p>"


def show_first_exercise() -> Part:
    """Where a reader begins after the setup."""
    home = chapters()[0]
    one = home.exercises[0]
    link = link_chapter(home.number, f"chapter {home.number}")
    return Part(
        f"<p>Then open {link}. Its first exercise, “{html.escape(one.title)}”, takes about {one.minutes} minutes, and "
        f"<code>python -m chapters check {one.id}</code> says whether it is right.</p>"
    )


# --- a graph that becomes one kernel, step by step ------------------------------------------------


def draw_frames(mod: tvm.IRModule) -> list[Picture]:
    """The graph before the passes of FUSION, and after each one that changes its picture."""
    found = [picture(mod, title="As the model writes it")]
    for name in FUSION:
        mod = getattr(relax.transform, name)()(mod)
        drawn = picture(mod, title=f"After {name}")
        if _list_drawn(drawn) != _list_drawn(found[-1]):
            found.append(drawn)
    return found


def _list_drawn(drawn: Picture) -> list[str]:
    """What is drawn, without the title."""
    return [drawn.caption, *str(drawn).splitlines()[1:]]


def make_film(label: str, frames: Sequence[Picture]) -> Stepper:
    """The frames of one graph, to be stepped through. Without scripts they stand side by side."""
    drawn = "".join(
        f"<div{step_attribute(n)}>{_strip_caption(frame)}</div>" for n, frame in enumerate(frames)
    )
    says = [f"{frame.title}: {frame.caption}" for frame in frames]
    return Stepper(label, [Panel("film", says, f'<div class="film">{drawn}</div>')], "film")


def _strip_caption(frame: Picture) -> str:
    """The picture without its caption, which is the line above it, and as wide as its place."""
    return re.sub(r' style="flex:[^"]*"|<figcaption>.*?</figcaption>', "", frame.figure())
