"""Whose code a run is about: a learner's earlier work takes part exactly if it passes, and never in a reference run."""

from __future__ import annotations

import sys

import pytest

from chapters.code_owner import LEARNER, REFERENCE
from chapters.runner.course import chapters
from chapters.runner.learner_file import make_stub
from chapters.runner.regions import regions, with_regions
from tests.conftest import CourseCopy

DECIDE = f"from chapters.code_owner import set_owner; set_owner({LEARNER!r}); "
IMPORT = "from chapters.runner.earlier import earlier, explain_unused, describe_owner; "
ASK = f"{IMPORT}print(earlier(0).__name__.split('.')[0], describe_owner(0))"
WHOSE = f"{IMPORT}print(describe_owner(0), *explain_unused([0]), sep='; ')"


def test_the_reference_stands_in_for_what_has_not_passed(course):
    mine = DECIDE + WHOSE
    unchecked = (
        "the reference's; not used of your chapter 0: 0.1 has changed since its last check, "
    )
    assert course.python("-c", mine).stdout == "the reference's\n", "nothing was begun"
    course.solve()
    assert course.python("-c", mine).stdout.startswith(unchecked), "nothing was checked yet"
    course.record_as_passed(0)
    assert course.python("-c", mine).stdout == "yours\n"
    assert course.python("-c", WHOSE).stdout == "the reference's\n", "the learner's was not asked"
    course.text += "\n1 / 0\n"
    assert course.python("-c", mine).stdout.startswith(unchecked), "an edit was not checked yet"


def test_an_answer_that_passes_is_used_beside_the_references(course):
    """In one module, whose source TVMScript can read; what the learner writes outside of regions is in it."""
    course.solve("return {", "MINE.append(1)\n    return {")
    course.text = course.text.replace("import numpy as np\n", "import numpy as np\nMINE = []\n", 1)
    course.learner("check", "0.5")
    course.text = with_regions(course.text, {"0.1": regions(make_stub(chapters()[0]))["0.1"]})
    assert "0.5" not in course.learner().stdout, "what others write does not un-check it"
    asked = f"{DECIDE}{IMPORT}import inspect; ours = earlier(0); ours.predicted_functions(); "
    asked += "print(len(ours.MINE), describe_owner(0)); source = inspect.getsource(ours.from_block_builder); "
    asked += "print('emit_output' in source); ours.from_block_builder()"
    done = course.python("-c", asked)
    assert done.stdout == "1 yours but for 0.1, 0.2, 0.3, 0.4 and 0.6\nTrue\n", done.stderr
    course.solve("return {", "MINE.append(2)\n    return {")
    assert course.python("-c", DECIDE + WHOSE).stdout.startswith("the reference's; ")


def test_a_lab_that_a_person_runs_is_about_their_code(course):
    """As `python lab.py`; the pages of the site run the same code, and are about the reference."""
    course.solve()
    course.record_as_passed(0)
    lab = course.root / "chapters" / "ch00_first_module" / "lab.py"
    lab.write_text(ASK, encoding="utf-8")
    assert course.python(str(lab)).stdout.split() == ["chapters", "yours"]
    cell = "from chapters.runner.page_code import Namespace; Namespace('page').run(open('lab.txt').read(), 1)"
    (course.root / "lab.txt").write_text(ASK, encoding="utf-8")
    assert course.python("-c", cell).stdout.startswith("solutions")


HELPERS = {  # how a file of the learner's own is imported, and where it lies
    "from chapters.ch00_first_module import my_help as h0": "chapters/ch00_first_module/my_help.py",
    "from chapters.ch00_first_module.pack import my_help as h1": "chapters/ch00_first_module/pack/my_help.py",
    "import chapters.my_help as h2": "chapters/my_help.py",
    "import my_help as h3": "my_help.py",
    "import pack as h4": "pack/__init__.py",
    "from chapters.ch01_walk_the_ir import walk_the_ir as h5": "chapters/ch01_walk_the_ir/walk_the_ir.py",
}


def test_a_record_covers_what_an_answer_imports(course):
    """An edit of a helper un-checks the answer, and the next check loads the new text."""
    helpers = [course.root / path for path in HELPERS.values()]
    for helper in helpers:
        helper.parent.mkdir(exist_ok=True)
        helper.write_text("ROWS = 5\n", encoding="utf-8")
    rows = [f"h{number}.ROWS" for number in range(len(helpers))]
    course.solve("(5, 16)", f"(max({', '.join(rows)}), min({', '.join(rows)}) + 11)")
    numpy = "import numpy as np\n"
    course.text = course.text.replace(numpy, numpy + "".join(f"{line}\n" for line in HELPERS), 1)
    assert "✓ 0.6" in course.learner("check", "0.6").stdout
    assert "1/6" in course.learner().stdout
    for helper in helpers:
        helper.write_text("ROWS = 3\n", encoding="utf-8")
        assert "0/6" in course.learner().stdout, helper
        helper.write_text("ROWS = 5\n", encoding="utf-8")
    assert course.python("-c", DECIDE + WHOSE).stdout.startswith("yours but for ")
    helper.write_text("ROWS = 3\n", encoding="utf-8")
    assert course.python("-c", DECIDE + WHOSE).stdout.startswith("the reference's; ")
    assert "✗" in course.learner("check", "0.6").stdout
    helper.unlink()
    assert "0/6" in course.learner().stdout


