"""The checks of chapter 1: visitors that measure, a mutator that rewrites, and what a pass must not do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import IRModule

from chapters.ch01_walk_the_ir.given import DropAnyDoubleTranspose, Small
from chapters.checking import expect
from chapters.checking.attributes import attributes, check_attaches, keeps_module_facts
from chapters.checking.expect import Section
from chapters.checking.judge import judge_pass, observe_pass
from chapters.checking.programs import kernels, operators
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.ir.relax_effects import bindings_of, calls_in
from chapters.kit.passes.planned_storage import lower
from chapters.runner.failure import CheckFailed
from solutions.ch01_walk_the_ir.walk_the_ir import DropDoubleTranspose

LESSON = "chapters/ch01_walk_the_ir/lesson.md"
WALK = Section(LESSON, "A visitor walks everywhere")
BYTES = Section(LESSON, "What a call moves")
LAUNCHES = Section(LESSON, "What launches a kernel")
REWRITE = Section(LESSON, "A mutator rewrites")
AXES_CANCEL = Section(LESSON, "Which axes cancel")
NOT_FIRE = Section(LESSON, "When it must not fire")
PURE = Section(LESSON, "A pass is a function")
BREAK = Section(LESSON, "Break it")


# --- modules to measure ---------------------------------------------------------------------------

# several functions, one private; a kernel called twice; a packed function; a function's call
Mixed = relax_module(
    kernel("scale(a, b)", (6,), "b[at] = a[at] * T.float32(2)")
    + kernel("negate(a)", (6,), "a[at] = T.float32(0) - a[at]")
    + """
@private
def helper(x: (6,)):
    a = R.exp(x)
    b = R.add(a, x)

def forward(x: (6,)):
    a = R.call_tir(cls.scale, (x,), out_ty=R.Tensor((6,), "float32"))
    b = R.call_tir(cls.scale, (a,), out_ty=R.Tensor((6,), "float32"))
    c = cls.helper(b)
    d = R.add(c, a)
    e = R.call_tir_inplace(cls.negate, (d,), inplace_indices=[0], out_ty=R.Tensor((6,), "float32"))
    f = R.call_dps_packed("library.sort", (e,), out_ty=R.Tensor((6,), "float32"))

@bare
def same(x: (6,)):
    return x
"""
)
# an `if` with work in both branches, and no function called main
Branches = relax_module("""
def choose(x: (6,), flag: ("bool",)):
    if flag:
        a = R.exp(x)
        b = R.add(a, x)
    else:
        a = R.negative(x)
        b = R.add(a, a)
    return b
""")


def _make_nested() -> IRModule:
    """add(exp(x), negative(exp(x))) and concat((exp(x), x)) in one binding each, and a function inside a function."""
    x, y, out = (
        relax.Var(name, relax.TensorType((size,), "float32"))
        for name, size in (("x", 6), ("y", 6), ("out", 12))
    )
    value = relax.op.add(relax.op.exp(x), relax.op.negative(relax.op.exp(x)))
    joined = relax.op.concat([relax.op.exp(x), y])
    bindings = [relax.VarBinding(y, value), relax.VarBinding(out, joined)]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], out)
    nested = relax.Function([x], body, relax.TensorType((12,), "float32"))
    mod = relax_module("""
def outer(y: (6,)):
    @R.function
    def inner(z: R.Tensor((6,), "float32")) -> R.Tensor((6,), "float32"):
        s = R.sqrt(z)
        return s

    r: R.Tensor((6,), "float32") = inner(y)
    return r
""")
    mod["nested"] = nested.with_attr("global_symbol", "nested")
    return mod


# the arithmetic in the shape is a call too, but of no Relax operator
SymbolicSizes = relax_module("""
def main(x: ("n", 6)):
    out = R.nn.relu(R.zeros(R.shape([T.if_then_else(n > 3, n, T.int64(3)), 6]), "float32"))
""")


Kernels = IRModule({"scale": Mixed["scale"]})


# --- looking at modules ---------------------------------------------------------------------------


def _count_transposes(mod: IRModule, name: str) -> int:
    return operators(mod, name).count("permute_dims")


def _count_kernels(mod: IRModule, name: str) -> int:
    """Calls of PrimFuncs and packed functions in the fully lowered function: each is one launch."""
    lowered = lower(mod)
    return sum(
        getattr(call.op, "name_hint", "") in kernels(lowered)
        or isinstance(call.op, relax.ExternFunc)
        for call in calls_in(lowered[name])
    )


# --- 1.1 ------------------------------------------------------------------------------------------


def _count_calls(impl, mod: IRModule) -> dict[str, int]:
    result = impl.count_calls(mod)
    wanted = 'a dict such as {"relax.matmul": 7}'
    expect.returns(result, dict, "count_calls", "a dict", expected=wanted)
    return {name: count for name, count in result.items() if count}


def _compare_counts(yours: dict[str, int], expected: dict[str, int], what: str, why: str) -> None:
    """Equal, or fail showing only the names that differ. why: why there may be too few."""
    names = sorted(n for n in {*yours, *expected} if yours.get(n, 0) != expected.get(n, 0))
    if names:
        too_many = [n for n in names if yours.get(n, 0) > expected.get(n, 0)]
        if too_many and all(n in expected for n in too_many):
            why = "Each call counts once, and visit_call_ runs once per call."
        elif too_many and len(too_many) < len(names):
            why = "The keys are the names that call_name returns."
        wanted = "\n".join(f"{n}: {expected.get(n, 0)}" for n in names)
        shown = "\n".join(f"{n}: {yours.get(n, 0)}" for n in names)
        raise CheckFailed(what, expected=wanted, yours=shown, why=why, read=WALK)


def test_1_1_counts_every_function(impl) -> None:
    """count_calls counts over all Relax functions, private ones too, and adds them up"""
    forward = {
        "relax.call_tir:scale": 2,
        "@helper": 1,
        "relax.add": 1,
        "relax.call_tir_inplace:negate": 1,
        "relax.call_dps_packed:library.sort": 1,
    }
    helper = {"relax.exp": 1, "relax.add": 1}
    yours = _count_calls(impl, Mixed)
    _compare_counts(
        yours,
        forward | helper | {"relax.add": 2},
        "count_calls is wrong for a module with three Relax functions, one of them private (these names differ).",
        "A module can have many functions, and passes that fuse put each group into a private one. Count all of them."
        if yours in (forward, helper, {})
        else "Every call counts, whatever it calls: an operator, a kernel, another function or a packed function. Two "
        "calls of the same thing are two.",
    )


def test_1_1_counts_in_both_branches(impl) -> None:
    """calls in either branch of an if count, and no function need be called main"""
    _compare_counts(
        _count_calls(impl, Branches),
        {"relax.exp": 1, "relax.negative": 1, "relax.add": 2},
        "count_calls is wrong for a function with an `if` (these names differ).",
        "The branches of an `if` hold bindings of their own. A loop over the function's blocks misses them.",
    )


def test_1_1_counts_calls_within_calls(impl) -> None:
    """calls in another call's arguments and in inner functions count"""
    _compare_counts(
        _count_calls(impl, _make_nested()),
        {
            "relax.concat": 1,
            "relax.add": 1,
            "relax.exp": 3,
            "relax.negative": 1,
            "relax.sqrt": 1,
            "closure": 1,
        },
        "count_calls is wrong for add(exp(x), negative(exp(x))), for concat((exp(x), y)), or for a function inside a "
        "function.",
        "The visitor goes into a call's arguments, and into the tuples among them, only if your visit_call_ calls "
        "super().visit_call_(call).",
    )


