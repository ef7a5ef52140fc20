"""The checks of chapter 0: a first module."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import permutations
from unittest.mock import patch

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import IRModule

from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.runner.failure import CheckFailed

LESSON = "chapters/ch00_first_module/lesson.md"
REFUSE = Section(LESSON, "When it must refuse")
INSIDE = Section(LESSON, "What a module holds")
WAYS = Section(LESSON, "Three ways to write it")
RUN = Section(LESSON, "Run it")
BREAK = Section(LESSON, "Break it")
PRIMFUNC = Section(LESSON, "A PrimFunc")
TOLERANCE = "float32 rounds each product and each sum, so a difference of about 1e-6 is normal. This one is larger."


def _draw_inputs(rows: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = (rows, 16), (8, 16), (8,)
    return [random.standard_normal(shape).astype("float32") for shape in shapes]


def _compute_model(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """relu(x @ w.T + b) in float64."""
    return np.maximum(x.astype("float64") @ w.T + b, 0)


def _check_model(mod: object, name: str, whose: str) -> None:
    expect.is_program(mod, whose, name)
    WAYS.that(
        isinstance(mod[name].ret_ty, relax.TensorType),
        f"`{name}` of {whose} does not return one tensor.",
        expected="one tensor, the result of relu",
        yours=str(mod[name].ret_ty),
        why="A caller that expects a tensor cannot use a tuple, even if it holds one tensor only.",
    )
    for rows in (1, 5):
        inputs = _draw_inputs(rows)
        result = expect.run(mod, name, inputs)
        instead = _name_activation(result, *inputs)
        what = (
            f"The module of {whose} does not compute relu(x @ w.T + b) for an x of {rows} row(s)."
        )
        WAYS.close(result, _compute_model(*inputs), what, why=instead or TOLERANCE)


def _name_activation(result: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> str:
    """What a wrong result is, if it is one of the other activations of nn.op."""
    total = x.astype("float64") @ w.T + b
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-total))
    others = {
        "silu, which is y * sigmoid(y)": total * sigmoid,
        "the sigmoid": sigmoid,
        "tanh": np.tanh(total),
        "softmax": np.exp(total) / np.exp(total).sum(axis=-1, keepdims=True),
    }
    for name, values in others.items():
        if result.shape == values.shape and np.allclose(result, values, atol=1e-4):
            return f"Your activation is {name}. relu is max(y, 0): every negative sum becomes exactly zero."
    return ""


def _build_main(impl) -> relax.Function:
    with patch.object(
        relax.BlockBuilder, "function", autospec=True, side_effect=relax.BlockBuilder.function
    ) as begun:
        mod = impl.from_block_builder()
    expect.returns_module(mod, "from_block_builder")
    expect.has_function(mod, "main", "from_block_builder")
    is_scripted = mod["main"].same_as(impl.from_script()["main"])
    WAYS.that(
        begun.called and not is_scripted,
        "from_block_builder returns the `main` of Scripted, which TVM's parser built."
        if is_scripted
        else "from_block_builder built no function with relax.BlockBuilder.",
        expected="a new function, built with relax.BlockBuilder",
        yours='the same object as `from_script()["main"]`'
        if is_scripted
        else "the method `function` of a BlockBuilder was not called",
        why="A pass has no source text to parse, so it builds new code call by call. You do so from chapter 1 on.",
    )
    return mod["main"]


def test_0_1_keeps_rows_symbolic(impl) -> None:
    """one module serves any number of rows"""
    params = _build_main(impl).params
    expect.equal(
        len(params), 3, "`main` of from_block_builder does not have three parameters: x, w, b."
    )
    shapes = [getattr(p.ty, "shape", None) for p in params]
    yours = [[int(n) if isinstance(n, tvm.tirx.IntImm) else n for n in s or []] for s in shapes]
    kinds = (2, [16]), (2, [8, 16]), (1, [8])

    def is_like(shapes: Iterable[list]) -> bool:
        return all(
            len(shape) == rank and shape[-len(fixed) :] == fixed
            for shape, (rank, fixed) in zip(shapes, kinds, strict=True)
        )

    right, reordered = is_like(yours), any(map(is_like, permutations(yours)))
    WAYS.that(
        right and all(p.ty.dtype == "float32" for p in params),
        "The parameters of `main` do not have the shapes of x, w and b, in this order."
        if not right
        else "The parameters of `main` are not all float32.",
        expected="first (n, 16), then (8, 16), then (8,), all float32",
        yours=", ".join(f"{p.name}: {p.ty}" for p in params),
        why="A call passes its arguments by position. Every caller of main passes x first, whatever you named it."
        if reordered and not right
        else "The type of a parameter says which arrays a call may pass. The virtual machine refuses all others.",
    )
    rows = shapes[0][0]
    what = "You fixed the first dimension of x to a number, so the module serves only that number of rows."
    wanted = 'a symbolic variable: tirx.Var("n", "int64")'
    yours = str(params[0].ty)
    why = "A model is compiled once and called with inputs of every length. Only a symbolic size allows that."
    WAYS.that(not isinstance(rows, tvm.tirx.IntImm), what, expected=wanted, yours=yours, why=why)


def test_0_1_keeps_calls_in_a_dataflow_block(impl) -> None:
    """the operators are in a dataflow block, where passes may move and fuse them"""
    main = _build_main(impl)
    outside = [name for name, is_dataflow in _list_calls(main) if not is_dataflow]
    is_there = any(isinstance(block, relax.DataflowBlock) for block in main.body.blocks)
    INSIDE.that(
        is_there and not outside,
        "You emitted some calls of main outside its dataflow block."
        if is_there
        else "`main` of from_block_builder has no dataflow block.",
        expected="every call emitted inside `with builder.dataflow():`",
        yours=f"outside the block: {', '.join(outside) or 'none'}",
        why="Passes such as FuseOpsByPattern look only inside dataflow blocks, and would not see these calls.",
    )


def _list_calls(func: relax.Function) -> list[tuple[str, bool]]:
    """Each call bound in `func`: what it calls, and whether it is in a dataflow block."""
    return [
        (getattr(binding.value.op, "name", "a function"), isinstance(block, relax.DataflowBlock))
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def test_0_1_builds_the_model(impl) -> None:
    """from_block_builder gives a module that computes relu(x @ w.T + b)"""
    _check_model(impl.from_block_builder(), "main", "from_block_builder")


def observe_0_1(impl):
    inputs = _draw_inputs(3)
    return [
        lambda: impl.from_block_builder()["main"].params[0].ty,
        lambda: type(impl.from_block_builder()["main"].ret_ty).__name__,
        lambda: [type(b).__name__ for b in impl.from_block_builder()["main"].body.blocks],
        lambda: all(inside for _, inside in _list_calls(impl.from_block_builder()["main"])),
        lambda: impl.from_block_builder()["main"].same_as(impl.from_script()["main"]),
        lambda: np.round(expect.run(impl.from_block_builder(), "main", inputs), 3).tolist(),
    ]


def test_0_2_exports_the_model(impl) -> None:
    """Net exports to the same computation, its weights as parameters"""
    mod = impl.from_nn()
    expect.has_function(mod, "forward", "from_nn")
    shapes = [tuple(int(d) for d in p.ty.shape) for p in mod["forward"].params[1:]]
    what = "The weights of Net do not have the shapes (8, 16) and (8,)."
    why = "nn.Linear(in_features, out_features, bias=True) stores a weight (out_features, in_features) and a bias."
    if shapes == [(8,), (8, 16)]:
        what = "Net has its weights in another order: the bias comes before the matrix."
        why = "export_tvm takes the weights in the order in which __init__ makes them. nn.Linear makes w, then b."
    expect.equal(shapes, [(8, 16), (8,)], what, why=why)
    _check_model(mod, "forward", "from_nn")


def observe_0_2(impl):
    inputs = _draw_inputs(3)
    return [
        lambda: [str(p.ty) for p in impl.from_nn()["forward"].params],
        lambda: np.round(expect.run(impl.from_nn(), "forward", inputs), 3).tolist(),
    ]


def test_0_3_runs_the_model(impl) -> None:
    """run compiles a module and gives the right numbers as a NumPy array"""
    inputs = _draw_inputs(7)
    result = impl.run(impl.from_script(), "main", *inputs)
    wanted = "a NumPy array: call .numpy() on the result"
    expect.returns(result, np.ndarray, "run", "a NumPy array", expected=wanted)
    what = 'run(from_script(), "main", x, w, b) returns other numbers than relu(x @ w.T + b).'
    expect.close(result, _compute_model(*inputs), what, why=TOLERANCE)


def test_0_3_calls_by_name(impl) -> None:
    """run calls the function it was asked for, of the module it was given"""
    x = _draw_inputs(2)[0]
    mod = _make_module(main="R.negative(x)", twice="R.add(x, x)")
    for name, right, text in (("main", -x, "-x"), ("twice", 2 * x, "x + x")):
        what = f'run(mod, "{name}", x) did not call the function `{name}`, which returns {text}.'
        why = "The module holds two functions: `main` returns -x, and `twice` returns x + x."
        expect.close(impl.run(mod, name, x), right, what, why=why)
    mod["twice"] = _make_module(twice="R.exp(x)")["twice"]
    what = 'run(mod, "twice", x) did not call the function `twice` that the module holds now, which returns exp(x).'
    why = "It held another function of this name at the call before. A module can be changed in place, so if you keep "
    why += (
        "compiled code, look at what the module holds, and not only at its identity or at a name."
    )
    expect.close(impl.run(mod, "twice", x), np.exp(x), what, why=why)
    for mod, shape in ((_make_module(main="R.exp(x)"), (1, 1)), (relax_module(EXP_OF_SCALAR), ())):
        result = impl.run(mod, "main", np.ones(shape, "float32"))
        expect.equal(result.shape, shape, f"run changes the shape of a result of shape {shape}.")


def test_0_3_takes_any_array(impl) -> None:
    """run takes strided and unaligned arrays, which NumPy makes all the time"""
    x, w, b = _draw_inputs(7)
    strided = np.repeat(x, 2, axis=0)[::2]
    why = "TVM uses the memory of a NumPy array where it is. tvm.runtime.tensor copies it into aligned memory."
    for title, array in (("a strided view", strided), ("unaligned", copy_unaligned(x))):
        if title == "unaligned":  # before a kernel reads there, which may end the process
            _check_alignment(impl, why)
        what = f"run returns other numbers when x is {title}."
        yours = impl.run(impl.from_script(), "main", array, w, b)
        RUN.close(yours, _compute_model(x, w, b), what, why=why)


def _check_alignment(impl, why: str) -> None:
    """Every argument reaches the VM in memory that begins at a multiple of 64 bytes."""
    for place, name in enumerate("xwb"):
        arrays = [copy_unaligned(a) if n == place else a for n, a in enumerate(_draw_inputs(7))]
        past = _measure_misalignment(impl, arrays)[place]
        RUN.that(
            past == 0,
            f"run passed an unaligned {name} to the virtual machine without copying it into aligned memory.",
            expected="memory that begins at a multiple of 64 bytes, like the memory that TVM allocates",
            yours=f"memory that begins {past} bytes after a multiple of 64. np.ascontiguousarray copies a strided "
            "array, but returns an unaligned one as it is.",
            why=f"{why} In unaligned memory, a vector instruction of a kernel may crash the process.",
        )


RECORD_ALIGNMENT = "fusion.tests.past_alignment"
_recorded: list[
    int
] = []  # a learner may keep the virtual machine, and with it the function that it calls


@tvm_ffi.register_global_func(RECORD_ALIGNMENT, override=True)
def _record_alignment(*tensors):
    _recorded[:] = [np.from_dlpack(tensor).ctypes.data % 64 for tensor in tensors[:3]]
    return tensors[0]


def _measure_misalignment(impl, arrays: list[np.ndarray]) -> list[int]:
    """For each array how many bytes past a multiple of 64 its memory begins when `run` gives it to the VM."""
    x, w, b = ((*array.shape, "float32") for array in arrays)
    mod = relax_module(f"""
