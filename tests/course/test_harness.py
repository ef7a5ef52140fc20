"""Whatever an answer does to the machinery becomes one readable failure, and the next command works."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tvm
from tvm import relax

from chapters.ch03_transpose_matmul import checks as ch03
from chapters.checking import expect
from chapters.child import Child
from chapters.kit.cases.relax_text import relax_module
from chapters.runner.course import ROOT, CourseError, chapter
from chapters.runner.course import exercise as find
from chapters.runner.engine import Examiner, checks_of, checks_of_exercise, patience
from chapters.runner.failure import CUT, MOST_SHOWN, CheckFailed, tail
from chapters.runner.loading import explain_parser_error, last_line
from chapters.runner.worker import _describe_exception
from tests.support.answers import write_answer

END = "\n    # END exercise 0.1"
COMPILE = 'executable = tvm.compile(mod, target="llvm")'


@pytest.fixture
def answer(tmp_path):
    """Makes a file that holds a chapter's reference with one piece replaced."""

    def make(old: str, new: str, number: int = 0) -> Path:
        text = chapter(number).solution.read_text(encoding="utf-8")
        assert old in text
        return write_answer(tmp_path, chapter(number), text.replace(old, new))

    return make


def _run(examiner: Examiner, path, exercise: str = "0.3", seconds: float = 20, diagnose=False):
    first = checks_of_exercise(chapter(int(exercise[0])), exercise)[0]
    return examiner.run(dataclasses.replace(first, seconds=seconds), path, diagnose=diagnose)


def test_endless_loop_is_stopped_and_its_line_named(examiner, answer):
    began = time.perf_counter()
    path = answer(COMPILE, 'print("so far")\n    while True: pass')
    outcome = _run(examiner, path, seconds=2)
    assert outcome.state == "failed" and time.perf_counter() - began < 30
    assert "did not finish within 2 s" in outcome.failure["what"]
    assert "of first_module.py, in run" in outcome.failure["yours"]
    assert "so far" in outcome.output


def test_calls_that_never_end_are_told_from_a_slow_or_crashing_one(examiner, answer):
    code = "import os, time; again = lambda n: again(n - 1) if n else {}; again({})"
    for end in ("time.sleep(99)", "os.abort()"):
        deep = _run(examiner, answer(COMPILE, code.format(end, 50)), seconds=2).failure
        assert "called itself again and again" in deep["what"]
        assert "of first_module.py, in <lambda>, which is 52 times" in deep["yours"]
        assert deep["read"].endswith("#recursion")
    shallow = _run(examiner, answer(COMPILE, code.format(end, 9)), seconds=2).failure
    assert "again" not in shallow["what"] and not shallow["read"]


def test_a_busy_machine_has_more_time(monkeypatch):
    monkeypatch.delenv("FUSION_PATIENCE", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, limit in ((0.1, 12), (2.0, 12), (5.0, 30), (90.0, 48)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0), raising=False)
        assert {c.seconds for c in checks_of(chapter(0))} == {limit}
    monkeypatch.setenv("FUSION_PATIENCE", "1.5")
    assert {c.seconds for c in checks_of(chapter(0))} == {18}
    for wrong in ("soon", "0", "nan", "inf"):
        monkeypatch.setenv("FUSION_PATIENCE", wrong)
        with pytest.raises(CourseError, match="must be a positive number"):
            checks_of(chapter(0))


def test_what_tvm_prints_of_an_exception_is_not_the_answers():
    noise = b"[10:13:15] block_builder.cc:67: BlockBuilder destroyed with remaining blocks!\n"
    assert tail(noise + b"mine\n" + noise) == "mine\n"
    assert tail(noise) == ""