def test_1_1_counts_nothing_where_nothing_is(impl) -> None:
    """a module of PrimFuncs has no calls, and every count starts from zero"""
    _compare_counts(
        _count_calls(impl, Kernels),
        {},
        "count_calls found calls in a module that holds one PrimFunc and no Relax function.",
        "PrimFuncs hold loops over buffers, and a Relax visitor cannot walk over them. Skip them.",
    )
    first, second = _count_calls(impl, Branches), _count_calls(impl, Branches)
    expect.equal(
        second,
        first,
        "count_calls returns another answer when it is called a second time on the same module.",
    )


def test_1_1_stays_out_of_shapes(impl) -> None:
    """the arithmetic in shapes is no call of the model"""
    _compare_counts(
        _count_calls(impl, SymbolicSizes),
        {"relax.zeros": 1, "relax.nn.relu": 1},
        "count_calls counts if_then_else(n > 3, n, 3), which computes a size in the shape given to zeros.",
        "Sizes are computed on the host and launch no kernel. CallVisitor stays out of shapes. "
        "relax.analysis.post_order_visit and PyExprVisitor go into them.",
    )


def observe_1_1(impl):
    return [
        lambda mod=mod: sorted(impl.count_calls(mod).items())
        for mod in (Mixed, Branches, _make_nested(), Kernels, Moves, SymbolicSizes)
    ]


# --- 1.2 ------------------------------------------------------------------------------------------


def _list_types() -> list[tuple[str, tvm.ir.Type, int]]:
    """(what it is, the type, its bytes where n = 3 and m = 5)."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    tensor = relax.TensorType
    inner = relax.TupleType([tensor((n,), "int64"), tensor((), "bool")])
    two = relax.TupleType([tensor((3,), "int4")] * 2)
    return [
        ("R.Tensor((3, 7), float32)", tensor((3, 7), "float32"), 84),
        ("R.Tensor((), float16), one element", tensor((), "float16"), 2),
        ("R.Tensor((7,), bool)", tensor((7,), "bool"), 7),
        ("R.Tensor((5,), int4), twenty bits", tensor((5,), "int4"), 3),
        ("R.Tensor((8, 2), float4_e2m1fn)", tensor((8, 2), "float4_e2m1fn"), 8),
        ("R.Tensor((n, 4 * m + 1), float32)", tensor((n, 4 * m + 1), "float32"), 252),
        ("a tuple that holds a tuple", relax.TupleType([tensor((2,), "int8"), inner]), 27),
        ("a tuple of two R.Tensor((3,), int4), twelve bits each", two, 4),
        ("R.Shape([n, m])", relax.ShapeType([n, m]), 0),
        ("a scalar int64", tvm.ir.PrimType("int64"), 0),
    ]


SIZES = {"n": 3, "m": 5}


def test_1_2_sizes_every_type(impl) -> None:
    """type_bytes sizes tensors of any dtype and shape, and tuples of them"""
    for title, ty, size in _list_types():
        what = f"type_bytes is wrong for {title}, with n = 3 and m = 5."
        why = "A tensor takes the bits of one element times all its dimensions, rounded up to bytes once."
        if "int4" in title and isinstance(ty, relax.TensorType):
            why = "Multiply all bits first, and round up to bytes once. Two four-bit weights share one byte."
        elif isinstance(ty, relax.TupleType):
            why = "A tuple takes the sum of its fields, each rounded up by itself. A field may be a tuple again."
        elif not isinstance(ty, relax.TensorType):
            why = "No kernel reads or writes the memory of a shape or of a number."
        BYTES.equal(impl.type_bytes(ty, SIZES), size, what, why=why)


def test_1_2_refuses_what_it_cannot_size(impl) -> None:
    """a size that is not given, or not known, is an error that says so, not a guess"""
    n = tirx.Var("tokens", "int64")
    cases = [
        ("a dimension `tokens` that sizes lacks", relax.TensorType((n, 4), "float32"), "tokens"),
        ("a tensor of unknown shape", relax.TensorType(None, "float32", ndim=2), ""),
    ]
    for title, ty, word in cases:
        try:
            result = impl.type_bytes(ty, {"n": 3})
        except ValueError as error:
            what = f"type_bytes raises a ValueError for {title}, and its message does not name that dimension."
            expect.that(word in str(error), what, yours=str(error))
            continue
        what = f"type_bytes returned {result} for {title}, instead of raising an error."
        wanted = "the ValueError that `extents` raises"
        why = "If a size is made up, every total that includes it is wrong, and no error says so."
        raise CheckFailed(what, expected=wanted, why=why, read=BYTES)


# one call of every sort that `binding_bytes` must tell apart
Moves = relax_module(
    kernel("update(a, b)", (4, 6), "a[at] = a[at] + b[at]")
    + """
@private
@bare
def helper(x: (4, 6)):
    y = R.exp(x)
    return y

def main(
    x: (4, 6),
    h: (4, 6, "float16"),
    pair: R.Tuple(R.Tensor((4, 6), "float32"), R.Tensor((2, 6), "float32")),
    flag: ("bool",),
):
    doubled = R.add(x, x)
    shifted = R.add(doubled, R.const(3.0, "float32"))
    wide = R.astype(h, dtype="float32")
    first = pair[0]
    joined = R.concat(pair, axis=0)
    flat = R.reshape(joined, (36,))
    _alias = flat
    _halves = R.split(x, 2, axis=0)
    updated = R.call_tir_inplace(cls.update, (wide, first), inplace_indices=[0], out_ty=R.Tensor((4, 6), "float32"))
    helped = cls.helper(updated)
    known = R.match_cast(R.multiply(helped, shifted), R.Tensor((4, 6), "float32"))
    found = R.match_cast(
        R.call_pure_packed("library.f", known, ty_args=R.Tensor(dtype="float32", ndim=2)),
        R.Tensor((4, 6), "float32"),
    )
    if flag:
        chosen = R.exp(found)
    else:
        chosen = R.add(found, x)
    return chosen