def main(x: {x}, w: {w}, b: {b}):
    out = R.call_pure_packed("{RECORD_ALIGNMENT}", x, w, b, ty_args=R.Tensor({x[:-1]}, "float32"))
""")
    impl.run(mod, "main", *arrays)
    return list(_recorded)


def test_0_3_keeps_dtypes(impl) -> None:
    """run hands each array over in the dtype it has"""
    for dtype in ("int32", "float16", "float64", "bool"):
        x = np.arange(12).reshape(3, 4).astype(dtype)
        doubled = "R.logical_or(x, x)" if dtype == "bool" else "R.add(x, x)"
        result = np.asarray(impl.run(_make_module(dtype, main=doubled), "main", x))
        what = f"run is wrong for a module that computes {doubled} of {dtype} (dtype and elements of the result)."
        why = "The function's type fixes the dtype of each argument. Pass every array in the dtype it has."
        REFUSE.equal((str(result.dtype), result.tolist()), (dtype, (x + x).tolist()), what, why=why)


EXP_OF_SCALAR = 'def main(x: ("float32",)):\n    out = R.exp(x)'


def _make_module(dtype: str = "float32", **results: str) -> IRModule:
    """One function of a matrix x of any size for each of `results`."""
    functions = (
        f'def {name}(x: ("n", "m", "{dtype}")):\n    out = {result}\n'
        for name, result in results.items()
    )
    return relax_module("".join(functions))


def copy_unaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers in memory that starts 8 bytes past a 64-byte boundary."""
    raw = np.zeros(array.nbytes + 128, "uint8")
    start = -raw.ctypes.data % 64 + 8
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def observe_0_3(impl):
    x, w, b = _draw_inputs(3)

    def called(mod, name, *arrays):
        result = impl.run(mod, name, *arrays)
        array = result.numpy() if hasattr(result, "numpy") else result
        return type(result).__name__, np.round(np.asarray(array), 3)

    def changed():
        mod = _make_module(main="R.negative(x)")
        called(mod, "main", x)
        mod["main"] = _make_module(main="R.exp(x)")["main"]
        return called(mod, "main", x)

    # no module of the checks: an answer may have kept what it compiled for those
    two, scalar = _make_module(main="R.exp(x)", twice="R.add(x, x)"), relax_module(EXP_OF_SCALAR)
    numbers = np.arange(12, dtype="int32").reshape(3, 4)
    return [
        changed,
        lambda: called(impl.from_script(), "main", x, w, b),
        lambda: called(impl.from_script(), "main", np.repeat(x, 2, axis=0)[::2], w, b),
        lambda: [called(two, name, x) for name in ("twice", "main")],
        lambda: called(scalar, "main", np.ones((), "float32")),
        lambda: called(_make_module("int32", main="R.add(x, x)"), "main", numbers),
        lambda: _measure_misalignment(impl, list(map(copy_unaligned, (x, w, b)))),
    ]


