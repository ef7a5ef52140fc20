"""The canary's report: each failure once, a crash in one line, and a sentence if nothing broke."""

from __future__ import annotations

import sys
from pathlib import Path

from chapters.runner.versions import pins
from docs.pages import upstream_page
from tests.course.canary import Result, main, mended, read_junit, report, requirements, simple

JUNIT = """<testsuites><testsuite>
<testcase name="test_a"><failure message="AttributeError: gone&#10;more"/></testcase>
<testcase name="test_b"><failure message="AttributeError: gone&#10;other"/></testcase>
<testcase name="test_c"><error>

ImportError: no</error></testcase>
<testcase name="test_d"/><testcase name="test_e"><skipped/></testcase>
</testsuite></testsuites>"""


def test_the_pins_are_loosened_and_nothing_else():
    asked = requirements()
    assert {"apache-tvm", "apache-tvm-ffi"} <= set(asked)
    assert any(one.startswith("numpy>=") for one in asked)
    assert not any("==" in one for one in asked)


def test_an_unknown_step_is_refused(capsys):
    """Without it nothing would be tried, and nothing would break."""
    assert main(["--steps", "import,99"]) == 2
    assert (
        "There is no step '99'; there are import, tensorize, upstream, 0" in capsys.readouterr().out
    )


def test_failures_are_counted_and_grouped(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(JUNIT, encoding="utf-8")
    result = read_junit("solutions/ch00", path)
    assert (result.passed, result.failed) == (1, 3)
    broke = {"AttributeError: gone": ["test_a", "test_b"], "ImportError: no": ["test_c"]}
    assert result.broke == broke
    assert result.line == "3 of 4 failed"


def test_a_crash_is_one_line():
    ended = "the process ended with exit code -11"
    assert simple("tensorize", -11, "").broke == {ended: ["tensorize"]}
    told = simple("import", 1, "Traceback\nImportError: x\n").broke
    assert told == {"ImportError: x": ["import"]}
    assert simple("import", 0, "0.28").broke == {}


def test_the_report_names_versions_steps_and_errors():
    newest = dict.fromkeys(pins(), "9.9")
    bad = Result("solutions/ch03", 2, 5, {"KeyError: `x`": ["a", "b", "c", "d", "e"]})
    text = report(newest, [Result("import", 1), bad])
    assert text.startswith("# The course with apache-tvm 9.9, ")
    assert "1 of 2 steps broke." in text and "| solutions/ch03 | 5 of 7 failed |" in text
    assert "- `KeyError: 'x'`: a, b, c, d and 1 more" in text


def test_nothing_broken_is_said():
    good = [Result("import", 1)]
    assert "Nothing broke: the pins can move." in report(dict.fromkeys(pins(), "9.9"), good)
    same = report(pins(), good)
    assert "The newest releases are the course's own. Nothing broke." in same


def test_a_mended_fault_is_told_from_a_script_that_cannot_run(tmp_path, monkeypatch):
    ends = {"mended": "raise SystemExit(1)", "renamed": "tvm.gone", "there": "raise SystemExit(0)"}
    for name, end in ends.items():
        text = f'"""A fault.\n\nShould: x\nKind: an error\nUpstream: none found\n"""\n{end}\n'
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(upstream_page, "FOLDER", tmp_path)
    result = mended(Path(sys.executable))
    assert result.broke == {"mended": ["mended"], "renamed": ["cannot tell"]}
    assert result.passed == 1