"""
)
MOVES = [
    ("doubled", "relax.add", 96, 96),
    ("shifted", "relax.add", 100, 96),
    ("wide", "relax.astype", 48, 96),
    ("joined", "relax.concat", 144, 144),
    ("flat", "relax.reshape", 0, 0),
    ("_halves", "relax.split", 96, 96),
    ("updated", "relax.call_tir_inplace:update", 192, 96),
    ("helped", "@helper", 0, 0),
    ("known", "relax.multiply", 192, 96),
    ("found", "relax.call_pure_packed:library.f", 96, 96),  # only the match_cast says its shape
    ("chosen_then", "relax.exp", 96, 96),
    ("chosen_else", "relax.add", 192, 96),
]


def _list_arguments() -> list[tuple[str, relax.Call, list[str]]]:
    """(what it is, a call, the names of the tensors it reads)."""
    tensor = relax.TensorType((4,), "float32")
    a, b, c, other = (relax.Var(name, tensor) for name in "abca")
    t = relax.Var("t", relax.TupleType([tensor, tensor]))
    callee = tvm.ir.GlobalVar("kernel")
    nested = relax.op.call_dps_packed("f", [relax.Tuple([c, a]), b], tensor)
    twice = relax.op.call_dps_packed("f", [c, relax.Tuple([a, c])], tensor)
    shape = relax.op.call_dps_packed("f", [a, relax.ShapeExpr([4])], tensor)
    return [
        ("add(a, b)", relax.op.add(a, b), ["a", "b"]),
        ("add(a, a)", relax.op.add(a, a), ["a"]),
        ("add of two variables that are both called a", relax.op.add(a, other), ["a", "a"]),
        ("call_tir(kernel, (b, c, b))", relax.call_tir(callee, (b, c, b), tensor), ["b", "c"]),
        ("call_dps_packed(f, ((c, a), b)), a tuple in the tuple", nested, ["c", "a", "b"]),
        ("call_dps_packed(f, (c, (a, c))), a tuple in the tuple", twice, ["c", "a"]),
        ("call_dps_packed(f, (a, R.shape([4])))", shape, ["a"]),
        ("concat((a, c))", relax.op.concat([a, c]), ["a", "c"]),
        ("concat(t) of a variable t that holds a tuple", relax.op.concat(t), ["t"]),
        ("reshape(a, R.shape([2, 2]))", relax.op.reshape(a, (2, 2)), ["a"]),
        ("add(a, R.const(2.0))", relax.op.add(a, relax.const(2.0, "float32")), ["a", "a constant"]),
        ("zeros((4,))", relax.op.zeros((4,), "float32"), []),
    ]


def _name_tensors(tensors) -> list[str]:
    wanted = "a list of arguments, empty where no tensor is read"
    expect.returns(tensors, (list, tuple), "tensors_read", "a list", expected=wanted)
    kinds = {tvm.ir.GenericConst: "a constant", relax.Tuple: "a tuple", relax.ShapeExpr: "a shape"}
    return [
        getattr(one, "name", kinds.get(type(one), f"a {type(one).__name__}")) for one in tensors
    ]


WRITTEN_OUT = (
    "A tuple written out in a call stands for its fields, which may be tuples again. call_tir wraps its arguments in "
    "one. Each tensor is listed once. Shapes and kernels are arguments too, and are no tensors."
)


def test_1_2_finds_what_a_call_reads(impl) -> None:
    """tensors_read gives each tensor argument once, in order, also those inside a tuple"""
    for title, call, names in _list_arguments():
        BYTES.equal(
            _name_tensors(impl.tensors_read(call)),
            names,
            f"tensors_read is wrong for {title}.",
            why=WRITTEN_OUT
            if any(isinstance(argument, relax.Tuple) for argument in call.args)
            else "The list has each argument that is a tensor, in order and once. Two variables are the same if they "
            "are one node, whatever their names. A variable that holds a tuple stays as it is. A shape is no tensor.",
        )


def _measure_bindings(impl, mod: IRModule, name: str) -> list[tuple[str, str, int, int]]:
    rows = impl.binding_bytes(mod[name], {})
    return [(row.var, row.call, row.read, row.written) for row in rows]


def test_1_2_measures_each_call(impl) -> None:
    """binding_bytes has one entry per call, in order, with the bytes read and written"""
    yours = _measure_bindings(impl, Moves, "main")
    shown, expected = (
        "\n".join(
            f"{var} = {call}: {read} read, {written} written" for var, call, read, written in rows
        )
        for rows in (yours, MOVES)
    )
    what = (
        f"binding_bytes returned {len(yours)} entries for a function with {len(MOVES)} bound calls."
    )
    why = (
        "Every binding whose value is a call has one entry, even if the call moves 0 bytes, as a view or a call of "
        "another function does. Aliases, tuples and items of tuples have none."
    )
    BYTES.that(len(yours) == len(MOVES), what, expected=expected, yours=shown, why=why)
    for mine, right in zip(yours, MOVES, strict=True):
        BYTES.equal(
            mine,
            right,
            f"binding_bytes is wrong for `{right[0]}` (variable, call, bytes read, bytes written).",
            why="This is a binding of `Moves.main` in checks.py. The fields of Traffic are the name of the "
            "variable, the call's `call_name`, the bytes read and the bytes written.",
        )


def test_1_2_evaluates_symbolic_shapes(impl) -> None:
    """one function, measured for several sizes"""
    mod = relax_module('def main(x: ("n", 6)):\n    out = R.exp(x)')
    for n in (1, 1000):
        rows = impl.binding_bytes(mod["main"], {"n": n})
        what = f"binding_bytes is wrong for exp(x), x of shape (n, 6) float32, with n = {n}."
        BYTES.equal([(row.read, row.written) for row in rows], [(24 * n, 24 * n)], what)


# a packed function called directly, and one called through call_dps_packed
Library = relax_module("""
@impure
def main(x: (4, 6)):
    logged = R.call_packed("library.log", x, ty_args=R.Tensor((4, 6), "float32"))
    known = R.call_dps_packed("library.sort", (logged,), out_ty=R.Tensor((4, 6), "float32"))
    return known
""")


def test_1_2_charges_no_function(impl) -> None:
    """a direct call of a packed function moves nothing; a call through call_dps_packed does"""
    BYTES.equal(
        _measure_bindings(impl, Library, "main"),
        [
            ("logged", "packed:library.log", 0, 0),
            ("known", "relax.call_dps_packed:library.sort", 96, 96),
        ],
        "binding_bytes is wrong for calls of packed functions (variable, call, bytes read, bytes written).",
        why="call_dps_packed says which tensors its function reads and which one it fills. A direct call of a packed "
        "function (`call.op` is an ExternFunc, not an Op) does not say so. Count 0 bytes for it.",
    )


def observe_1_2(impl):
    return [
        lambda: [impl.type_bytes(ty, SIZES) for _, ty, _ in _list_types()],
        lambda: [_name_tensors(impl.tensors_read(call)) for _, call, _ in _list_arguments()],
        lambda: _measure_bindings(impl, Moves, "main"),
    ]


# --- 1.3 ------------------------------------------------------------------------------------------

# views and copies, a kernel launched twice, a call whose result is unused, a call with two results
Views = relax_module("""
def main(x: (4, 6), w: (3, 8)):
    with R.dataflow():
        rows = R.reshape(x, (3, 8))
        wt = R.permute_dims(w)
        product = R.matmul(rows, wt)
        twice = R.add(product, product)
        thrice = R.add(twice, product)
        _unused = R.exp(thrice)
        halves = R.split(rows, 2, axis=1)
        joined = R.add(halves[0], halves[1])
        R.output(joined, thrice)
    copied = R.reshape(joined, (12, 1))
    out = R.concat((copied, copied), axis=1)
    return out