def _run_row_sums(impl, held: float) -> tuple[np.ndarray, np.ndarray]:
    """What row_sums writes into a buffer that held `held`, and what it should."""
    a = np.random.default_rng(4).standard_normal((6, 16)).astype("float32")
    out = tvm.runtime.tensor(np.full(6, held, "float32"))
    tvm.compile(impl.row_sums, target=QUICK)["main"](tvm.runtime.tensor(a), out)
    return out.numpy(), a.astype("float64").sum(axis=1)


def test_0_4_sums_each_row(impl) -> None:
    """row_sums is right whatever the output buffer held before

    No init is demanded. Storing a zero under `if vk == 0`, without `T.init()`, is right too, because the steps
    run in order. TVM does not take such a block for a reduction, so `decompose_reduction` refuses it; see chapter 5.
    """
    for held in (0.0, 1000.0, float("nan")):
        yours, expected = _run_row_sums(impl, held)
        what = f"row_sums stores wrong sums when `total` held {held:g} in every element before the call."
        why = "TVM does not clear output buffers. They are often memory that another tensor used before."
        if held == 0:
            why = (
                "total[i] must be the sum of all 16 elements of row i. Every step adds one of them."
            )
        PRIMFUNC.close(yours, expected, what, why=why)


def _count_elements_read(impl) -> int:
    """How many elements of `a` all steps of row_sums read together."""
    schedule = tvm.s_tir.Schedule(impl.row_sums)
    block = schedule.get(schedule.get_sblock("sum"))
    steps = np.prod([int(axis.dom.extent) for axis in block.iter_vars])
    regions = [read.region for read in block.reads if read.source.name == "a"]
    per_step = sum(np.prod([int(axis.extent) for axis in region]) for region in regions)
    return int(steps * per_step)