@pytest.mark.skipif(os.name != "posix", reason="looks at processes as POSIX has them")
def test_an_endless_loop_ends_with_the_command_that_was_killed(answer, tmp_path):
    pid = tmp_path / "pid"
    note_pid = f'open({str(pid)!r}, "w").write(str(__import__("os").getpid()))'
    path = answer(COMPILE, f"{note_pid}\n    while True: pass")
    code = (
        "from pathlib import Path; from chapters.runner.course import chapter; from chapters.runner import engine; "
        f"engine.Examiner().run(engine.checks_of_exercise(chapter(0), '0.3')[0], Path({str(path)!r}))"
    )
    command = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not pid.exists() or not pid.read_text():
        assert command.poll() is None
        time.sleep(0.1)
    command.kill()
    command.wait(10)
    worker = int(pid.read_text())
    state = Path(f"/proc/{worker}/stat")
    for _ in range(50):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if state.exists() and ") Z " in state.read_text():
            return
        time.sleep(0.2)
    os.kill(worker, 9)
    pytest.fail("the worker went on without its parent")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit of writable memory")
def test_asking_for_too_much_memory_is_said_at_once(examiner, answer):
    began = time.perf_counter()
    outcome = _run(examiner, answer(COMPILE, "np.ones(100 * 2**30, 'uint8')"))
    assert outcome.state == "failed" and "Unable to allocate 100. GiB" in outcome.failure["what"]
    assert time.perf_counter() - began < 10 * patience()


def test_crash_is_reported_and_its_line_named(examiner, answer):
    path = answer(COMPILE, 'print("so far"); import ctypes; ctypes.string_at(0)')
    outcome = _run(examiner, path)
    assert outcome.state == "failed" and "process running your code died" in outcome.failure["what"]
    assert "so far" in outcome.output
    if os.name == "posix":
        assert "SIGSEGV" in outcome.failure["what"]
        assert "of first_module.py, in run" in outcome.failure["yours"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the processes of POSIX")
def test_a_process_that_the_answer_forks_does_not_answer(examiner, answer):
    fork = "import os; forked = os.fork()\n    if forked: os.waitpid(forked, 0)"
    path = answer(COMPILE, f"{fork}\n    {COMPILE}")
    assert _run(examiner, path).state == "passed"
    assert _run(examiner, answer(COMPILE, "1 / 0")).state == "failed", "not the second answer"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the processes of POSIX")
def test_what_an_answer_has_forked_ends_with_its_child(answer, tmp_path):
    pid = tmp_path / "pid"
    fork = (
        "import os, time\n    if not os.fork():\n"
        f"        open({str(pid)!r}, 'w').write(str(os.getpid()))\n        time.sleep(600)\n    {COMPILE}"
    )
    with Examiner() as examiner:
        assert _run(examiner, answer(COMPILE, fork)).state == "passed"
        while not pid.exists() or not pid.read_text():
            time.sleep(0.05)
        assert psutil.pid_exists(int(pid.read_text()))
    for _ in range(100):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(int(pid.read_text())).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.1)
                continue
        return
    pytest.fail("the forked process goes on")


@pytest.mark.skipif(os.name != "posix", reason="kills a process as POSIX does")
def test_a_process_that_the_system_killed_says_nothing_about_the_code(examiner, answer):
    outcome = _run(examiner, answer(COMPILE, "import os; os.kill(os.getpid(), 9)"))
    assert outcome.state == "unable" and "the system killed the process" in outcome.reason
    assert _run(examiner, chapter(0).solution).state == "passed"


def test_a_machine_on_which_no_check_can_start_fails_neither_tree(course):
    worker = course.root / "chapters" / "runner" / "worker.py"
    worker.write_text("raise ImportError('libtvm_compiler.so is missing')\n", encoding="utf-8")
    course.solve()
    for done in (
        course.learner("check", "0.1"),
        course.pytest("solutions/ch00_first_module"),
        course.pytest("chapters/ch00_first_module"),
    ):
        assert done.returncode == 1 and "says nothing about" in done.stdout, done.stdout
        assert "libtvm_compiler.so is missing" in done.stdout and "✗" not in done.stdout
        assert " failed" not in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert "failed" not in course.learner().stdout


def test_a_message_that_is_long_or_cannot_be_made_is_said_in_one_line(examiner, answer):
    outcome = _run(examiner, answer(COMPILE, "raise ValueError('x' * 20_000_000)"))
    assert outcome.state == "failed" and len(outcome.failure["what"]) < 1000
    own = "class Own(Exception):\n        def __str__(self): raise KeyError\n    raise Own"
    outcome = _run(examiner, answer(COMPILE, own))
    assert "Own: (its message could not be made: KeyError)" in outcome.failure["what"]
    outcome = _run(examiner, answer(COMPILE, "return 'x' * 20_000_000"), "0.3")
    assert outcome.state == "failed" and max(map(len, map(str, outcome.failure.values()))) < 30_000