""")


def _record_launches(mod: IRModule, name: str, shapes: list[tuple[int, ...]]) -> list[str]:
    """The kernels that the VM really calls when `name` runs, in order."""
    vm = expect.machine(mod)
    seen: list[str] = []

    def note(_func, symbol, before_run, _ret, *_args):
        if before_run and not symbol.startswith("vm."):
            seen.append(symbol)

    vm.set_instrument(note)
    random = np.random.default_rng(1)
    vm[name](*[tvm.runtime.tensor(random.standard_normal(s).astype("float32")) for s in shapes])
    return seen


def _count_launches(impl, mod: IRModule) -> dict[str, int]:
    given, before = mod.clone(), mod.clone()
    result = impl.launches(given)
    expect.unchanged(given, before, "launches")
    wanted = 'a dict such as {"main": 3}'
    expect.returns(result, dict, "launches", "a dict", expected=wanted)
    LAUNCHES.that(
        all(isinstance(key, str) for key in result),
        "The dict that launches returned has keys that are not strings.",
        expected=wanted,
        yours=", ".join(sorted({f"a key that is a {type(key).__name__}" for key in result})),
        why="`functions_items()` gives GlobalVars. The name of a GlobalVar is its `name_hint`.",
    )
    return result


def test_1_3_agrees_with_the_vm(impl) -> None:
    """launches counts the kernels that the VM calls: a view is none, a kernel called twice is two"""
    kernels = _record_launches(Views, "main", [(4, 6), (3, 8)])
    what = f"launches gives another number than the virtual machine, which called {', '.join(kernels)}."
    why = "A view launches no kernel. A kernel called twice is two launches, and an unused call is launched too."
    yours = _count_launches(impl, Views)
    has_main = "launches has no entry for `main`, the module's only Relax function."
    wanted = '{"main": the number of its launches}'
    LAUNCHES.that("main" in yours, has_main, expected=wanted, yours=repr(yours))
    LAUNCHES.equal(yours["main"], len(kernels), what, why=why)


def test_1_3_counts_each_function_by_itself(impl) -> None:
    """each Relax function has its own number, which may be zero, without the launches of functions that it calls"""
    LAUNCHES.equal(
        _count_launches(impl, Mixed),
        {"forward": 5, "helper": 2, "same": 0},
        "launches is wrong for a module with three Relax functions.",
        why="forward launches scale twice, add, negate and a library's sort; helper launches exp and add; "
        "same launches nothing.",
    )


def test_1_3_counts_both_branches(impl) -> None:
    """the launches in both branches of an `if` count"""
    what = "launches is wrong for a function with an `if`."
    why = "launches counts what is in the code, so both branches count, though one run takes only one."
    LAUNCHES.equal(_count_launches(impl, Branches), {"choose": 4}, what, why=why)


def test_1_3_fills_the_scoreboard(impl) -> None:
    """scoreboard puts calls, launches and bytes together"""
    board = impl.scoreboard(Moves, {})
    lowered = impl.to_kernels(Moves)
    rows = impl.binding_bytes(lowered["main"], {})
    row = board.row("main")
    found = (row.launches, row.read, row.written)
    what = "The scoreboard's row of `main` is wrong (launches, bytes read, bytes written)."
    expect.equal(found, (10, sum(row.read for row in rows), sum(row.written for row in rows)), what)
    expect.equal(board.calls.get("relax.add"), 3, "The scoreboard counts relax.add wrongly.")


def observe_1_3(impl):
    return [lambda mod=mod: sorted(impl.launches(mod).items()) for mod in (Views, Mixed, Branches)]


# --- 1.4 ------------------------------------------------------------------------------------------

# (shape, inner axes, outer axes): pairs that cancel, and pairs that do not
CANCEL = {
    "reversed_twice": ((3, 4), None, None),
    "reversed_twice_rank_3": ((2, 3, 4), None, None),
    "rotated_and_back": ((2, 3, 4), [1, 2, 0], [2, 0, 1]),
    "rotated_back_by_negative_axes": ((2, 3, 4), [1, 2, 0], [-1, 0, -2]),
    "reversed_in_words": ((2, 3, 4), None, [2, 1, 0]),
    "reversed_in_negative_words": ((2, 3, 4), [-1, -2, -3], None),
    "last_two_swapped": ((2, 3, 4), [0, 2, 1], [0, -1, -2]),
    "a_scalar": ((), [], None),
}
REMAIN = {
    "rotated_twice": ((2, 3, 4), [1, 2, 0], [1, 2, 0]),
    "rotated_twice_in_a_cube": ((3, 3, 3), [1, 2, 0], [1, 2, 0]),
    "swapped_then_reversed": ((2, 3, 4), [0, 2, 1], None),
    "reversed_then_swapped": ((2, 3, 4), None, [0, 2, 1]),
    "two_different_swaps": ((3, 3, 3), [1, 0, 2], [0, 2, 1]),
    "rotated_by_negative_axes_twice": ((2, 3, 4), [-1, 0, 1], [-1, 0, 1]),
    "two_of_a_longer_rotation": ((2, 3, 4, 5), [1, 2, 3, 0], [1, 2, 3, 0]),
}


ONE_LEFT = (
    "A call whose result is unused is still launched. Return x itself in the place of the outer transpose, and remove "
    "unused bindings afterwards."
)


def _make_pairs(cases: dict[str, tuple]) -> IRModule:
    """One function per case: permute_dims(permute_dims(exp(x), inner), outer), and one more exp."""
    functions = [
        f"""
def {name}(x: {(*shape, "float32")}):
    turned = R.permute_dims(R.exp(x), {inner})
    back = R.permute_dims(turned, {outer})
    out = R.exp(back)