def test_0_4_reads_each_element_once(impl) -> None:
    """the sums read each of the 96 elements of `a` once"""
    PRIMFUNC.equal(
        _count_elements_read(impl),
        6 * 16,
        "row_sums does not read each element of `a` once.",
        why="The loops i and k already visit every element. A loop inside the block repeats the whole sum in each of "
        "the 16 steps. Each step must add its own element, a[vi, vk].",
    )


def observe_0_4(impl):
    sums = partial(_run_row_sums, impl)
    return [
        lambda: _count_elements_read(impl),
        *(lambda held=held: np.round(sums(held)[0], 3).tolist() for held in (0.0, 8.0, 1.0)),
    ]


WHY_SO_MANY = {
    "before": "An operator call is not a function. `print(from_script())` shows all functions that the module holds.",
    "after": "LegalizeOps makes one PrimFunc per operator call, and one for equal calls. To see them, print "
    "`relax.transform.LegalizeOps()(from_script())`.",
}


def test_0_5_prediction_holds(impl) -> None:
    """the predicted numbers of functions are right, before and after LegalizeOps"""
    yours = impl.predicted_functions()
    form = '{"before": (1, 2), "after": (3, 4)}, with your numbers'
    expect.that(
        isinstance(yours, dict)
        and all(isinstance(yours.get(key), list | tuple) for key in ("before", "after"))
        and all(len(yours[key]) == 2 for key in ("before", "after"))
        and all(isinstance(n, int | np.integer) for key in ("before", "after") for n in yours[key]),
        "predicted_functions does not return a dict with two pairs of numbers.",
        expected=form,
        yours="a `return` is missing" if yours is None else repr(yours)[:200],
        why="Each pair is (Relax functions, PrimFuncs).",
    )
    mod = impl.from_script()
    stages = {"before": mod, "after": relax.transform.LegalizeOps()(mod)}
    kinds = {"Relax functions": relax.Function, "PrimFuncs": tvm.tirx.PrimFunc}
    for stage, module in stages.items():
        for mine, (kind, of_kind) in zip(yours[stage], kinds.items(), strict=True):
            INSIDE.predicted(
                mine,
                sum(isinstance(func, of_kind) for func in module.functions.values()),
                f"{stage.capitalize()} LegalizeOps, the module holds another number of {kind} than you predicted.",
                why=WHY_SO_MANY[stage],
            )


