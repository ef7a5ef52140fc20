"""A chapter uses the learner's own earlier work exactly if that passes its checks as it is now."""

from __future__ import annotations

ASK = "from chapters.runner.earlier import earlier, whose; print(earlier(0).__name__.split('.')[0], whose(0))"
MISSING = "from chapters.runner.earlier import unused; print(*unused([0]))"


def test_the_reference_stands_in_until_every_check_passes(course):
    assert course.python("-c", ASK).stdout.split() == ["solutions", "the", "reference's"]
    assert course.python("-c", MISSING).stdout == "\n", "nothing was begun"
    course.solve()
    assert course.python("-c", ASK).stdout.startswith("solutions"), "nothing was checked yet"
    assert (
        "chapter 0 is not used yet: 0.1 has changed since its last check, "
        in course.python("-c", MISSING).stdout
    )
    course.learner("check", "0")
    assert course.python("-c", ASK).stdout.split() == ["chapters", "yours"]
    assert course.python("-c", MISSING).stdout == "\n"
    site = "import os; os.environ['FUSION_REFERENCE_ONLY'] = '1'; " + ASK
    assert course.python("-c", site).stdout.startswith("solutions"), "a page shows the reference"
    course.text += "\n1 / 0\n"
    assert course.python("-c", ASK).stdout.startswith("solutions"), "an edit was not checked yet"
