"""The checks of chapter 10: rules on imported graphs, and what a compiled model is asked."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir import dlight as dl
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.s_tir.dlight.gpu.matmul import MatmulTensorization
from tvm.target import Target

from chapters.ch10_imported_models.exported_norms import NORM, SPELLINGS, edit_module
from chapters.ch10_imported_models.given import CarelessRMSNorm, cuda_source
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.judge import judge_pass, observe_pass
from chapters.checking.programs import operators
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.gpu.targets import DLIGHT_CUDA
from chapters.kit.ir.parse_alone import import_intrinsics
from chapters.kit.schedules.matmul_on_tensor_cores import MatmulOnTensorCores
from chapters.runner.loading import last_line

LESSON = "chapters/ch10_imported_models/lesson.md"
SPELLED = Section(LESSON, "A norm, spelled out")
JUDGE = Section(LESSON, "The generated code is the judge")
NOT_FIRE = Section(LESSON, "When it must not fire")

LIMITS = {"test_10_1_fires": 30, "test_10_3_first_that_does": 60, "test_10_3_others": 60}

# --- 10.1 -----------------------------------------------------------------------------------------


def in_dtype(dtype: str) -> tuple[str, ...]:
    """The edits that give every tensor of NORM this dtype."""
    return (
        "8)",
        f"8, '{dtype}')",
        "8,)",
        f"8, '{dtype}')",
        ".0)",
        f".0, '{dtype}')",
        ".01)",
        f".01, '{dtype}')",
    )


MIXED = (  # every two spellings of different steps meet in one graph
    ("x * x", "epsilon first", "divided"),
    ("square", "one over the root", "3 dimensions"),
    ("x * x", "sum over count", "power -0.5", "weight first"),
    ("x * x", "epsilon first", "sum over count", "one over the root", "scale first"),
    ("square", "sum over count", "divided"),
    ("square", "epsilon first", "power -0.5", "scale first"),
)
COUNTED = SPELLINGS["sum over count"]
FIVE = ("(3, 8)", "(2, 1, 7, 5)", "(8,)", "(5,)", "R.const(0.01)", "R.const(0.125)")
SIZES = {  # the sizes and the epsilon of another norm
    "4 dimensions and epsilon 0.125": FIVE,
    "4 dimensions and a sum over count": (*FIVE, *COUNTED, "R.const(8.0)", "R.const(5.0)"),
}
OTHERS = {  # what looks like a norm and is not, or what rms_norm would compute with other numbers
    "one row": ("(3, 8)", "(8,)", "axis=[-1]", "axis=[0]"),
    "mean over rows": ("(3, 8)", "(2, 3, 8)", "axis=[-1]", "axis=[1]"),
    "sum over rows": (*COUNTED, "axis=[-1]", "axis=[0]"),
    "mean over all": ("axis=[-1]", "axis=[0, 1]"),
    "mean without axis": ("axis=[-1], ", ""),
    "no keepdims": ("(3, 8)", "(8, 8)", "keepdims=True", "keepdims=False"),
    "no keepdims of a sum": (*COUNTED, "(3, 8)", "(8, 8)", "keepdims=True", "keepdims=False"),
    "sum": ("R.mean", "R.sum"),
    "max": ("R.mean", "R.max"),
    "power 3": ("R.const(2.0)", "R.const(3.0)"),
    "power 2.5": ("R.const(2.0)", "R.const(2.5)"),
    "power 4": ("R.const(2.0)", "R.const(4.0)"),
    "power -2": ("R.const(2.0)", "R.const(-2.0)"),
    "an exponent per column": ("R.const(2.0)", "R.const([2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0])"),
    "count over the sum": ("R.mean(square", "R.sum(square", "R.add(mean", "R.add(R.divide(R.const(8.0), mean)"),
    "sum times count": ("R.mean(square", "R.sum(square", "R.add(mean", "R.add(R.multiply(mean, R.const(8.0))"),
    "sum over the number of rows": (*COUNTED, "R.const(8.0)", "R.const(3.0)"),
    "two over the root": ("R.rsqrt(total)", "R.divide(R.const(2.0), R.sqrt(total))"),
    "power of 2": ("R.power(x, R.const(2.0))", "R.power(R.const(2.0), x)"),
    "no power": ("R.power(x, R.const(2.0))", "R.abs(x)"),
    "square of another": ("R.power(x, R.const(2.0))", "R.multiply(x, R.tanh(x))"),
    "norm of another": ("R.multiply(x, scale)", "R.multiply(R.tanh(x), scale)"),
    "quotient of another": (*SPELLINGS["divided"], "R.divide(x, scale)", "R.divide(R.tanh(x), scale)"),
    "divided by the scale": ("R.multiply(x, scale)", "R.divide(x, scale)"),
    "not centred": ("R.power(x,", "R.power(R.subtract(x, R.mean(x, axis=[-1], keepdims=True)),"),
    "no epsilon": ("R.rsqrt(total)", "R.rsqrt(mean)"),
    "epsilon outside": ("R.add(mean, R.const(0.01))", "mean", "R.rsqrt(total)", "R.add(R.rsqrt(total), R.const(0.01))"),
    "epsilon subtracted": ("R.add(mean,", "R.subtract(mean,"),
    "epsilon computed": ("R.const(0.01)", "R.max(w)"),
    "epsilon per column": ("R.const(0.01)", "R.broadcast_to(R.const(0.01), R.shape([8]))"),
    "a constant epsilon per column": ("R.const(0.01)", "R.const([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08])"),
    "epsilon adds a dimension": ("R.const(0.01)", "R.const([[[0.01]]])"),
    "sqrt": ("R.rsqrt(total)", "R.sqrt(total)"),
    "power 0.5": ("R.rsqrt(total)", "R.power(total, R.const(0.5))"),
    "divided the other way": ("R.rsqrt(total)", "R.sqrt(total)", "R.multiply(x, scale)", "R.divide(scale, x)"),
    "no columns": ("(3, 8)", "(3, 0)", "(8,)", "(0,)"),
    "symbolic columns": ("(3, 8)", "(3, 'n')", "(8,)", "('n',)"),
    "an unknown shape": ("x: (3, 8)", "x: R.Tensor('float32', ndim=2)"),
    "float64": in_dtype("float64"),
    "all in float16": in_dtype("float16"),
}  # fmt: skip


def _judge_norm(impl, mod: tvm.IRModule, title: str, **looks) -> None:
    judge_pass(impl.RecognizeRMSNorm(), mod, "RecognizeRMSNorm", title, **looks)


def test_10_1_fires(impl) -> None:
    """every spelling of the norm becomes one rms_norm, which computes the same numbers"""
    why = "This is the same norm. Chapter 4 fuses only what is spelled rms_norm."
    graphs = {}
    for spellings in ((), *((one,) for one in SPELLINGS), *MIXED):
        said = " and ".join(f"“{one}”" for one in spellings)
        edits = [edit for one in spellings for edit in SPELLINGS[one]]
        title = f"the norm whose spelling differs by {said}" if said else "the norm as exported"
        graphs[title] = edits
    graphs |= {f"a norm of {sizes}": edits for sizes, edits in SIZES.items()}
    calls = {"nn.rms_norm": 1, "rsqrt": 0, "sqrt": 0}
    for title, edits in graphs.items():
        _judge_norm(impl, edit_module(NORM, *edits), title, calls=calls, why=why, read=SPELLED)


def test_10_1_leaves_other_graphs(impl) -> None:
    """a graph that computes something else stays as it is"""
    why = "A rule must not match here, or return its match. TVM's rms_norm over the last axis computes something else "
    why += "for this graph, or cannot be compiled."
    for other, edits in OTHERS.items():
        title = f"a graph that differs from the norm by “{other}”"
        _judge_norm(impl, edit_module(NORM, *edits), title, stays=True, why=why, read=NOT_FIRE)


def test_10_1_what_others_read(impl) -> None:
    """a step of the norm that something else reads stays"""
    more = "out = R.multiply(normalized, w)\n    return out, mean"
    why = "An operator whose result something else reads must stay. The other operators of the norm must go."
    calls = {"mean": 1, "nn.rms_norm": 1, "power": 1, "add": 0, "rsqrt": 0, "multiply": 0}
    mod = edit_module(NORM, "out = R.multiply(normalized, w)", more)
    title = "a norm whose mean is a result of the function too"
    _judge_norm(impl, mod, title, calls=calls, why=why, read=SPELLED)


def observe_10_1(impl):
    mixed = [[edit for one in spellings for edit in SPELLINGS[one]] for spellings in MIXED]
    edits = (), *SPELLINGS.values(), *mixed, *SIZES.values(), *OTHERS.values()
    return observe_pass(
        impl.RecognizeRMSNorm, *(edit_module(NORM, *one) for one in edits), runs=False
    )


# --- 10.2 -----------------------------------------------------------------------------------------

WRONG = 0.01  # of the largest number


def read_lookalike(impl) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The learner's module, and what CarelessRMSNorm makes of it."""
    mod = impl.looks_like_one()
    expect.is_program(mod, "looks_like_one", "main")
    what = "A parameter of your `main` is not a float32 tensor of constant shape, and the check cannot run it."
    for param in mod["main"].params:
        ty = param.ty
        fixed = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
        fixed = fixed and all(isinstance(dim, tirx.IntImm) for dim in ty.shape.values)
        wanted = "float32 tensors whose dimensions are numbers"
        yours = f"{param.name}: {ty}"
        expect.that(bool(fixed and ty.dtype == "float32"), what, expected=wanted, yours=yours)
    what = "Your `main` does not return one tensor."
    expect.that(
        isinstance(mod["main"].ret_ty, relax.TensorType), what, yours=str(mod["main"].ret_ty)
    )
    return mod, CarelessRMSNorm()(mod)


