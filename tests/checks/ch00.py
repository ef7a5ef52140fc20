"""The checks of chapter 0: a first module."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.script import ir as I
from tvm.script import relax as R

from tests.harness import expect
from tests.harness.failure import CheckFailed

LESSON = "chapters/ch00_first_module/lesson.md"
TOLERANCE = "float32 rounds each product and sum to 24 bits; over 16 terms the two orders of summing stay within 1e-5."


def _inputs(rows: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = (rows, 16), (8, 16), (8,)
    return [random.standard_normal(shape).astype("float32") for shape in shapes]


def _model(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """relu(x @ w.T + b) in float64."""
    return np.maximum(x.astype("float64") @ w.T + b, 0)


def _is_model(mod: object, name: str, whose: str) -> None:
    expect.returns_module(mod, whose)
    expect.well_formed(mod, whose)
    expect.has_function(mod, name, whose)
    for rows in (1, 5):
        inputs = _inputs(rows)
        expect.close(
            expect.run(mod, name, inputs),
            _model(*inputs),
            f"{whose} does not compute relu(x @ w.T + b) for {rows} row(s).",
            why=TOLERANCE,
            read=f"{LESSON}, “Three ways to write it”",
        )


def test_0_1_keeps_rows_symbolic(impl) -> None:
    """one module serves any number of rows"""
    mod = impl.from_block_builder()
    expect.returns_module(mod, "from_block_builder")
    expect.has_function(mod, "main", "from_block_builder")
    params = mod["main"].params
    expect.equal(len(params), 3, "main does not have the three parameters x, w, b.")
    rows = params[0].ty.shape[0]
    expect.that(
        not isinstance(rows, tvm.tirx.IntImm),
        "The first dimension of x is a number, so the module serves that one size only.",
        expected='a symbolic variable: tirx.Var("n", "int64")',
        yours=str(params[0].ty),
        why="A decoder is compiled once and called with prompts of every length.",
        read=f"{LESSON}, “Three ways to write it”",
    )


def test_0_1_keeps_calls_in_a_dataflow_block(impl) -> None:
    """the operators stand in a dataflow block, where passes may move and fuse them"""
    mod = impl.from_block_builder()
    expect.returns_module(mod, "from_block_builder")
    expect.has_function(mod, "main", "from_block_builder")
    blocks = mod["main"].body.blocks
    outside = [name for name, is_dataflow in _calls(mod["main"]) if not is_dataflow]
    is_there = any(isinstance(block, relax.DataflowBlock) for block in blocks)
    expect.that(
        is_there and not outside,
        "Calls of main stand outside of its dataflow block."
        if is_there
        else "main has no dataflow block.",
        expected="the calls emitted inside `with builder.dataflow():`",
        yours=f"outside: {', '.join(outside) or 'nothing'}",
        why="FuseOpsByPattern and most graph passes look only inside dataflow blocks, where nothing has side effects.",
        read=f"{LESSON}, “What is in it”",
    )


def _calls(func: relax.Function) -> list[tuple[str, bool]]:
    """Each call bound in `func`: what it calls, and whether it stands in a dataflow block."""
    return [
        (getattr(binding.value.op, "name", "a function"), isinstance(block, relax.DataflowBlock))
        for block in func.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def test_0_1_builds_the_model(impl) -> None:
    """from_block_builder gives a module that computes relu(x @ w.T + b)"""
    _is_model(impl.from_block_builder(), "main", "from_block_builder")


def observe_0_1(impl):
    inputs = _inputs(3)
    return [
        lambda: impl.from_block_builder()["main"].params[0].ty,
        lambda: [type(b).__name__ for b in impl.from_block_builder()["main"].body.blocks],
        lambda: all(inside for _, inside in _calls(impl.from_block_builder()["main"])),
        lambda: np.round(expect.run(impl.from_block_builder(), "main", inputs), 3).tolist(),
    ]


def test_0_2_exports_the_model(impl) -> None:
    """Net exports to the same computation, its weights as parameters"""
    mod = impl.from_nn()
    expect.has_function(mod, "forward", "from_nn")
    shapes = [tuple(int(d) for d in p.ty.shape) for p in mod["forward"].params[1:]]
    expect.equal(
        shapes,
        [(8, 16), (8,)],
        "The weights of Net are not one (8, 16) matrix and one (8,) bias.",
        why="nn.Linear(in_features, out_features) stores its weight as (out_features, in_features).",
    )
    _is_model(mod, "forward", "from_nn")


def observe_0_2(impl):
    inputs = _inputs(3)
    return [
        lambda: [str(p.ty) for p in impl.from_nn()["forward"].params],
        lambda: np.round(expect.run(impl.from_nn(), "forward", inputs), 3).tolist(),
    ]


def test_0_3_runs_the_model(impl) -> None:
    """run compiles a module and gives the right numbers as a NumPy array"""
    inputs = _inputs(7)
    result = impl.run(impl.from_script(), "main", *inputs)
    expect.that(
        isinstance(result, np.ndarray),
        f"run returned {type(result).__name__}, not a NumPy array.",
        expected="the result's .numpy()",
    )
    expect.close(result, _model(*inputs), "run does not give the model's numbers.", why=TOLERANCE)


def test_0_3_calls_by_name(impl) -> None:
    """run calls the function it was asked for"""
    inputs = _inputs(2)
    result = impl.run(_two_functions(), "twice", inputs[0])
    expect.close(result, 2 * inputs[0], "run(mod, name, …) did not call the function `name`.")


def test_0_3_takes_any_array(impl) -> None:
    """run takes strided and unaligned arrays, which NumPy makes all the time"""
    x, w, b = _inputs(7)
    for title, array in (
        ("a strided view", np.repeat(x, 2, axis=0)[::2]),
        ("unaligned", unaligned(x)),
    ):
        expect.close(
            impl.run(impl.from_script(), "main", array, w, b),
            _model(x, w, b),
            f"run gives other numbers when x is {title}.",
            why="The VM takes an array's memory as it lies there; tvm.runtime.tensor copies it into aligned memory.",
            read=f"{LESSON}, “Run it”",
        )


def test_0_3_keeps_dtypes(impl) -> None:
    """run hands each array over in the dtype it has"""
    for dtype in ("int32", "float16"):
        x = np.arange(12).reshape(3, 4).astype(dtype)
        result = np.asarray(impl.run(_doubling(dtype), "main", x))
        expect.equal(
            (str(result.dtype), result.tolist()),
            (dtype, (x + x).tolist()),
            f"run is wrong for a module whose tensors are {dtype} (dtype and elements of x + x).",
            why="The VM takes an array's bytes for what the function's type says, and so refuses another dtype.",
            read=f"{LESSON}, “When it must refuse”",
        )


def _doubling(dtype: str) -> IRModule:
    """main(x) = x + x, for x of shape (3, 4)."""
    x = relax.Var("x", relax.TensorType((3, 4), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    return builder.get()


def unaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers in memory that starts 8 bytes past a 64-byte boundary."""
    raw = np.zeros(array.nbytes + 128, "uint8")
    start = -raw.ctypes.data % 64 + 8
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _two_functions() -> IRModule:
    @I.ir_module
    class Two:
        @R.function
        def main(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
            with R.dataflow():
                y = R.negative(x)
                R.output(y)
            return y

        @R.function
        def twice(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
            with R.dataflow():
                y = R.add(x, x)
                R.output(y)
            return y

    return Two


def observe_0_3(impl):
    x, w, b = _inputs(3)

    def called(mod, name, *arrays):
        result = impl.run(mod, name, *arrays)
        return type(result).__name__, np.round(
            np.asarray(result.numpy() if hasattr(result, "numpy") else result), 3
        )

    return [
        lambda: called(impl.from_script(), "main", x, w, b),
        lambda: called(impl.from_script(), "main", np.repeat(x, 2, axis=0)[::2], w, b),
        lambda: called(_two_functions(), "twice", x),
        lambda: called(_doubling("int32"), "main", np.arange(12, dtype="int32").reshape(3, 4)),
    ]


def _row_sums(impl, held: float) -> tuple[np.ndarray, np.ndarray]:
    """What row_sums writes into a buffer that held `held`, and what it should."""
    a = np.random.default_rng(4).standard_normal((6, 16)).astype("float32")
    out = tvm.runtime.tensor(np.full(6, held, "float32"))
    tvm.compile(impl.row_sums, target="llvm")["main"](tvm.runtime.tensor(a), out)
    return out.numpy(), a.astype("float64").sum(axis=1)


def test_0_4_sums_each_row(impl) -> None:
    """row_sums is right whatever the output buffer held before

    The sums alone are asked for. A zero stored under `if vk == 0`, without `T.init()`, is right too: the steps run in
    their order. That TVM then knows no reduction, and `decompose_reduction` refuses the block, is chapter 5's.
    """
    for held in (0.0, 1000.0, float("nan")):
        yours, expected = _row_sums(impl, held)
        expect.close(
            yours,
            expected,
            f"row_sums is wrong when its output buffer held {held:g} before the call.",
            why="Nobody clears an output buffer: the memory planner hands out memory that other tensors used.",
            read=f"{LESSON}, “A PrimFunc”",
        )


def observe_0_4(impl):
    return [
        lambda held=held: np.round(_row_sums(impl, held)[0], 3).tolist() for held in (0.0, 8.0, 1.0)
    ]


def _count(mod: IRModule) -> tuple[int, int]:
    functions = list(mod.functions.values())
    relaxed = sum(isinstance(f, relax.Function) for f in functions)
    return relaxed, len(functions) - relaxed


def test_0_5_prediction_holds(impl) -> None:
    """the predicted numbers of functions are those that LegalizeOps gives"""
    yours = impl.predicted_functions()
    form = '{"before": (1, 2), "after": (3, 4)}, with your numbers'
    expect.that(
        isinstance(yours, dict)
        and all(isinstance(yours.get(key), list | tuple) for key in ("before", "after"))
        and all(len(yours[key]) == 2 for key in ("before", "after")),
        "predicted_functions does not return a dict with two pairs.",
        expected=form,
        yours="a `return` is missing" if yours is None else repr(yours)[:200],
        why="Each pair is (Relax functions, PrimFuncs).",
    )
    mod = impl.from_script()
    stages = {"before": mod, "after": relax.transform.LegalizeOps()(mod)}
    for stage, module in stages.items():
        for kind, mine, counted in zip(
            ("Relax functions", "PrimFuncs"), yours[stage], _count(module), strict=True
        ):
            expect.predicted(
                mine,
                counted,
                f"{stage.capitalize()} LegalizeOps the module holds another number of {kind}.",
                why="Each distinct operator call becomes a call_tir to a PrimFunc of its own. To see them, print "
                "`relax.transform.LegalizeOps()(from_script())`.",
                read=f"{LESSON}, “What is in it”",
            )


def observe_0_5(impl):
    return [
        lambda: impl.predicted_functions()["before"],
        lambda: impl.predicted_functions()["after"],
    ]


@I.ir_module
class AddRows:
    """Declares that its two arguments have the same number of rows."""

    @R.function
    def main(x: R.Tensor(("n", 16), "float32"), y: R.Tensor(("n", 16), "float32")) -> R.Tensor(
        ("n", 16), "float32"
    ):
        with R.dataflow():
            out = R.add(x, y)
            R.output(out)
        return out


def test_0_6_is_refused(impl) -> None:
    """each array alone is legal, both together are refused by the VM"""
    pair = impl.refused()
    expect.that(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(array, np.ndarray) for array in pair),
        "refused does not return two NumPy arrays.",
        expected="return x, y",
        yours="a `return` is missing" if pair is None else repr(pair)[:200],
    )
    for array in pair:
        legal = array.dtype == np.float32 and array.ndim == 2 and array.shape[1] == 16
        expect.that(
            legal,
            "One of your arrays is refused for its own sake, which shows nothing about n.",
            expected="two float32 arrays of shape (something, 16)",
            yours=f"{array.dtype} {array.shape}",
            why="The dtype, the rank and the 16 stand in the type as they are. NumPy makes float64 unless it is told "
            'otherwise: np.ones(shape, "float32").',
            read=f"{LESSON}, “When it must refuse”",
        )
    try:
        expect.run(AddRows, "main", pair)
    except Exception as error:
        if "shape[0]" in str(error):
            return
        raise CheckFailed("The VM refused, but not because of n.", yours=str(error)) from None
    raise CheckFailed(
        "The VM accepted your two arrays.",
        expected="an error that speaks of shape[0]",
        yours=", ".join(str(a.shape) for a in pair),
        why="n is one name: whatever it is in x, it must be in y. The VM checks this at every call.",
        read=f"{LESSON}, “Break it”",
    )


def observe_0_6(impl):
    return [
        lambda: "same rows" if len({a.shape[0] for a in impl.refused()}) == 1 else "other rows",
        lambda: (
            "legal columns" if {a.shape[1:] for a in impl.refused()} == {(16,)} else "other columns"
        ),
        lambda: sorted({str(a.dtype) for a in impl.refused()}),
    ]
