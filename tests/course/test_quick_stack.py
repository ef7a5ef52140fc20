"""TVM gets the same call stack as anyone else, without the source text that it does not look at."""

import inspect

from chapters.quick_stack import WITH_SOURCE


def asked_by(module: str) -> list[inspect.FrameInfo]:
    """What `inspect.stack()` gives to a function of `module`."""
    names = {"__name__": module, "inspect": inspect}
    exec("def ask():\n    return inspect.stack()", names)
    return names["ask"]()


def test_the_frames_are_the_same_and_only_the_first_have_source():
    own, tvm = asked_by("somewhere"), asked_by("tvm.script.parser")
    assert [frame.function for frame in own[:3]] == ["ask", "asked_by", inspect.stack()[0].function]
    assert [frame.function for frame in tvm] == [frame.function for frame in own]
    assert tvm[1].code_context == own[1].code_context
    assert own[4].code_context and not any(frame.code_context for frame in tvm[WITH_SOURCE:])