def test_a_helper_saved_while_a_check_runs_is_noticed(course):
    helper = course.root / "my_help.py"
    helper.write_text("SHAPE = (5, 16)\n", encoding="utf-8")
    course.solve("return {", f"{course.PAUSE}\n    return {{")
    course.text = course.text.replace(
        "import numpy as np\n", "import numpy as np\nimport my_help\n", 1
    )
    with course.paused_check("0.5") as checking:
        helper.write_text("SHAPE = None\n", encoding="utf-8")
    said, _ = checking.communicate(timeout=60)
    assert "a file that it imports, was saved" in said and "0/6" in course.learner().stdout


CHECK_TWO = """
from chapters.runner.course import select
from chapters.runner.engine import LEARNER, Examiner
with Examiner(LEARNER) as examiner:
    for chapter, exercise in select("0.5") + select("1.1"):
        print(*{one.state for one in examiner.run_exercise(chapter, exercise, chapter.stub)})
"""


def test_each_file_of_a_learners_has_a_process_of_its_own(course):
    """What chapter 0 does to TVM does not fail a right chapter 1."""
    course.solve("return {", "tvm.relax.VarBinding = None\n    return {")
    home = chapters()[1]
    course.file(home).write_text(home.solution.read_text(encoding="utf-8"), encoding="utf-8")
    checked = course.python("-c", CHECK_TWO)
    assert checked.stdout.split() == ["passed", "passed"], checked.stdout + checked.stderr


# what an injected file does when it is imported
INJECTED = (
    "raise RuntimeError('injected')",
    "import tvm\ntvm.relax.transform.LegalizeOps = tvm.compile = None",
    "def __getattr__(name): return lambda *args, **more: None",
)


@pytest.fixture(scope="module")
def all_injected():
    """The course with a wrong file of a learner's in each chapter, which notes when it is imported; all "passed"."""
    with CourseCopy() as course:
        note = f"open({str(course.root / 'imported')!r}, 'a').write(__file__ + chr(10))\n"
        for number, home in enumerate(chapters()):
            text = home.solution.read_text(encoding="utf-8")
            future = "from __future__ import annotations\n"
            head, _, rest = text.partition(future)
            wrong = rest.replace("    # BEGIN", "    return None\n    # BEGIN")
            code = INJECTED[number % len(INJECTED)]
            course.file(home).write_text(f"{head}{future}{note}{code}\n{wrong}", encoding="utf-8")
            (course.root / "solutions" / home.slug / "aaa.py").write_text("1 / 0\n")
        (course.root / ".progress.json").write_text("{")
        (course.root / ".cache").write_text("a file")
        course.record_as_passed(*(home.number for home in chapters()))
        yield course


@pytest.fixture
def injected(all_injected):
    """The same, before any of the files was imported."""
    (all_injected.root / "imported").unlink(missing_ok=True)
    return all_injected


REFERENCE_RUNS = {
    "pytest": ["-m", "pytest", "-q", "solutions", "-k", "7_6 or 9_1"],
    "pytest of both trees": [
        "-m",
        "pytest",
        "-q",
        "solutions/ch01_walk_the_ir",
        "chapters/ch02_attach_metadata",
        "-k",
        "1_1 or 2_1",
    ],
    "a page": ["-m", "docs.pages.outputs", "--check", "chapters/ch04_add_rms_norm/lesson.md"],
    "a bench": ["-m", "chapters.kit.bench", "ch03_transpose_matmul", "--quick"],
    "a quiz": ["-m", "chapters", "quiz", "6"],
    "a story": ["-m", "chapters.ch01_walk_the_ir", "--solutions"],
}


@pytest.mark.parametrize("run", REFERENCE_RUNS)
def test_a_run_about_the_reference_sees_nothing_of_a_learners(injected, run):
    done = injected.python(*REFERENCE_RUNS[run])
    imported = injected.root / "imported"
    names = imported.read_text().splitlines() if imported.exists() else []
    if run == "pytest of both trees":  # the learner's failures are the learner's
        assert all("ch02_attach_metadata" in name for name in names) and names
        assert "failed" in done.stdout and "1/1" in done.stdout, done.stdout
    else:
        assert not names
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [["trace", "--pipeline", "fusion_by_hand"], ["bench", "3", "--quick"], ["next"], []],
    ids=str,
)
def test_a_run_about_the_learners_code_says_in_one_sentence_what_is_wrong_with_it(
    injected, command
):
    done = injected.learner(*command)
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_the_decision_is_made_once(course):
    code = "import os; from chapters.code_owner import is_about_learner as a; print(a(), os.environ['FUSION_WHOSE'])"
    assert course.python("-c", code).stdout.split() == ["False", REFERENCE]
    assert course.python("-c", DECIDE + code).stdout.split() == ["True", LEARNER]
    again = f"{DECIDE}set_owner({REFERENCE!r}); {code}"
    assert course.python("-c", again).stdout.split() == ["True", LEARNER], "the first one holds"
    assert sys.modules["chapters.code_owner"].is_about_learner() is False, (
        "as in this run of pytest"
    )
