"""Relax modules from short text: TVMScript without the lines that every function repeats.

    relax_module('''
    def main(x: (4, "n"), w: (16, "n", "float16")):
        wt = R.permute_dims(w)
        out = R.matmul(x, R.astype(wt, "float32"))
    ''')

A tuple is the type of a tensor: its dimensions, and its dtype unless that is float32. A dimension in quotes is a
variable, which the body may use by its name. The body is one dataflow block, whose outputs are the names in `return`
or, without one, the last name assigned. A body that contains `with`, `if` or a nested function is used unchanged; so is
the body of a function under `@bare` or `@impure`. `@private` and `@impure` become the arguments of R.function. Anything
else at the top level, such as a `@T.prim_func`, is plain TVMScript; `cls` is the module. A function without `->` must
come before those that call it. `kernel(…)` gives the text of a simple PrimFunc, to be added to the rest.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from chapters.kit.ir.parse_alone import from_source


def relax_module(text: str, check_well_formed: bool = True, **names) -> tvm.IRModule:
    """The module that `text` describes; each call gives a new one.

    The text may be indented as a whole. names: objects that it may use by these names, such as `relax`.
    """
    parts = [_expand_function(part) for part in ast.parse(textwrap.dedent(text)).body]
    indented = ("\n" + "\n".join(parts)).replace("\n", "\n    ")
    return from_source(
        f"@I.ir_module\nclass Module:{indented}\n",
        {"I": I, "R": R, "T": T, "tvm": tvm, **names},
        check_well_formed=check_well_formed,
    )


def read_modules(text: str) -> dict[str, tvm.IRModule]:
    """The modules in `text` by their titles, each headed by a line `## title`."""
    parts = [part.partition("\n") for part in ("\n" + text).split("\n## ")[1:]]
    return {title: relax_module(described) for title, _, described in parts}


def kernel(head: str, shape: Sequence[int], store: str, dtype: str = "float32") -> str:
    """Text for `relax_module`: a private PrimFunc that does `store` at each point of buffers of one shape.

    head: its name and its buffers, such as "scale(a, b)"; `[at]` in `store` is the point: "b[at] = a[at] + a[at]".
    """
    name, buffers = head.rstrip(")").split("(")
    points = range(len(shape))
    loops, axes = (", ".join(f"{letter}{n}" for n in points) for letter in "iv")
    return f"""
@T.prim_func(private=True, s_tir=True)
def {name}({", ".join(f"{one}: T.Buffer({tuple(shape)}, {dtype!r})" for one in buffers.split(", "))}):
    for {loops} in T.grid({", ".join(map(str, shape))}):
        with T.sblock("{name}"):
            {axes} = T.axis.remap("{"S" * len(shape)}", [{loops}])
            {store.replace("[at]", f"[{axes}]")}
"""


def _expand_function(part: ast.stmt) -> str:
    """One part of the text as TVMScript."""
    words = {ast.unparse(one) for one in getattr(part, "decorator_list", ())}
    if not isinstance(part, ast.FunctionDef) or not words <= {"private", "impure", "bare"}:
        return ast.unparse(_define_cls(part) if isinstance(part, ast.FunctionDef) else part)
    options = ["private=True"] * ("private" in words) + ["pure=False"] * ("impure" in words)
    part.decorator_list = [ast.parse(f"R.function({', '.join(options)})", mode="eval").body]
    variables: dict[str, None] = {}
    for argument in part.args.args:
        if isinstance(argument.annotation, ast.Tuple):
            argument.annotation = _expand_tensor(argument.annotation.elts, variables)
    if not words & {"impure", "bare"} and not any(
        isinstance(one, ast.With | ast.If | ast.FunctionDef) for one in part.body
    ):
        part.body = _wrap_in_dataflow(part.body)
    part.body[:0] = [ast.parse(f"{name} = T.int64()").body[0] for name in variables]
    return ast.unparse(_define_cls(part))


def _expand_tensor(elements: list[ast.expr], variables: dict[str, None]) -> ast.expr:
    """R.Tensor(dimensions, dtype); names in the dimensions are added to `variables`."""
    *dims, last = elements
    dtype = "float32"
    if isinstance(last, ast.Constant) and isinstance(last.value, str) and _is_dtype(last.value):
        dtype = last.value
    else:
        dims.append(last)
    for one in dims:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            found = ast.walk(ast.parse(one.value))
            variables.update(dict.fromkeys(n.id for n in found if isinstance(n, ast.Name)))
    shape = ast.unparse(ast.Tuple(dims, ast.Load()))
    return ast.parse(f"R.Tensor({shape}, {dtype!r})", mode="eval").body


def _is_dtype(name: str) -> bool:
    try:
        tvm.DataType(name)
    except (ValueError, RuntimeError):
        return False
    return True


def _wrap_in_dataflow(body: list[ast.stmt]) -> list[ast.stmt]:
    """`body` as one dataflow block and the return of its outputs."""
    if isinstance(body[-1], ast.Return):
        *body, last = body
        result = ast.unparse(last.value)
    else:
        result = ast.unparse(getattr(body[-1], "target", None) or body[-1].targets[0])
    text = f"with R.dataflow():\n    R.output({result.strip('()')})\nreturn {result}"
    flow = ast.parse(text).body
    flow[0].body[:0] = body
    return flow


def _define_cls(part: ast.FunctionDef) -> ast.FunctionDef:
    if any(isinstance(one, ast.Name) and one.id == "cls" for one in ast.walk(part)):
        part.body.insert(0, ast.parse("cls = Module").body[0])
    return part