def run_both(impl) -> tuple[np.ndarray, np.ndarray]:
    """The results of `main` before and after CarelessRMSNorm."""
    random = np.random.default_rng(7)
    mod, after = read_lookalike(impl)
    shapes = [[int(dim) for dim in param.ty.shape.values] for param in mod["main"].params]
    arrays = [random.uniform(0.5, 2.0, shape).astype("float32") for shape in shapes]
    return expect.run(mod, "main", arrays), expect.run(after, "main", arrays)


def test_10_2_is_taken(impl) -> None:
    """the careless pass takes it for a norm"""
    mod, after = read_lookalike(impl)
    what = "CarelessRMSNorm does not take your module for a norm: it puts no rms_norm into it."
    wanted = "a module with factor * rsqrt(mean(a power, or a product) + a number)"
    why = "The pass looks for exactly these operators, and then asks the five questions that the page lists. Keep what "
    why += "it looks for, and change something that it does not ask about."
    added = operators(after).count("nn.rms_norm") - operators(mod).count("nn.rms_norm")
    NOT_FIRE.that(added > 0, what, expected=wanted, yours=mod["main"].script(), why=why)


def test_10_2_other_numbers(impl) -> None:
    """its numbers then change by more than a hundredth of the largest"""
    before, after = run_both(impl)
    what = "Your module gives results that are not finite, so they cannot be compared."
    finite = bool(np.isfinite(before).all() and np.isfinite(after).all())
    wanted = "finite numbers, for arguments between 0.5 and 2"
    yours = f"before the pass {before.ravel()[:4]}, after it {after.ravel()[:4]}"
    expect.that(finite, what, expected=wanted, yours=yours)
    off = float(np.abs(before - after).max() / np.abs(before).max())
    NOT_FIRE.that(
        off > WRONG,
        f"CarelessRMSNorm hardly changes the numbers of your module: they differ by {off:.1e} of the largest.",
        expected=f"a difference above {WRONG} of the largest",
        why="The pass is right for a real norm, and nearly right if the constant is so large that the mean hardly "
        "counts. Change one thing that the pass does not ask about, and that changes the numbers.",
    )