@pytest.mark.skipif(os.name != "posix", reason="closes file descriptors as POSIX has them")
def test_an_answer_that_closes_its_pipe_and_runs_on_is_stopped(examiner, answer, monkeypatch):
    monkeypatch.setattr("chapters.child.END_SECONDS", 1)
    path = answer(COMPILE, "import os, time; os.closerange(3, 99); time.sleep(99)")
    outcome = _run(examiner, path)
    assert "did not finish" in outcome.failure["what"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (COMPILE, "executable = = 3", "is not Python: invalid syntax"),
        ("import numpy as np\n", "import numpie as np\n", "No module named 'numpie'"),
        ("def run(", "def walk(", "does not define `run`"),
        (COMPILE, "executable = tvm.nope(mod)", "has no attribute 'nope'"),
        (COMPILE, "import os; os._exit(3)", "exit code 3"),
        (COMPILE, "\0", "first_module.py"),
        (COMPILE, "raise SystemExit(3)", "SystemExit"),
        (COMPILE, f'input("?"); {COMPILE}', "EOFError"),  # it neither hangs nor breaks the protocol
        (f"return builder.get(){END}", END, "returned None, not an IRModule"),
    ],
)
def test_mistakes_get_one_sentence(examiner, answer, old, new, says):
    outcome = _run(examiner, answer(old, new), "0.1" if "0.1" in old else "0.3", diagnose=True)
    assert outcome.state == "failed" and says in outcome.failure["what"]
    assert "\n" not in outcome.failure["what"]


VISIT = "super().visit_call_(call)\n        # END"
AGAIN = "call = super().visit_call_(call)"
METER = "read = sum(type_bytes("
DROPPED = "return x if visible and axes_cancel(inner.attrs.axes, call.attrs.axes) else call\n"
COPIED = (
    "result = mod.clone()\n        for name, func in mod.functions_items():\n"
    "            if isinstance(func, relax.Function):\n                result[name] = func.with_attr"
)
LOOK_UP = "docs/troubleshooting.md#"


def _first_failure(examiner: Examiner, exercise_id: str, path: Path) -> dict:
    checks = checks_of_exercise(find(exercise_id)[0], exercise_id)
    outcomes = (examiner.run(check, path, diagnose=False) for check in checks)
    return next(outcome.failure for outcome in outcomes if outcome.failure)


@pytest.mark.parametrize(
    ("exercise", "old", "new", "why", "read"),
    [
        ("1.1", VISIT, VISIT.replace("super().visit_call_", "self.visit_expr"), "on the same node", "recursion"),
        ("1.4", AGAIN, "call = self.visit_expr(call)", "on the same node", "recursion"),
        ("1.2", METER, f"var.name_hint; {METER}", "`var.name_hint` has become `var.name`", "renamed"),
        ("1.2", METER, f"value.struct_info; {METER}", "has become `var.ty`", "renamed"),
        ("1.2", METER, f"tvm.nd.array(0); {METER}", "`tvm.runtime.tensor(ones)`", "renamed"),
        ("1.2", METER, f"from tvm import tir; {METER}", "has become `tvm.tirx`", "renamed"),
        ("1.2", METER, f"tvm.no_such_thing; {METER}", "no such name", "renamed"),
        ("1.2", METER, f"value.no_such_field; {METER}", "ask `isinstance` first", "renamed"),
        ("1.2", METER, f"relax.call_tir(None, [], out_sinfo=1); {METER}", "out_ty", "renamed"),
        ("1.2", METER, f"isinstance(var, tvm.tirx.BufferLoad); {METER}", "is a function that creates", "not-a-class"),
        ("1.4", DROPPED, DROPPED.replace("return ", ""), "returned None", "null"),
        ("1.5", COPIED, COPIED.replace("mod.clone()", "__import__('copy').copy(mod)"), "new GlobalVars", "copied"),
    ],
)  # fmt: skip
def test_what_troubleshooting_knows_is_said(examiner, answer, exercise, old, new, why, read):
    failure = _first_failure(examiner, exercise, answer(old, new, 1))
    assert why in failure["why"] and failure["read"] == LOOK_UP + read, failure