def observe_0_5(impl):
    return [lambda key=key: impl.predicted_functions()[key] for key in ("before", "after")]


SAME_ROWS = 'def main(x: ("n", 16), y: ("n", 16)): out = R.add(x, y)'


def _read_arrays(impl) -> list[np.ndarray]:
    pair = impl.refused()
    expect.that(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(array, np.ndarray) for array in pair),
        "refused does not return two NumPy arrays.",
        expected="return x, y",
        yours="a `return` is missing" if pair is None else repr(pair)[:200],
    )
    return list(pair)


def test_0_6_is_refused(impl) -> None:
    """each array alone is legal, both together are refused by the VM"""
    pair = _read_arrays(impl)
    for array in pair:
        legal = array.dtype == np.float32 and array.ndim == 2 and array.shape[1] == 16
        REFUSE.that(
            legal,
            "One of your arrays is not a legal argument by itself, so the refusal would not be about n.",
            expected="two float32 arrays with 16 columns",
            yours=f"{array.dtype} {array.shape}",
            why="The type fixes the dtype, the rank and the 16 columns. NumPy makes float64 arrays unless "
            'you give a dtype, as in np.ones(shape, "float32").',
        )
    try:
        expect.run(relax_module(SAME_ROWS), "main", pair)
    except Exception as error:
        if "shape[0]" in str(error):
            return
        what = "The virtual machine refused your two arrays, but not because of n."
        raise CheckFailed(what, expected="an error that names shape[0]", yours=str(error)) from None
    what = "The virtual machine accepted your two arrays."
    wanted = "an error that names shape[0]"
    why = "n is one variable, so x and y must have equally many rows. The virtual machine checks this at each call."
    raise BREAK.failed(what, expected=wanted, yours=", ".join(str(a.shape) for a in pair), why=why)


def observe_0_6(impl):
    return [
        lambda: "same rows" if len({a.shape[0] for a in _read_arrays(impl)}) == 1 else "other rows",
        lambda: (
            "legal columns"
            if {a.shape[1:] for a in _read_arrays(impl)} == {(16,)}
            else "other columns"
        ),
        lambda: sorted({str(a.dtype) for a in _read_arrays(impl)}),
    ]