def observe_10_2(impl):
    def describe_taken() -> str:
        mod, after = read_lookalike(impl)
        return f"{operators(mod)} {operators(after)} {mod['main'].script()}"

    def describe_difference() -> str:
        before, after = run_both(impl)
        finite = np.isfinite(before).all() and np.isfinite(after).all()
        return f"{finite} {np.abs(before - after).max() / np.abs(before).max() > WRONG}"

    return [describe_taken, describe_difference]


# --- 10.3 -----------------------------------------------------------------------------------------

GPUS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120")


class FailingRule(ScheduleRule):
    """A rule that raises on every kernel, as some of dlight's do on kernels they half know."""

    def apply(self, func, target, tunable):
        raise ScheduleError("this rule knows another kernel")


class BoastfulRule(ScheduleRule):
    """dlight's fallback with an annotation that speaks of tensor cores. TVM ignores it, and the code has none."""

    def apply(self, func, target, tunable):
        sch = dl.gpu.Fallback().apply(func, target, tunable)
        block = sch.get_child_blocks(sch.get_sblock("root"))[0]
        sch.annotate(block, "instruction", "mma_sync")
        return sch


def make_target(arch: str) -> Target:
    return Target({**DLIGHT_CUDA.export(), "arch": arch})


@functools.cache
def make_rule(name: str) -> ScheduleRule:
    """One object for each rule, so that a choice can be compared."""
    kinds = {
        "GEMV": dl.gpu.GEMV,
        "Matmul": dl.gpu.Matmul,
        "MatmulOnTensorCores": MatmulOnTensorCores,
        "MatmulTensorization": MatmulTensorization,
        "GeneralReduction": dl.gpu.GeneralReduction,
        "Fallback": dl.gpu.Fallback,
        "a rule that fails": FailingRule,
        "a rule that boasts": BoastfulRule,
    }
    return kinds[name]()


@functools.cache
def write_code(name: str, arch: str) -> str:
    """The CUDA C++ by one rule, "" where it declines or fails."""
    target = make_target(arch)
    try:
        with target:
            func = linear_bias(128, 128, 128, "float16")
            mod = dl.ApplyDefaultSchedule(make_rule(name))(tvm.IRModule({"main": func}))
    except ScheduleError:
        return ""
    return cuda_source(mod, target) if "tirx.is_scheduled" in (mod["main"].attrs or {}) else ""


