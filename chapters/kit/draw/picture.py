"""A Relax function drawn as a data-flow graph, from the IR itself, as an SVG that needs no library.

`picture(mod)` reads the bindings, `before_after(mod1, mod2)` puts two of them side by side. In a terminal a picture
prints as a list of its nodes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import tvm
from tvm import relax

from chapters.kit.draw.drawing import SMALLEST, Drawing, SideBySide, side_by_side, strip_types
from chapters.kit.draw.layered_layout import Layout, lay_out
from chapters.kit.draw.table import count_noun


def _flatten(style: str) -> str:
    return style.strip().replace("\n", "")


# Fills are translucent and text takes the page's colour, so one rule serves light and dark.
STYLE = """
figure.ir-picture{display:block;margin:1.2em 0;width:auto;max-width:none;overflow-x:auto;
text-align:center}
.ir-picture>figcaption{max-width:none;margin:.4em 0 0;font-size:.75rem;font-style:normal;opacity:.85}
.ir-picture>figcaption b{opacity:1}
.ir-picture svg{display:block;margin:0 auto;height:auto;width:100%}
.ir-pictures{display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start}
"""
SVG_STYLE = """
.irp text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:currentColor;text-anchor:middle}
.irp .name{font-size:13px;font-weight:600}
.irp .type,.irp .label{font-size:11px;opacity:.82}
.irp .box{stroke:currentColor;stroke-opacity:.55;stroke-width:1.2;fill:rgba(128,128,128,.10)}
.irp .op .box{fill:rgba(66,118,214,.16);stroke:#4276d6;stroke-opacity:1}
.irp .kernel .box{fill:rgba(222,128,30,.20);stroke:#c96f12;stroke-opacity:1;stroke-width:2.4}
.irp .function .box{fill:rgba(140,90,200,.18);stroke:#8c5ac8;stroke-opacity:1;stroke-width:2.4}
.irp .weight .box,.irp .constant .box{stroke-dasharray:5 3}
.irp .output .box{stroke-width:2}
.irp .label{opacity:1;stroke:var(--md-default-bg-color,Canvas);stroke-width:4px;paint-order:stroke}
.irp .right{text-anchor:start}.irp .left{text-anchor:end}
.irp .edge{fill:none;stroke:currentColor;stroke-opacity:.5;stroke-width:1.3}
.irp .tip{fill:currentColor;fill-opacity:.65}
"""

KINDS = {  # what a node is -> its name in the legend and in the listing
    "input": "input",
    "weight": "weight",
    "constant": "constant",
    "op": "operator",
    "kernel": "kernel",
    "function": "fused function",
    "output": "output",
}
LAUNCHING = ("op", "kernel", "function")


@dataclass(eq=False)
class Node:
    """One box: `name` is a variable, operator or kernel name, `type` its shape and dtype as text."""

    kind: str
    name: str
    type: str = ""
    var: str = ""
    inputs: list[tuple[Node, str]] = field(default_factory=list)  # (producer, edge label)

    @property
    def anchored(self) -> bool:
        return self.kind == "input"

    @property
    def width(self) -> float:
        return max(len(self.name) * 8.0, len(self.type) * 6.8, 44.0) + 22

    @property
    def height(self) -> float:
        return 42.0 if self.type else 28.0


@dataclass(frozen=True, repr=False)
class Picture(Drawing):
    """A drawn function. On a page or in a notebook it shows itself; `svg` is a complete document."""

    STYLE, GROUP = _flatten(STYLE + SVG_STYLE), "ir-pictures"

    title: str
    nodes: tuple[Node, ...]

    def count(self, *kinds: str) -> int:
        """How many nodes are of one of `kinds` ("op", "kernel", "function", "input", ...)."""
        return sum(1 for node in self.nodes if node.kind in kinds)

    @cached_property
    def layout(self) -> Layout:
        """Where the boxes are."""
        return lay_out(self.nodes)

    @property
    def caption(self) -> str:
        """How many operators, kernels and fused functions are drawn."""
        found = [(KINDS[kind], self.count(kind)) for kind in LAUNCHING]
        return ", ".join(count_noun(n, name) for name, n in found if n) or "no operator"

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.caption}"]
        for node in self.nodes:
            sources = ", ".join((n.var or n.name) + label for n, label in node.inputs)
            own = f"{node.var} = " if node.var and node.var != node.name else ""
            call = f"{own}{node.name}({sources})" if node.kind in LAUNCHING else node.name
            if node.kind == "output" and sources:
                call += f" <- {sources}"
            lines.append(f"  {KINDS[node.kind]:<14} {call}{': ' + node.type if node.type else ''}")
        return "\n".join(lines)

    @property
    def svg(self) -> str:
        """The picture as a complete SVG document, in the colour of the surrounding text."""
        return _svg(self, f"<style>{_flatten(SVG_STYLE)}</style>")

    def figure(self) -> str:
        """The SVG in a figure with its caption; the style sheet is not included."""
        # side by side, two figures share the space in proportion, so that both have one scale
        width = round(self.layout.width)
        flex = f'style="flex:{width} 1 {round(width * SMALLEST)}px"'
        caption = f"<figcaption><b>{html.escape(self.title)}</b> · {self.caption}</figcaption>"
        return f'<figure class="ir-picture" {flex}>{_svg(self)}{caption}</figure>'


def picture(ir: object, name: str = "main", title: str | None = None) -> Picture:
    """Draw a Relax function, or the function called `name` of an IRModule.

    Raises TypeError if there is no Relax function to draw, KeyError if the module has none called `name`.
    """
    return Picture(title or name, tuple(_Reader(_find_function(ir, name)).nodes))


def before_after(before: object, after: object, name: str = "main") -> SideBySide:
    """Two pictures side by side: the same function of the module before and after a pass."""
    return side_by_side(picture(before, name, "before"), picture(after, name, "after"))


def _find_function(ir: object, name: str) -> relax.Function:
    if isinstance(ir, tvm.IRModule):
        names = sorted(_symbol_name(gv) for gv in ir.get_global_vars())
        if name not in names:
            raise KeyError(f"The module has no function {name!r}; it has {', '.join(names)}.")
        ir = ir[name]
    if not isinstance(ir, relax.Function):
        raise TypeError(
            f"Only Relax functions are drawn, and this is a {type(ir).__name__}; "
            "print a PrimFunc with chapters.kit.ir.ir_diff.show."
        )
    return ir


class _Reader:
    """Walks a function once; `nodes` are its parameters, operators in the order of their bindings, and outputs.

    A variable is known by the node that computes it and which part of it.
    """

    def __init__(self, function):
        self.nodes: list[Node] = []
        self.known: dict[object, list[tuple[Node, str]]] = {}
        attrs = function.attrs
        inputs = int(attrs["num_input"]) if attrs and "num_input" in attrs else len(function.params)
        for index, param in enumerate(function.params):
            kind = "input" if index < inputs else "weight"
            self.known[param] = [(self.add(kind, param.name, _describe_type(param.ty)), "")]
        for block in function.body.blocks:
            for binding in block.bindings:
                self.known[binding.var] = self.binding(binding)
        results = self.sources(function.body.body)
        for index, source in enumerate(results):
            name = "output" if len(results) == 1 else f"output {index}"
            self.add("output", name, inputs=[source])

    def add(self, kind: str, name: str, type_: str = "", var: str = "", inputs=()) -> Node:
        self.nodes.append(Node(kind, name, type_, var, list(inputs)))
        return self.nodes[-1]

    def binding(self, binding) -> list[tuple[Node, str]]:
        value, var = binding.value, binding.var
        if isinstance(binding, relax.MatchCast):
            kind, name, args = "op", "match_cast", [value]
        elif isinstance(value, relax.If):
            kind, name, args = "op", "if", [value.cond]
        elif isinstance(value, relax.Call):
            kind, name, args = _read_call(value)
        else:  # a copy, a tuple or an element of a tuple computes nothing, so it gets no box
            return self.sources(value)
        inputs = [source for arg in args for source in self.sources(arg)]
        return [(self.add(kind, name, _describe_type(var.ty), var.name, inputs), "")]

    def sources(self, expr) -> list[tuple[Node, str]]:
        """The nodes that `expr` reads, with edge labels; none for shapes and scalars, which are not tensors."""
        if expr in self.known:
            return self.known[expr]
        if isinstance(expr, relax.Tuple):
            return [source for item in expr.fields for source in self.sources(item)]
        if isinstance(expr, relax.TupleGetItem):
            whole = self.sources(expr.tuple_value)
            if len(whole) == 1:
                return [(whole[0][0], f"[{expr.index}]")]
            return [whole[expr.index]] if expr.index < len(whole) else whole
        if isinstance(expr, tvm.ir.GenericConst) and "Tensor" in type(expr.ty).__name__:
            return [(self.add("constant", _name_constant(expr), _describe_type(expr.ty)), "")]
        return []


def _read_call(call) -> tuple[str, str, list]:
    """(kind, name, tensor arguments) of a call: an operator, a kernel or a function of the module."""
    if isinstance(call.op, tvm.ir.GlobalVar):
        return "function", _symbol_name(call.op), list(call.args)
    name = _symbol_name(call.op) or "call"
    if name.startswith("relax.call_") and len(call.args) and _symbol_name(call.args[0]):
        return "kernel", _symbol_name(call.args[0]), list(call.args[1:])
    kind = "kernel" if isinstance(call.op, relax.ExternFunc) else "op"
    return kind, name.removeprefix("relax.").removeprefix("nn."), list(call.args)


def _symbol_name(callee) -> str:
    """The name of a GlobalVar, an ExternFunc or an Op."""
    found = (getattr(callee, name, None) for name in ("name_hint", "global_symbol", "name"))
    return next((name for name in found if name), "")


def _describe_type(ty) -> str:
    """`n×8 float32` for a tensor, `2 tensors` for a tuple, else ""."""
    fields = getattr(ty, "fields", None)
    if fields is not None:
        return f"{len(fields)} tensors"
    if "TensorType" not in type(ty).__name__:
        return ""
    dims = getattr(ty.shape, "values", None)
    if dims is None:
        shape = "?" if ty.ndim < 0 else "×".join("?" * ty.ndim)
    else:
        shape = "×".join(map(strip_types, dims)) or "scalar"
    return f"{shape} {ty.dtype}"


def _name_constant(expr) -> str:
    array = expr.value.numpy()
    return f"{array.item():g}" if array.size == 1 and array.dtype.kind in "fiu" else "constant"


def _svg(drawn: Picture, style: str = "") -> str:
    layout = drawn.layout
    width, height = round(layout.width), round(layout.height)
    title = html.escape(f"{drawn.title}: data-flow graph, {drawn.caption}")
    description = html.escape("; ".join(line.strip() for line in str(drawn).splitlines()[1:]))
    size = f"max-width:{width}px;min-width:{round(width * SMALLEST)}px"
    shapes = "".join(_edges(drawn, layout)) + "".join(_box(n, layout) for n in drawn.nodes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="irp" role="img" aria-label="{title}" '
        f'viewBox="0 0 {width} {height}" style="{size}">'
        f"<title>{title}</title><desc>{description}</desc>{style}{shapes}</svg>"
    )


def _edges(drawn: Picture, layout: Layout) -> Iterable[str]:
    for points, label in layout.edges:
        (x, y), *others = points
        path = f"M{x:.1f} {y:.1f}"
        for to_x, to_y in others:
            bend = (to_y - y) / 2
            path += f"C{x:.1f} {y + bend:.1f} {to_x:.1f} {to_y - bend:.1f} {to_x:.1f} {to_y:.1f}"
            x, y = to_x, to_y
        yield f'<path class="edge" d="{path}"/>'
        yield f'<path class="tip" d="M{x:.1f} {y + 1:.1f}l-4 -8h8z"/>'
        if label:
            (at_x, at_y), (to_x, to_y), *_ = points
            side, away = ("left", -6) if to_x < at_x else ("right", 6)
            place = f'x="{(at_x + to_x) / 2 + away:.1f}" y="{(at_y + to_y) / 2:.1f}"'
            yield f'<text class="label {side}" {place}>{html.escape(label)}</text>'


def _box(node: Node, layout: Layout) -> str:
    x, y = layout.centre[node]
    left, top = x - node.width / 2, y - node.height / 2
    round_ends = node.height / 2 if node.kind in ("input", "weight", "constant", "output") else 5
    first = y + 4.5 if not node.type else y - 3
    text = f'<text class="name" x="{x:.1f}" y="{first:.1f}">{html.escape(node.name)}</text>'
    if node.type:
        text += f'<text class="type" x="{x:.1f}" y="{y + 13:.1f}">{html.escape(node.type)}</text>'
    return (
        f'<g class="{node.kind}"><rect class="box" x="{left:.1f}" y="{top:.1f}" width="{node.width:.1f}" '
        f'height="{node.height:.1f}" rx="{round_ends:.0f}"/>{text}</g>'
    )