def test_an_error_of_the_answers_own_is_not_explained(examiner, answer):
    for code in ("class Own: pass\n    Own().name_hint", "[].nope"):
        failure = _run(examiner, answer(COMPILE, code)).failure
        assert "has no attribute" in failure["what"] and not failure["read"]


def test_a_refused_primitive_says_why_in_its_first_line():
    message = "An error occurred in the schedule primitive 'get-block'.\n\nThe IR with diagnostic is:\nx\n"
    error = ValueError(message + "Error message: Cannot find a block with the name: nope")
    assert last_line(error) == "ValueError: get_block: Cannot find a block with the name: nope"


def test_an_exception_in_a_pass_comes_with_what_it_was_given(examiner, answer):
    """Of a module of many functions, the one that makes the pass raise."""
    path = answer("rank = len(outer if inner is None else inner)", "rank = len(inner or outer)", 1)
    yours = _first_failure(examiner, "1.4", path)["yours"]
    assert "rank = len(inner or outer)" in yours and yours.count("R.permute_dims(") == 2, yours
    assert "axes=[]" in yours


def test_an_exercise_is_checked_up_to_its_first_failure(examiner, answer):
    exercise = chapter(1).exercise("1.4")
    outcomes = examiner.run_exercise(chapter(1), exercise, answer(AGAIN, "call = 1 / 0", 1))
    assert [one.state for one in outcomes].index("failed") == len(outcomes) - 1
    assert len(outcomes) < len(checks_of_exercise(chapter(1), "1.4"))


def test_a_check_that_cannot_go_on_names_its_own_line():
    """Not the line of TVM, in Python or in C++, in which the exception was raised."""
    with pytest.raises(Exception) as raised:
        ch03._make_kernel(SimpleNamespace(nt_matmul=lambda *_: None), [7, 5], [4, 5])
    yours = _describe_exception(raised.value, Path("first_module.py"), "").failure.yours
    assert "of chapters/ch03_transpose_matmul/checks.py: return te.create_prim_func" in yours


def test_far_numbers_are_told_as_what_they_are():
    """A single number has no index, and NaN is not a distance."""
    with pytest.raises(CheckFailed) as single:
        expect.close(np.float64(1.5), np.float64(2), "It is another number.", rtol=0.1, atol=0)
    said = single.value.failure
    assert (said.expected, said.yours) == ("2, within 0.1 relative and 0 absolute", "1.5")
    with pytest.raises(CheckFailed) as several:
        expect.close([1, 5, np.nan], [1, 2, 3], "They are other numbers.", rtol=0, atol=0)
    said = several.value.failure
    assert said.expected == "2 at [1], exactly"
    assert said.yours == "5 there; 2 of 3 elements are off, 1 of them NaN"


def test_what_is_not_well_formed_is_said():
    text = """
@T.prim_func(s_tir=True)
def main(C: T.Buffer((4,), "float32"), D: T.Buffer((4,), "float32")):
    for c, i in T.grid(4, 4):
        with T.sblock("copy"):
            v = T.axis.spatial(4, i)
            D[v] = C[c]
"""
    with pytest.raises(tvm.error.DiagnosticError) as refused:
        tvm.script.from_source(text)
    said = explain_parser_error(refused.value)
    assert said.startswith("Loop iterator var c is defined outside of any block")


def test_of_a_module_that_is_not_well_formed_one_function_is_shown():
    sums = "\n".join(f"    z{i} = R.exp(x)" for i in range(80))
    many = f"@bare\ndef many(x: (4,)):\n{sums}\n    return z0"
    mod = relax_module(f"@bare\ndef fine(x: (4,)):\n    return x\n{many}")
    lowered = relax.transform.LegalizeOps()(mod)
    with pytest.raises(CheckFailed) as raised:
        expect.well_formed(relax.transform.CallTIRRewrite()(lowered), "mine")
    failure = raised.value.failure
    assert "`many` is annotated as pure" in failure.what and "0x" not in failure.what
    assert "RemovePurityChecking" in failure.why
    shown = failure.yours.splitlines()
    assert len(shown) == expect.MOST_LINES + 1 and shown[-1].endswith("more lines")
    assert "prim_func" not in failure.yours


