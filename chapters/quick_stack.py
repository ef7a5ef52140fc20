"""Makes TVMScript parse faster. TVM's decorators ask for the call stack, and Python then reads source text per frame.

`@T.prim_func`, `@R.function` and `@I.ir_module` call `inspect.stack()` to look at the source line of the third frame.
For each frame whose file it does not know, `inspect` searches all loaded modules, which takes longer than the parsing.
"""

import inspect
import sys

_original = inspect.stack
WITH_SOURCE = 3  # frames, from the caller on, whose source line TVM may look at


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.stack`; if TVM asks, the frames after WITH_SOURCE come without source text."""
    frame = sys._getframe(1)
    if not frame.f_globals.get("__name__", "").startswith("tvm."):
        return _original(context)[1:]
    frames = []
    while frame:
        source = (
            inspect.getframeinfo(frame, context)[3:5] if len(frames) < WITH_SOURCE else (None, None)
        )
        code = frame.f_code
        frames.append(
            inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, *source)
        )
        frame = frame.f_back
    return frames


def install() -> None:
    """Use it in this process."""
    inspect.stack = _stack
