"""Makes TVMScript parse faster. TVM's decorators ask for the call stack, and Python then reads source text per frame.

`@T.prim_func`, `@R.function` and `@I.ir_module` call `inspect.stack()` to look at the source line of the third frame;
a macro calls `inspect.getouterframes()` and looks at no source at all. For each frame whose file it does not know,
`inspect` searches all loaded modules, which takes longer than the parsing.
"""

import inspect
import linecache
import sys
from types import FrameType

_stack, _outer = inspect.stack, inspect.getouterframes
WITH_SOURCE = 3  # frames, from the caller on, whose source line TVM may look at


def _asked_by_tvm() -> bool:
    return sys._getframe(2).f_globals.get("__name__", "").startswith("tvm.")


def _frames(frame: FrameType | None) -> list[inspect.FrameInfo]:
    """`frame` and those that called it. The frames after WITH_SOURCE come without source text."""
    frames = []
    while frame:
        name, at = frame.f_code.co_filename, frame.f_lineno
        lines = linecache.getlines(name, frame.f_globals) if len(frames) < WITH_SOURCE else []
        source = ([lines[at - 1]], 0) if 0 < at <= len(lines) else (None, None)
        frames.append(inspect.FrameInfo(frame, name, at, frame.f_code.co_name, *source))
        frame = frame.f_back
    return frames


def _quick_stack(context: int = 1) -> list[inspect.FrameInfo]:
    return _frames(sys._getframe(1)) if _asked_by_tvm() else _stack(context)[1:]


def _quick_outer(frame: FrameType, context: int = 1) -> list[inspect.FrameInfo]:
    return _frames(frame) if _asked_by_tvm() else _outer(frame, context)


def install() -> None:
    """Use it in this process: for callers in TVM only, all others get what `inspect` gives."""
    inspect.stack, inspect.getouterframes = _quick_stack, _quick_outer