"""
        for name, (shape, inner, outer) in cases.items()
    ]
    return relax_module("".join(functions))


def _judge_drop(impl, mod: IRModule, title: str, **looks) -> IRModule:
    """The module after DropDoubleTranspose. A second run may find more, where the first has joined two blocks."""
    looks = {"why_numbers": RESTORED, "read": REWRITE, "settles": False, **looks}
    return judge_pass(impl.DropDoubleTranspose(), mod, "DropDoubleTranspose", title, **looks)


RESTORED = (
    "Two transposes cancel only if they restore the order of all dimensions, and x is still the same then. Expected is "
    "what the function gave before the pass."
)


def _describe_axes(case: tuple) -> str:
    return f"inner axes {case[1]}, outer axes {case[2]}, on a tensor of rank {len(case[0])}"


def _explain_what_stays(impl, case: tuple) -> str:
    """Which part of the answer left both transposes of `case`, as far as `axes_cancel` tells."""
    _, inner, outer = case
    try:
        said = impl.axes_cancel(inner, outer)
    except Exception as error:
        said = error
    if said is True:
        return (
            "axes_cancel is right about these axes. So your pass does not find the pair, or the module that you return "
            "does not hold the new function."
        )
    return (
        f"Your axes_cancel({inner}, {outer}) gives {said!r}. None reverses all dimensions, and a negative axis counts "
        "from the end."
    )


# (inner axes, outer axes, whether they cancel), for axes_cancel alone
AXES = [
    ([1, 2, 0], [2, 0, 1], True),
    ([1, 2, 0], [1, 2, 0], False),
    ([1, 0, 2], [1, 0, 2], True),
    ([1, 2, 3, 0], [3, 0, 1, 2], True),
    ([1, 2, 0], [0, 2, 1], False),
    ([1, 2, 0], [-1, 0, -2], True),
    ([-1, 0, 1], [1, 2, -3], True),
    (None, [2, 1, 0], True),
    ([2, 1, 0], None, True),
    (None, [1, 0, 2], False),
    (None, None, True),
]


def test_1_4_says_which_axes_cancel(impl) -> None:
    """axes_cancel says which two `axes` cancel"""
    for inner, outer, right in AXES:
        kept = inner and [*inner], outer and [*outer]
        what = f"axes_cancel({inner}, {outer}) is wrong."
        why = (
            "Write down which dimension of x becomes dimension 0, 1, … of the result. The two cancel if this list is "
            "0, 1, … again. None reverses all dimensions, and a negative number counts from the end."
        )
        AXES_CANCEL.equal(bool(impl.axes_cancel(inner, outer)), right, what, why=why)
        what = "axes_cancel changed a list that it was given."
        AXES_CANCEL.equal(
            (inner, outer), kept, what, why="The lists belong to a call of the module."
        )


def test_1_4_drops_pairs_that_cancel(impl) -> None:
    """two transposes that cancel both disappear, and the numbers stay the same"""

    def check_none_is_left(after: IRModule) -> None:
        for name, case in CANCEL.items():
            left = _count_transposes(after, name)
            what = f"DropDoubleTranspose left {left} of two transposes that cancel: {_describe_axes(case)}."
            why = ONE_LEFT if left == 1 else _explain_what_stays(impl, case)
            REWRITE.equal(left, 0, what, why=why)

    _judge_drop(impl, _make_pairs(CANCEL), "two transposes that cancel", fires=check_none_is_left)


def test_1_4_leaves_pairs_that_do_not(impl) -> None:
    """two transposes that do not cancel stay, and so does a single one"""

    def check_some_are_left(after: IRModule) -> None:
        for name, case in REMAIN.items():
            what = f"DropDoubleTranspose dropped two transposes that do not cancel: {_describe_axes(case)}."
            wanted = "both stay, or one with the axes of both"
            why = "The next operator would read x with its dimensions in another order. In a cube no shape changes."
            left = _count_transposes(after, name)
            NOT_FIRE.that(left > 0, what, expected=wanted, yours="none is left", why=why)

    title = "two transposes that do not cancel"
    _judge_drop(impl, _make_pairs(REMAIN), title, fires=check_some_are_left, read=NOT_FIRE)


def test_1_4_needs_no_known_rank(impl) -> None:
    """reversing twice cancels, whatever the number of dimensions"""
    mod = relax_module("""
def main(x: R.Tensor(dtype="float32")):
    turned = R.permute_dims(x)
    back = R.permute_dims(turned)
""")
    title = "two transposes with axes=None, of a tensor whose rank is not known"
    _judge_drop(impl, mod, title, calls={"permute_dims": 0}, runs=False)


# inner transposes that something else uses, block outputs, and calls outside of dataflow
Users = relax_module(
    kernel("scale(a, b)", (4, 4), "b[at] = a[at] * T.float32(2)")
    + kernel("unused_kernel(a, b)", (4, 4), "b[at] = a[at]")
    + """
I.module_attrs({"course.note": "keep me"})
I.module_global_infos({"dummy": [I.dummy_global_info()]})

@private
@bare
@impure
def unused_function(x: (4, 4)):
    _said = R.print(x, format="")
    turned = R.permute_dims(x)
    return turned

def inner_used_twice(x: (4, 4)):
    turned = R.permute_dims(x)
    back = R.permute_dims(turned)
    out = R.subtract(back, turned)

@bare
@impure
def outside_dataflow(x: (4, 4)):
    back = R.permute_dims(R.permute_dims(x))
    out = R.call_tir(cls.scale, (back,), out_ty=R.Tensor((4, 4), "float32"))
    return out

def pair_is_the_output(x: (4, 4)):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        back = R.permute_dims(R.permute_dims(R.exp(x)))
        R.output(back)
    out = R.negative(back)
    return out

@private
def hidden(x: (4, 4)):
    out = R.add(x, R.permute_dims(R.permute_dims(R.const(2.0, "float32"))))

def calls_hidden(x: (4, 4)):
    out = R.exp(cls.hidden(x))

def through_an_alias(x: (4, 4)):
    turned = R.permute_dims(x)
    alias = turned
    again = alias
    back = R.permute_dims(again)
    out = R.exp(back)

def four_in_a_row(x: (4, 4)):
    out = R.exp(R.permute_dims(R.permute_dims(R.permute_dims(R.permute_dims(x)))))

def three_in_a_row(x: (4, 4)):
    out = R.exp(R.permute_dims(R.permute_dims(R.permute_dims(x))))

def something_between(x: (4, 4)):
    out = R.permute_dims(R.exp(R.permute_dims(x)))

@bare
def both_in_a_branch(x: (4, 4), flag: ("bool",)):
    if flag:
        chosen = R.exp(R.permute_dims(R.permute_dims(x)))
    else:
        chosen = R.negative(x)
    return chosen
