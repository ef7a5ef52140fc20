"""Runs the blocks of one page in this process, one after the other, sharing names like notebook cells.

Started by run_blocks.py with the path of a file that says what to run; writes what each block showed beside it. It is a
process of its own so that a page can neither disturb the build nor another page.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import traceback
import types
from pathlib import Path

MODULE = "page_blocks"


def run_block(module: types.ModuleType, file: Path, code: str) -> dict:
    """Execute `code`, the content of `file`; returns what its last expression shows, or the error."""
    # TVMScript reads a class's source through the file of the module that defines it
    module.__file__ = str(file)
    try:
        tree = ast.parse(code, str(file))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(file), "exec"), module.__dict__)
        if last is None:
            return {}
        value = eval(compile(ast.Expression(last.value), str(file), "eval"), module.__dict__)
        return _shown(value)
    except BaseException as error:
        return {"error": _described(error, file)}


def _shown(value: object) -> dict:
    if value is None:
        return {}
    if hasattr(value, "_repr_html_"):
        return {"html": value._repr_html_()}
    return {"text": repr(value)}


def _described(error: BaseException, file: Path) -> dict:
    frames = traceback.extract_tb(error.__traceback__)
    here = [f.lineno for f in frames if f.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        here = [error.lineno]
    text = "".join(traceback.format_exception_only(error))
    # TVM underlines the offending code: a line of carets alone says nothing
    lines = [line for line in text.splitlines() if re.search(r"\w", line)]
    names = [cls.__name__ for cls in type(error).__mro__]
    return {"names": names, "lines": lines, "line": here[-1] if here else None}


def main(order: Path) -> None:
    """Run the blocks that `order` lists and write `results.json` beside it."""
    plan = json.loads(order.read_text(encoding="utf-8"))
    sys.path[0] = plan["root"]
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    results = []
    for index, block in enumerate(plan["blocks"]):
        file = order.with_name(f"{plan['name']}_{index}.py")
        # blank lines in front give every line the number it has on the page
        code = "\n" * (block["line"] - 1) + block["code"] + "\n"
        file.write_text(code, encoding="utf-8")
        result = run_block(module, file, code)
        sys.stdout.flush()
        result["printed_to"] = os.fstat(sys.stdout.fileno()).st_size
        results.append(result)
        order.with_name("results.json").write_text(json.dumps(results), encoding="utf-8")
        expected = block["raises"]
        if "error" in result and expected not in result["error"]["names"]:
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