def ask_choice(impl, arch: str, given: Sequence[str], dtype: str = "float16") -> str:
    """The name of the rule that on_tensor_cores chooses."""
    import_intrinsics()
    func, rules = linear_bias(128, 128, 128, dtype), [make_rule(name) for name in given]
    try:
        found = impl.on_tensor_cores(func, make_target(arch), [*rules])
    except (ScheduleError, tvm.error.InternalError, ValueError, IndexError) as error:
        raise JUDGE.failed(
            f"on_tensor_cores raises an exception for {arch} with the rules {', '.join(given)}.",
            expected="one of the rules",
            yours=last_line(error)[:300],
            why="A rule may raise ScheduleError. And if a rule declines a kernel, the kernel has no threads, and TVM "
            "cannot generate CUDA code for it. In both cases go on with the next rule. Run the pass inside the target.",
        ) from None
    names_ = [name for name, one in zip(given, rules, strict=True) if one is found]
    what = "on_tensor_cores does not return one of the rules that it was given."
    wanted = "one of the objects in `rules`"
    JUDGE.that(bool(names_), what, expected=wanted, yours=repr(found)[:200])
    return names_[0]


USUAL = (
    "a rule that fails",
    "GEMV",
    "a rule that boasts",
    "Matmul",
    "MatmulOnTensorCores",
    "Fallback",
)


def test_10_3_first_that_does(impl) -> None:
    """for each architecture the first rule whose code has the instruction"""
    for arch in GPUS:
        right = (name for name in USUAL if "mma_sync" in write_code(name, arch))
        found, want = ask_choice(impl, arch, USUAL), next(right, USUAL[-1])
        JUDGE.that(
            found == want,
            f"For {arch}, on_tensor_cores chooses {found}.",
            expected="the first rule whose code contains mma_sync",
            yours=f"the code of {found} "
            + (
                "contains it, but an earlier rule's code does too"
                if "mma_sync" in write_code(found, arch)
                else f"does not contain it, and that of {want} does"
            ),
            why="A rule may take the kernel and still multiply number by number. Only the generated code shows it. A "
            "rule may also decline or raise ScheduleError. Then try the next rule.",
        )


def test_10_3_others(impl) -> None:
    """the last rule if no code has the instruction, or if the GPU has no tensor cores"""
    cases = (
        ("sm_80", ("Matmul", "GeneralReduction", "Fallback"), "float32", "no rule generates such code for float32"),
        ("sm_90a", ("Matmul", "GeneralReduction", "Fallback"), "float16", "no rule's code has the instruction"),
        ("sm_61", ("Matmul", "MatmulTensorization", "Fallback"), "float16", "this GPU has no tensor cores"),
        ("sm_52", ("MatmulTensorization", "Fallback"), "float16", "this GPU has no tensor cores"),
    )  # fmt: skip
    for arch, given, dtype, why in cases:
        found = ask_choice(impl, arch, given, dtype)
        what = f"For {dtype} on {arch}, on_tensor_cores chooses {found}."
        JUDGE.equal(found, given[-1], what, why=f"The last rule is the answer here, because {why}.")


def test_10_3_the_oldest(impl) -> None:
    """compute capability 7.0 is the first with tensor cores"""
    given = ("GEMV", "MatmulTensorization", "Fallback")
    what = "For sm_70, on_tensor_cores does not choose the rule whose code has the instruction."
    why = "Compute capability 7.0 is the first with tensor cores."
    JUDGE.equal(ask_choice(impl, "sm_70", given), "MatmulTensorization", what, why=why)


def test_10_3_order(impl) -> None:
    """the order of the rules decides between two that both do"""
    for given in (
        ("MatmulOnTensorCores", "Matmul", "Fallback"),
        ("MatmulTensorization", "Matmul", "Fallback"),
    ):
        what = (
            "The code of two rules has the instruction, and on_tensor_cores chooses the later one."
        )
        why = "Rules are listed from the most specific to the most general, so the first that does the job wins."
        JUDGE.equal(ask_choice(impl, "sm_80", given), given[0], what, why=why)


def observe_10_3(impl):
    cases = [(arch, USUAL, "float16") for arch in ("sm_80", "sm_90a")]
    cases += [
        ("sm_80", ("MatmulOnTensorCores", "Matmul", "Fallback"), "float16"),
        ("sm_80", ("a rule that fails", "GEMV", "Matmul", "Fallback"), "float16"),
        ("sm_80", ("Matmul", "GeneralReduction", "Fallback"), "float32"),
        ("sm_61", ("Matmul", "MatmulTensorization", "Fallback"), "float16"),
        ("sm_90a", ("Matmul", "GeneralReduction", "Fallback"), "float16"),
    ]
    return [lambda case=case: ask_choice(impl, *case) for case in cases]
