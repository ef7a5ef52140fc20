"""TVM gets the same call stack as anyone else, without the source text that it does not look at."""

import inspect

import pytest

from chapters.quick_stack import WITH_SOURCE


def asked_by(module: str, question: str) -> list[inspect.FrameInfo]:
    """What `question` gives to a function of `module`."""
    names = {"__name__": module, "inspect": inspect}
    exec(f"def ask():\n    return {question}", names)
    return names["ask"]()


@pytest.mark.parametrize(
    "question", ["inspect.stack()", "inspect.getouterframes(inspect.currentframe())"]
)
def test_the_frames_are_the_same_and_only_the_first_have_source(question):
    own, tvm = asked_by("somewhere", question), asked_by("tvm.script.parser", question)
    assert [frame.function for frame in own[:3]] == ["ask", "asked_by", inspect.stack()[0].function]
    assert [frame.function for frame in tvm] == [frame.function for frame in own]
    assert [frame.lineno for frame in tvm[2:]] == [frame.lineno for frame in own[2:]]
    for here in range(WITH_SOURCE):
        assert (tvm[here].code_context, tvm[here].index) == (
            own[here].code_context,
            own[here].index,
        )
    assert own[4].code_context and not any(frame.code_context for frame in tvm[WITH_SOURCE:])