"""
)
Users["scale"] = Users["scale"].with_attr("course.kernel", 1)

# name -> (how many transposes are left, why)
LEFT = {
    "inner_used_twice": (1, "the inner transpose has another user and stays; the outer one goes"),
    "through_an_alias": (0, "an alias of the inner result does not hide the pair"),
    "four_in_a_row": (0, "what is left after one pair is gone may be a pair again"),
    "three_in_a_row": (1, "three reversals are one"),
    "something_between": (2, "exp is between them, so there is no pair"),
    "outside_dataflow": (
        0,
        "bindings need not be in a dataflow block, and a function that is marked impure need not hold an impure call",
    ),
    "pair_is_the_output": (0, "the result leaves the dataflow block, and is used after it"),
    "hidden": (0, "private functions are rewritten too, and what is transposed may be a constant"),
    "both_in_a_branch": (0, "a branch of an `if` has binding blocks of its own"),
}


def test_1_4_keeps_what_has_other_users(impl) -> None:
    """users, aliases, chains, block outputs, private functions: only what cancels goes, and saves two launches"""

    def check_how_many_are_left(after: IRModule) -> None:
        for name, (left, why) in LEFT.items():
            what = f"After DropDoubleTranspose, the function `{name}` has the wrong number of transposes."
            found = _count_transposes(after, name)
            REWRITE.equal(found, left, what, why=why[0].upper() + why[1:] + ".")

    fewer = "launches of `through_an_alias`", lambda mod: _count_kernels(mod, "through_an_alias"), 2
    looks = {"fires": check_how_many_are_left, "settles": True, "fewer": fewer}
    _judge_drop(impl, Users, "a module of many functions", **looks)


# the inner transpose, or an alias of it, is the output of a dataflow block; what it transposes is not
Edges = relax_module("""
def after_the_block(x: (4, 4)):
    with R.dataflow():
        turned = R.permute_dims(R.exp(x))
        shown = turned
        R.output(shown)
    out = R.negative(R.permute_dims(shown))
    return out

def in_the_next_block(x: (4, 4)):
    with R.dataflow():
        turned = R.permute_dims(R.exp(x))
        shown = turned
        R.output(shown)
    with R.dataflow():
        again = shown
        out = R.negative(R.permute_dims(again))
        R.output(out)
    return out

def in_a_block_after_another_binding(x: (4, 4)):
    with R.dataflow():
        turned = R.permute_dims(R.exp(x))
        R.output(turned)
    between = R.exp(turned)
    with R.dataflow():
        again = turned
        out = R.add(R.permute_dims(again), between)
        R.output(out)
    return out

def in_a_branch(x: (4, 4)):
    with R.dataflow():
        turned = R.permute_dims(R.exp(x))
        R.output(turned)
    if R.const(True, "bool"):
        out = R.exp(R.permute_dims(turned))
    else:
        out = R.negative(turned)
    return out
""")


def test_1_4_uses_what_is_visible(impl) -> None:
    """x is used only where it is in scope; a DataflowVar is not in scope after its block"""
    _judge_drop(impl, Edges, "transposes in two dataflow blocks", read=NOT_FIRE)


# two pairs, one after the other; the annotated types say less than is known once the first pair is gone
Successive = relax_module("""
def main(x: (2, 3, 4)):
    same: R.Tensor(dtype="float32", ndim=3) = x
    turned: R.Tensor(dtype="float32", ndim=3) = R.permute_dims(same, [1, 2, 0])
    back: R.Tensor(dtype="float32", ndim=3) = R.permute_dims(turned, [2, 0, 1])
    between: R.Tensor(dtype="float32", ndim=3) = R.exp(back)
    again: R.Tensor(dtype="float32", ndim=3) = R.permute_dims(between, [1, 2, 0])
    out: R.Tensor(dtype="float32", ndim=3) = R.permute_dims(again, [2, 0, 1])
""")


def test_1_4_goes_into_arguments(impl) -> None:
    """the users of a rewritten call get the new variable, also where its type became more exact"""
    why = "Each pair cancels by itself. Begin visit_call_ with call = super().visit_call_(call), and use that call."
    title = "two pairs that follow each other, with exp between them"
    _judge_drop(impl, Successive, title, calls={"permute_dims": 0}, runs=False, why=why)


# a kernel writes into x between the two transposes of x: by another name in a branch, and two functions further down
Overwritten = relax_module(
    kernel("double(a)", (4, 4), "a[at] = a[at] + a[at]")
    + """
@bare
def main(start: (4, 4)):
    x = R.exp(start)
    turned = R.permute_dims(x)
    same = x
    if R.const(True, "bool"):
        doubled = R.call_tir_inplace(cls.double, (same,), inplace_indices=[0], out_ty=R.Tensor((4, 4), "float32"))
    else:
        doubled = R.exp(start)
    out = R.subtract(doubled, R.permute_dims(turned))
    return out

@private
@bare
def twice(x: (4, 4)):
    doubled = R.call_tir_inplace(cls.double, (x,), inplace_indices=[0], out_ty=R.Tensor((4, 4), "float32"))
    return doubled

@private
@bare
def calls_twice(x: (4, 4)):
    held = cls.twice
    doubled = held(x)
    return doubled

def in_another_function(start: (4, 4)):
    x = R.exp(start)
    turned = R.permute_dims(x)
    doubled = cls.twice(x)
    back = R.permute_dims(turned)
    out = R.subtract(doubled, back)

def further_down(start: (4, 4)):
    x = R.exp(start)
    turned = R.permute_dims(x)
    doubled = cls.calls_twice(x)
    out = R.subtract(doubled, R.permute_dims(turned))

def writes_nothing(x: (4, 4)):
    out = R.permute_dims(R.permute_dims(x))
"""
)

# the same by packed functions; the last call is not impure
Lent = relax_module("""
@impure
def main(start: (4, 4)):
    x = R.exp(start)
    turned = R.permute_dims(x)
    kept = R.call_packed("library.scale", x, ty_args=R.Tensor((4, 4), "float32"))
    back = R.permute_dims(turned)
    return (back, kept)

@impure
def built_in(start: (4, 4)):
    x = R.exp(start)
    turned = R.permute_dims(x)
    kept = R.call_builtin_with_ctx("library.scale", (x,), ty_args=R.Tensor((4, 4), "float32"))
    back = R.permute_dims(turned)
    return (back, kept)

def in_place(start: (4, 4)):
    x = R.exp(start)
    turned = R.permute_dims(x)
    kept = R.call_inplace_packed("library.scale", x, inplace_indices=[0], ty_args=R.Tensor((4, 4), "float32"))
    out = R.subtract(kept, R.permute_dims(turned))
""")


def test_1_4_minds_what_is_overwritten(impl) -> None:
    """x is not read after a kernel or a packed function may have written into it"""

    def check_the_other(after: IRModule) -> None:
        left = _count_transposes(after, "writes_nothing")
        what = f"DropDoubleTranspose left {left} transposes in a function that writes nothing; only others do."
        NOT_FIRE.equal(left, 0, what, why="Decide for each function by itself.")

    title = "a function that writes into x between the two"
    _judge_drop(impl, Overwritten, title, fires=check_the_other, read=NOT_FIRE)
    title = "functions that give x to a packed function between the two"
    why = "An impure call, and an operator in IN_PLACE, may write into a tensor that it is given. Then x is no longer "
    why += "what `turned` was made of."
    _judge_drop(impl, Lent, title, calls={"permute_dims": 6}, runs=False, why=why, read=NOT_FIRE)


# bindings whose variables are unused, but which have an effect
Unused = relax_module("""
@impure
def says(x: (4, 4)):
    turned = R.permute_dims(x)
    _said = R.print(turned, format="")
    back = R.permute_dims(turned)
    return back