def test_missing_file_says_how_to_get_it_back(examiner, tmp_path):
    outcome = _run(examiner, tmp_path / "ch00_first_module" / "first_module.py")
    assert outcome.state == "failed" and "python -m chapters reset 0" in outcome.failure["expected"]


@pytest.mark.skipif(os.name != "posix", reason="needs the resource limits of POSIX")
def test_printing_for_ever_neither_fills_the_disk_nor_hangs(examiner, answer):
    outcome = _run(examiner, answer(COMPILE, 'while True: print("x" * 100_000)'), seconds=10)
    assert outcome.state == "failed" and len(outcome.output) <= MOST_SHOWN + len(CUT) + 1


def test_output_that_is_cut_says_so_and_starts_with_a_whole_line(examiner, answer):
    outcome = _run(examiner, answer(COMPILE, "for i in range(9999): print('line', i)\n    1 / 0"))
    lines = outcome.output.splitlines()
    assert lines[0] == CUT and lines[1].startswith("line ") and lines[-1] == "line 9998"
    outcome = _run(examiner, answer(COMPILE, "print('line')\n    1 / 0"))
    assert outcome.output == "line\n"


def test_partly_written_exercise_is_todo(examiner, answer):
    outcome = _run(examiner, answer(COMPILE, 'raise NotImplementedError("exercise 0.3")'))
    assert (outcome.state, outcome.reason) == ("todo", "exercise 0.3")
    outcome = _run(examiner, answer(COMPILE, 'raise NotImplementedError("float8")'))
    assert outcome.state == "failed"


def test_reference_run_says_whose_code_it_checked(course):
    result = course.pytest("solutions/ch00_first_module", "-k", "0_5")
    assert result.returncode == 0
    assert result.stdout.count("REFERENCE") >= 2 and "`pytest chapters/`" in result.stdout


def test_own_run_is_todo_and_not_green(course):
    result = course.pytest("chapters/ch00_first_module")
    assert result.returncode == 1
    assert "6 todo" in result.stdout and " passed" not in result.stdout
    assert "YOUR code" in result.stdout and "python -m chapters check 0.1" in result.stdout


def test_own_solved_run_is_green_and_recorded(course):
    course.solve()
    if os.name == "posix":  # a link is the learner's file too
        elsewhere = course.root.parent / "answer.py"
        course.stub.rename(elsewhere)
        course.stub.symlink_to(elsewhere)
    result = course.pytest("chapters/ch00_first_module", "-k", "0_5 or 0_6")
    assert result.returncode == 0 and "YOUR code (chapters/)" in result.stdout
    assert "2/6" in course.learner().stdout and "2 passed" in result.stdout


def test_a_file_that_cannot_be_read_fails_once_and_passes_nothing(course):
    course.solve(COMPILE, "executable = = 3")
    result = course.pytest("chapters/ch00_first_module")
    assert result.stdout.count("is not Python") == 1 and "0/6" in result.stdout
    assert "0/6" in course.learner().stdout
    result = course.learner("check", "0")
    assert result.stdout.count("is not Python") == 1 and "0 of 6 passed" in result.stdout


def test_first_failure_of_an_exercise_is_the_only_one_shown(course):
    course.solve(COMPILE, "executable = tvm.nope(mod)")
    result = course.pytest("chapters/ch00_first_module", "-k", "0_3")
    assert result.returncode == 1 and result.stdout.count("✗ Your code raised") == 1
    assert "1 failed" in result.stdout


def test_what_a_child_leaves_in_temporary_folders_goes_with_it(tmp_path, monkeypatch):
    """It is killed, so nothing in it could clean up; programs that it starts use the same folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Child("chapters.runner.page_code", "a page") as child:
        code = "import os, tempfile\nprint(tempfile.mkdtemp())\nprint(os.environ['TMPDIR'])"
        assert child.ask({"code": code, "line": 1}, 60 * patience()).get("error") is None
        first, second = child.printed().decode().split()
        assert Path(first).is_dir() and tmp_path in Path(first).parents
        assert tmp_path in Path(second).parents
    assert not list(tmp_path.iterdir())
