"""Small faults in a Python source, each as a splice of its text, so that everything else stays as it is written.

The operators of cosmic-ray know neither conjuncts, nor arguments, nor statements, so these are our own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

NEGATED = {
    **{ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">"},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}
SHIFTED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
EXCHANGED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*"}


@dataclass(frozen=True)
class Splice:
    """`new` in the place of the bytes from `start` to `end` of a source."""

    fault: str
    start: int
    end: int
    new: str


class Source:
    """A Python source with its syntax tree, and where in it each node is, in bytes."""

    def __init__(self, text: str):
        self.bytes = text.encode()
        self.tree = ast.parse(text)
        self.begins = [0]
        for line in self.bytes.split(b"\n"):
            self.begins.append(self.begins[-1] + len(line) + 1)
        self._parent = {c: node for node in ast.walk(self.tree) for c in ast.iter_child_nodes(node)}

    def start(self, node: ast.AST) -> int:
        return self.begins[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.begins[node.end_lineno - 1] + node.end_col_offset

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The bytes of an operand or argument, with the parentheses that stand around it within its parent."""
        start, end = self.start(node), self.end(node)
        parent = self._parent[node]
        first = self.end(parent.func) + 1 if isinstance(parent, ast.Call) else self.start(parent)
        last = self.end(parent) - isinstance(parent, ast.Call)
        while True:
            before = re.search(rb"\(\s*\Z", self.bytes[first:start])
            after = re.match(rb"\s*\)", self.bytes[end:last])
            if not before or not after:
                return start, end
            start, end = first + before.start(), end + after.end()

    def text(self, start: int, end: int) -> str:
        return self.bytes[start:end].decode()

    def nodes(self) -> Iterator[ast.AST]:
        """All nodes in the order of the text, but for those in f-strings, whose places old Pythons do not know."""
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            if not isinstance(node, ast.JoinedStr):
                yield node
                waiting += reversed(list(ast.iter_child_nodes(node)))


def find_splices(source: Source) -> Iterator[Splice]:
    """Every small fault in a source."""
    for node in source.nodes():
        for faults in (
            _splice_logic,
            _splice_conditions,
            _splice_statements,
            _splice_lists,
            _splice_arguments,
            _splice_constants,
            _splice_arithmetic,
        ):
            yield from faults(source, node)


def _splice_logic(source: Source, node: ast.AST) -> Iterator[Splice]:
    """Conjuncts, disjuncts and `not` dropped; comparisons negated and shifted."""
    if isinstance(node, ast.BoolOp):
        spans = [source.span(value) for value in node.values]
        fault = "drops a conjunct" if isinstance(node.op, ast.And) else "drops a disjunct"
        for this, following in pairwise(spans):
            yield Splice(fault, this[0], following[0], "")
        yield Splice(fault, spans[-2][1], spans[-1][1], "")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Splice("drops a not", source.start(node), source.span(node.operand)[0], "")
    elif isinstance(node, ast.Compare):
        for (left, right), op in zip(
            pairwise([node.left, *node.comparators]), node.ops, strict=True
        ):
            place = source.span(left)[1], source.span(right)[0]
            for fault, table in (("negates a comparison", NEGATED), ("shifts one", SHIFTED)):
                if type(op) in table:
                    yield Splice(fault, *place, f" {table[type(op)]} ")


def _splice_conditions(source: Source, node: ast.AST) -> Iterator[Splice]:
    """Conditions negated, unless a comparison or a `not` is; guards that never fire; filters dropped."""
    tests = [node.test] if isinstance(node, (ast.If, ast.IfExp, ast.While)) else []
    filters = node.ifs if isinstance(node, ast.comprehension) else []
    for test in [*tests, *filters]:
        place = source.start(test), source.end(test)
        if not isinstance(test, (ast.Compare, ast.UnaryOp)):
            yield Splice("negates a condition", *place, f"not ({source.text(*place)})")
        constant = "True" if test in filters else "False"
        fault = "drops a filter" if test in filters else "never fires"
        yield Splice(fault, *place, constant)


def _splice_statements(source: Source, node: ast.AST) -> Iterator[Splice]:
    """Statements that are calls, removed."""
    for body in (getattr(node, name, None) for name in ("body", "orelse")):
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                start, end = source.start(statement), source.end(statement)
                if len(body) == 1:
                    yield Splice("removes a call", start, end, "pass")
                else:
                    lines = source.begins[statement.lineno - 1], source.begins[statement.end_lineno]
                    yield Splice("removes a call", *lines, "")


def _splice_lists(source: Source, node: ast.AST) -> Iterator[Splice]:
    """Lists of calls, such as the passes of a pipeline: one removed, two neighbours swapped."""
    if not isinstance(node, ast.List) or not any(isinstance(one, ast.Call) for one in node.elts):
        return
    spans = [source.span(one) for one in node.elts]
    ends = [source.start(node) + 1, *(end for _, end in spans)]
    for at, (start, end) in enumerate(spans if len(spans) > 1 else []):
        last = at + 1 == len(spans)
        place = (ends[at], end) if last else (start, spans[at + 1][0])
        yield Splice("removes an element", *place, "")
    for one, two in pairwise(spans):
        between = source.text(one[1], two[0])
        new = source.text(*two) + between + source.text(*one)
        yield Splice("swaps two elements", one[0], two[1], new)


def _splice_arguments(source: Source, node: ast.AST) -> Iterator[Splice]:
    """Keyword arguments removed; neighbours swapped that are written alike, such as two names."""
    if not isinstance(node, ast.Call):
        return
    ends = [source.end(node.func) + 1, *(source.span(argument)[1] for argument in node.args)]
    for keyword in node.keywords:
        if keyword.arg:
            after = re.match(rb"\s*,\s*", source.bytes[source.end(keyword) :])
            if len(ends) > 1 or not after:  # after another argument, whose comma goes too
                yield Splice("drops a keyword", ends[-1], source.end(keyword), "")
            else:
                end = source.end(keyword) + after.end()
                yield Splice("drops a keyword", source.start(keyword), end, "")
        ends.append(source.end(keyword))
    for one, two in pairwise(node.args):
        first, second = source.span(one), source.span(two)
        texts = source.text(*first), source.text(*second)
        alike = type(one) is type(two) and type(getattr(one, "value", 0)) is type(
            getattr(two, "value", 0)
        )
        if alike and texts[0] != texts[1] and not isinstance(one, ast.Starred):
            between = source.text(first[1], second[0])
            yield Splice("swaps two arguments", first[0], second[1], texts[1] + between + texts[0])


def _splice_constants(source: Source, node: ast.AST) -> Iterator[Splice]:
    """Whole numbers off by one; True for False."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        flips = isinstance(node.value, bool)
        new = str(not node.value) if flips else str(node.value + 1)
        fault = "flips a constant" if flips else "is off by one"
        yield Splice(fault, source.start(node), source.end(node), new)


def _splice_arithmetic(source: Source, node: ast.AST) -> Iterator[Splice]:
    """+ and -, * and // exchanged."""
    if isinstance(node, ast.BinOp):
        left, right, after = node.left, node.right, ""
    elif isinstance(node, ast.AugAssign):
        left, right, after = node.target, node.value, "="
    else:
        return
    texts = (ast.JoinedStr, ast.Constant)
    of_text = any(isinstance(n, texts) and not _is_number(n) for n in (left, right))
    if type(node.op) in EXCHANGED and not of_text:
        place = source.span(left)[1], source.span(right)[0]
        yield Splice("exchanges an operator", *place, f" {EXCHANGED[type(node.op)]}{after} ")


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