def sized(x: R.Tensor(dtype="float32", ndim=2)) -> R.Tensor(dtype="float32", ndim=2):
    n = T.int64()
    m = T.int64()
    turned = R.permute_dims(x)
    back = R.permute_dims(turned)
    _cast = R.match_cast(back, R.Tensor((n, m), "float32"))  # says what n and m are
    zeros = R.zeros((n, m), "float32")
    out = R.concat((back, zeros), axis=0)
""")


def _count_effects(mod: IRModule) -> dict[str, int]:
    """The calls of R.print and the match_casts in each function."""
    prints, found = tvm.ir.Op.get("relax.print"), {}
    for name, func in mod.functions_items():
        casts = sum(isinstance(b, relax.MatchCast) for b in bindings_of(func.body))
        found[name.name_hint] = casts + sum(call.op == prints for call in calls_in(func))
    return found


def test_1_4_keeps_what_does_something(impl) -> None:
    """an unused binding that prints, or that checks or names sizes, is not dead"""
    why = (
        "A print has an effect. A match_cast checks sizes at run time, and defines symbolic sizes. "
    )
    why += "relax.analysis.remove_all_unused keeps both."
    title = "functions with an unused R.print and an unused match_cast"
    kept = _count_effects(Unused)
    looks = {"calls": kept, "count": _count_effects, "runs": False, "why": why, "read": NOT_FIRE}
    _judge_drop(impl, Unused, title, **looks)


# no pair, and a call whose result is unused; transposes of a constant, of an item of a tuple, of the result of an `if`
Alone = relax_module("""
def main(x: (4, 4)):
    _unused = R.exp(x)
    out = R.permute_dims(x)

@bare
def others(x: (4, 4), pair: R.Tuple(R.Tensor((4, 4), "float32"), R.Tensor((4, 4), "float32")), flag: ("bool",)):
    a = R.permute_dims(R.const([[1.0, 2.0], [3.0, 4.0]], "float32"))
    b = R.permute_dims(pair[0])
    if flag:
        chosen = R.exp(x)
    else:
        chosen = R.negative(x)
    c = R.permute_dims(chosen)
    return (a, b, c)
""")


def _share_variables() -> IRModule:
    """`first` binds y to a transpose of x; for `second`, y is a parameter. Both are the same Var."""
    matrix = relax.TensorType((4, 4), "float32")
    x, y, z = (relax.Var(name, matrix) for name in "xyz")

    def func(param: relax.Var, bound: relax.Var) -> relax.Function:
        block = relax.BindingBlock([relax.VarBinding(bound, relax.op.permute_dims(param))])
        return relax.Function([param], relax.SeqExpr([block], bound), matrix)

    functions = {"first": func(x, y), "second": func(y, z)}
    for name, one in functions.items():
        functions[name] = one.with_attr("global_symbol", name)
    return relax.transform.Normalize()(relax.BlockBuilder(IRModule(functions)).get())


def test_1_4_leaves_all_else_alone(impl) -> None:
    """functions, attributes of functions and module, and modules without a pair stay as they are"""
    after = _judge_drop(impl, Users, "a module of many functions", runs=False)
    names, left = ({name.name_hint for name in mod.get_global_vars()} for mod in (Users, after))
    NOT_FIRE.that(
        left == names,
        "DropDoubleTranspose removed or added functions.",
        expected="all functions of the module that it was given, also private ones that have no caller",
        yours=f"missing: {', '.join(sorted(names - left)) or 'none'}; "
        f"added: {', '.join(sorted(left - names)) or 'none'}",
        why="A later pass may call or export them. Remove unused bindings function by function, with "
        "relax.analysis.remove_all_unused(func). DeadCodeElimination works on the whole module.",
    )
    what = "DropDoubleTranspose changed a PrimFunc, which has no transposes of tensors."
    expect.that(tvm_ffi.structural_equal(after["scale"], Users["scale"]), what)
    keeps_module_facts(after, Users, "DropDoubleTranspose")
    attrs = after["pair_is_the_output"].attrs
    what = "A rewritten function has lost its attribute num_input."
    why = "Later passes read attributes. Chapter 2 is about them."
    PURE.that("num_input" in attrs and attrs["num_input"] == 1, what, why=why)
    alone = (
        ("an empty module", IRModule({})),
        ("the decoder", decoder("tiny", functions=["decode"])[0]),
        ("a function with an unused call and one transpose", Alone),
        ("two functions of one transpose each, which share a variable", _share_variables()),
    )
    why = "No two transposes follow each other there. A function without such a pair comes back as it was, with its "
    why += "unused bindings."
    for title, mod in alone:
        _judge_drop(impl, mod, title, stays=True, why=why, read=NOT_FIRE)


def observe_1_4(impl):
    def rewrites() -> str:
        """A pass that rewrites nothing: does its mutator, asked alone, rewrite anything?"""
        mod = _make_pairs(CANCEL)
        after = impl.DropDoubleTranspose()(mod.clone())
        if any(_count_transposes(after, name) < 2 for name in CANCEL):
            return "the pass rewrites"
        functions = [mod[name] for name in CANCEL]
        new = [impl.TransposeDropper(mod).visit_expr(func) for func in functions]
        same = all(map(tvm_ffi.structural_equal, new, functions))
        return f"the pass rewrites nothing, the mutator {'neither' if same else 'does'}"

    modules = (
        _make_pairs(CANCEL),
        _make_pairs(REMAIN),
        Users,
        Edges,
        Successive,
        Overwritten,
        Lent,
        Unused,
        Alone,
        _share_variables(),
    )
    return [rewrites, *observe_pass(impl.DropDoubleTranspose, *modules, runs=False)]


# --- 1.5 ------------------------------------------------------------------------------------------


ORIGIN = "course.origin"


def test_1_5_attaches_to_every_relax_function(impl) -> None:
    """every Relax function of the result carries the attribute, no PrimFunc does, and everything else stays"""
    for origin in ("a model", "another"):
        check_attaches(
            impl.AttachOrigin(origin), Users, "AttachOrigin", lambda _, o=origin: {ORIGIN: o}, PURE
        )
    check_attaches(impl.AttachOrigin("a"), Alone, "AttachOrigin", lambda _: {ORIGIN: "a"}, PURE)


def test_1_5_changes_nothing_it_was_given(impl) -> None:
    """a module that was returned earlier stays as it was when a second pass is given it"""
    first = expect.apply(impl.AttachOrigin("here"), Users, "AttachOrigin")
    second = impl.AttachOrigin("there")(first)
    PURE.equal(
        attributes(first)["hidden"].get(ORIGIN),
        "here",
        "A second AttachOrigin changed the module that the first one had returned.",
        why="The first pass's result is the second pass's input, and a pass must not change its input.",
    )
    PURE.equal(
        attributes(second)["hidden"].get(ORIGIN),
        "there",
        "AttachOrigin('there') does not replace the `course.origin` that a function has already.",
        why="The pass attaches its own origin to every Relax function. with_attr replaces an older value.",
    )


def observe_1_5(impl):
    marked = IRModule({"main": Alone["main"].with_attr(ORIGIN, "older")})
    return observe_pass(lambda: impl.AttachOrigin("o"), Users, Mixed, Branches, marked, runs=False)


# --- 1.6 ------------------------------------------------------------------------------------------


def _read_prediction(impl, name: str) -> int | None:
    predicted = impl.predicted_launches()
    expect.that(
        isinstance(predicted, dict) and isinstance(predicted.get(name), int | float | np.number),
        f"predicted_launches has no number for {name!r}.",
        expected='a dict such as {"small": 1, "decode": 2}',
        yours=repr(predicted),
    )
    return predicted[name]


def test_1_6_predicts_small(impl) -> None:
    """the predicted launches of Small's main are those of its kernels"""
    yours = _read_prediction(impl, "small")
    kernels = _record_launches(Small, "main", [(2, 3, 8), (8, 8)])
    LAUNCHES.predicted(
        yours,
        len(kernels),
        "When it runs, Small launches another number of kernels than you predicted.",
        why="A reshape inside a dataflow block is a view. The same kernel twice is two launches. No pass in "
        "this pipeline removes a call whose result is unused.",
    )


def test_1_6_predicts_decode(impl) -> None:
    """the predicted launches of the tiny decoder's decode are those of its kernels"""
    real = _count_kernels(decoder("tiny", functions=["decode"])[0], "decode")
    LAUNCHES.predicted(
        _read_prediction(impl, "decode"),
        real,
        "One decode step of the three-layer decoder launches another number of kernels than you predicted.",
        why="Each layer launches the same kernels: those of nn.Linear (a transpose and a matmul), of attention, the "
        "norms, the additions and the gate. A norm and an nn.Linear follow the layers. To see every call, print "
        '`to_kernels(decoder("tiny", functions=["decode"])[0])["decode"]`, with `decoder` from '
        "chapters/kit/decoder/llama.py. The reshapes there are views.",
    )


def observe_1_6(impl):
    return [lambda key=key: impl.predicted_launches().get(key) for key in ("small", "decode")]


# --- 1.7 ------------------------------------------------------------------------------------------


def _read_counterexample(impl) -> tuple[IRModule, list[np.ndarray]]:
    given = impl.counterexample()
    fits = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], IRModule)
    what = "counterexample() does not return a pair: a module and a list of arrays."
    expect.that(fits, what, expected="return mod, [array, …]", yours=type(given).__name__)
    mod, inputs = given
    expect.has_function(mod, "main", "counterexample()")
    what = "counterexample() does not return one array per parameter of main."
    why = "The inputs are a list of arrays, even if there is only one."
    expect.equal(len(inputs), len(mod["main"].params), what, why=why)
    expect.that(
        isinstance(mod["main"].ret_ty, relax.TensorType),
        "`main` of counterexample() does not return one tensor.",
        expected="one tensor",
        yours=str(mod["main"].ret_ty),
    )
    return mod, list(inputs)


def _differs(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape != other.shape or not np.allclose(one, other, equal_nan=True)


def _changes(transform, mod: IRModule) -> bool:
    return not tvm_ffi.structural_equal(transform(mod.clone()), mod)


def _run_after(transform, mod: IRModule, inputs: list[np.ndarray]) -> np.ndarray:
    return expect.run(transform(mod.clone()), "main", inputs)


def _compute_or_fail(compute: Callable, what: str, **more: str) -> np.ndarray:
    """`compute()`; an error of it fails the check with `what`."""
    try:
        return compute()
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise CheckFailed(what, yours=said, **more) from None


def test_1_7_is_a_fair_module(impl) -> None:
    """the counterexample is a well-formed module that runs, and the right pass keeps its result"""
    mod, inputs = _read_counterexample(impl)
    expect.well_formed(mod, "counterexample()")
    plain = _compute_or_fail(
        lambda: expect.run(mod, "main", inputs),
        "Your module does not run on your inputs.",
        expected="arrays of the parameters' shapes and dtypes, and one tensor as the result",
    )
    what = "DropDoubleTranspose, the right pass, changes the result of your module too."
    expect.that(not _differs(_run_after(DropDoubleTranspose(), mod, inputs), plain), what)


def test_1_7_breaks_the_careless_pass(impl) -> None:
    """after DropAnyDoubleTranspose the same inputs give another result, of the same shape"""
    mod, inputs = _read_counterexample(impl)
    plain = expect.run(mod, "main", inputs)
    careless = _compute_or_fail(
        lambda: _run_after(DropAnyDoubleTranspose(), mod, inputs),
        "After the careless pass your module no longer runs, so its error would be noticed.",
        expected="a module that runs, with another result",
        why="Look for an error that no check notices. Choose sizes for which the shape stays the same.",
    )
    why = "The careless pass changes your module, and your two transposes do not cancel. So your inputs, or the calls "
    why += "after the transposes, hide the order. If all elements are equal, or only their sum is returned, "
    why += "every order gives the same."
    if not _changes(DropAnyDoubleTranspose(), mod):
        why = "The careless pass finds no permute_dims whose argument is a permute_dims, and changes nothing."
    elif _changes(DropDoubleTranspose(), mod):
        why = "The right pass drops two of your transposes too, because they cancel. Nothing is lost with them."
    BREAK.that(
        _differs(careless, plain),
        "After the careless pass, your module still returns the right result for your inputs.",
        expected="two transposes in a row that do not cancel, and inputs whose elements differ",
        yours=f"the same result of shape {plain.shape} before and after",
        why=why,
    )
    what = "After the careless pass your module's result has another shape, so the error would be noticed."
    wanted = f"another result of the same shape, {plain.shape}"
    yours = f"a result of shape {careless.shape}"
    why = "Look for an error that no check notices. Choose a shape that your two transposes leave as it is."
    BREAK.that(careless.shape == plain.shape, what, expected=wanted, yours=yours, why=why)


def observe_1_7(impl):
    def results(make) -> tuple[np.ndarray, np.ndarray]:
        """What the careless pass gives for inputs made of the answer's, and what is right."""
        mod, inputs = _read_counterexample(impl)
        arrays = [make(np.asarray(array)) for array in inputs]
        careless = _run_after(DropAnyDoubleTranspose(), mod, arrays)
        return careless, expect.run(mod, "main", arrays)

    def scrambled(array):
        return np.random.default_rng(3).standard_normal(array.shape).astype(array.dtype)

    return [
        lambda: _differs(*results(np.asarray)),
        lambda: _differs(*results(scrambled)),
        lambda: _changes(DropAnyDoubleTranspose(), _read_counterexample(impl)[0]),
        lambda: _changes(DropDoubleTranspose(), _read_counterexample(impl)[0]),
        lambda: [len(np.unique(array)) > 1 for array in _read_counterexample(impl)[1]],
        lambda: len({result.shape for result in results(np.asarray)}) == 1,
    ]
