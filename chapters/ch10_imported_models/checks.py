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

from chapters.ch10_imported_models.check_graphs import MIXED, OTHERS, SIZES
from chapters.ch10_imported_models.exported_norms import NORM, SPELLINGS, edited
from chapters.ch10_imported_models.given import CarelessRMSNorm, cuda_source
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.judge import judge_pass, observe_pass
from chapters.checking.programs import operators
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.targets import DLIGHT_CUDA
from chapters.kit.ir.parse_alone import import_intrinsics
from chapters.kit.schedules.matmul_on_tensor_cores import MatmulOnTensorCores
from chapters.runner.loading import last_line

LESSON = "chapters/ch10_imported_models/lesson.md"
SPELLED = Section(LESSON, "A norm, spelled out")
JUDGE = Section(LESSON, "The generated code is the judge")
NOT_FIRE = Section(LESSON, "When it must not fire")
MEASURE = Section(LESSON, "Measure it")

LIMITS = {"test_10_1_fires": 30, "test_10_3_first_that_does": 60, "test_10_3_others": 60}

# --- 10.1 -----------------------------------------------------------------------------------------


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
        _judge_norm(impl, edited(NORM, *edits), title, calls=calls, why=why, read=SPELLED)


def test_10_1_leaves_other_graphs(impl) -> None:
    """a graph that computes something else stays as it is"""
    why = "A rule must not match here, or return its match. TVM's rms_norm over the last axis computes something else "
    why += "for this graph, or cannot be compiled."
    for other, edits in OTHERS.items():
        title = f"a graph that differs from the norm by “{other}”"
        _judge_norm(impl, edited(NORM, *edits), title, stays=True, why=why, read=NOT_FIRE)


def test_10_1_what_others_read(impl) -> None:
    """a step of the norm that something else reads stays"""
    more = "out = R.multiply(normalized, w)\n    return out, mean"
    why = "An operator whose result something else reads must stay. The other operators of the norm must go."
    calls = {"mean": 1, "nn.rms_norm": 1, "power": 1, "add": 0, "rsqrt": 0, "multiply": 0}
    mod = edited(NORM, "out = R.multiply(normalized, w)", more)
    title = "a norm whose mean is a result of the function too"
    _judge_norm(impl, mod, title, calls=calls, why=why, read=SPELLED)


def observe_10_1(impl):
    mixed = [[edit for one in spellings for edit in SPELLINGS[one]] for spellings in MIXED]
    edits = (), *SPELLINGS.values(), *mixed, *SIZES.values(), *OTHERS.values()
    return observe_pass(impl.RecognizeRMSNorm, *(edited(NORM, *one) for one in edits), runs=False)


# --- 10.2 -----------------------------------------------------------------------------------------

WRONG = 0.01  # of the largest number


def lookalike(impl) -> tuple[tvm.IRModule, tvm.IRModule]:
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


def both_results(impl) -> tuple[np.ndarray, np.ndarray]:
    """The results of `main` before and after CarelessRMSNorm."""
    random = np.random.default_rng(7)
    mod, after = lookalike(impl)
    shapes = [[int(dim) for dim in param.ty.shape.values] for param in mod["main"].params]
    arrays = [random.uniform(0.5, 2.0, shape).astype("float32") for shape in shapes]
    return expect.run(mod, "main", arrays), expect.run(after, "main", arrays)


def test_10_2_is_taken(impl) -> None:
    """the careless pass takes it for a norm"""
    mod, after = lookalike(impl)
    what = "CarelessRMSNorm does not take your module for a norm: it puts no rms_norm into it."
    wanted = "a module with factor * rsqrt(mean(a power, or a product) + a number)"
    why = "The pass looks for exactly these operators, and then asks the five questions that the page lists. Keep what "
    why += "it looks for, and change something that it does not ask about."
    added = operators(after).count("nn.rms_norm") - operators(mod).count("nn.rms_norm")
    NOT_FIRE.that(added > 0, what, expected=wanted, yours=mod["main"].script(), why=why)


def test_10_2_other_numbers(impl) -> None:
    """its numbers then change by more than a hundredth of the largest"""
    before, after = both_results(impl)
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
    def taken() -> str:
        mod, after = lookalike(impl)
        return f"{operators(mod)} {operators(after)} {mod['main'].script()}"

    def wrong() -> str:
        before, after = both_results(impl)
        finite = np.isfinite(before).all() and np.isfinite(after).all()
        return f"{finite} {np.abs(before - after).max() / np.abs(before).max() > WRONG}"

    return [taken, wrong]


# --- 10.3 -----------------------------------------------------------------------------------------

GPUS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120")


class Fails(ScheduleRule):
    """A rule that raises on every kernel, as some of dlight's do on kernels they half know."""

    def apply(self, func, target, tunable):
        raise ScheduleError("this rule knows another kernel")


class Boasts(ScheduleRule):
    """dlight's fallback with an annotation that speaks of tensor cores. TVM ignores it, and the code has none."""

    def apply(self, func, target, tunable):
        sch = dl.gpu.Fallback().apply(func, target, tunable)
        block = sch.get_child_blocks(sch.get_sblock("root"))[0]
        sch.annotate(block, "instruction", "mma_sync")
        return sch


def gpu(arch: str) -> Target:
    return Target({**DLIGHT_CUDA.export(), "arch": arch})


@functools.cache
def rule(name: str) -> ScheduleRule:
    """One object for each rule, so that a choice can be compared."""
    kinds = {
        "GEMV": dl.gpu.GEMV,
        "Matmul": dl.gpu.Matmul,
        "MatmulOnTensorCores": MatmulOnTensorCores,
        "MatmulTensorization": MatmulTensorization,
        "GeneralReduction": dl.gpu.GeneralReduction,
        "Fallback": dl.gpu.Fallback,
        "a rule that fails": Fails,
        "a rule that boasts": Boasts,
    }
    return kinds[name]()


@functools.cache
def code(name: str, arch: str, dtype: str) -> str:
    """The CUDA C++ by one rule, "" where it declines or fails."""
    target = gpu(arch)
    try:
        with target:
            func = matmul_bias(128, 128, 128, dtype)
            mod = dl.ApplyDefaultSchedule(rule(name))(tvm.IRModule({"main": func}))
    except ScheduleError:
        return ""
    return cuda_source(mod, target) if "tirx.is_scheduled" in (mod["main"].attrs or {}) else ""


def chosen(impl, arch: str, given: Sequence[str], dtype: str = "float16") -> str:
    """The name of the rule that on_tensor_cores chooses."""
    import_intrinsics()
    func, rules = matmul_bias(128, 128, 128, dtype), [rule(name) for name in given]
    try:
        found = impl.on_tensor_cores(func, gpu(arch), [*rules])
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


def first_in_code(arch: str, given: Sequence[str], dtype: str = "float16") -> str:
    """What the generated code says."""
    found = (name for name in given[:-1] if "mma_sync" in code(name, arch, dtype))
    return next(found, given[-1])


def test_10_3_first_that_does(impl) -> None:
    """for each architecture the first rule whose code has the instruction"""
    for arch in GPUS:
        found, want = chosen(impl, arch, USUAL), first_in_code(arch, USUAL)
        JUDGE.that(
            found == want,
            f"For {arch}, on_tensor_cores chooses {found}.",
            expected="the first rule whose code contains mma_sync",
            yours=f"the code of {found} "
            + (
                "contains it, but an earlier rule's code does too"
                if "mma_sync" in code(found, arch, "float16")
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
        found = chosen(impl, arch, given, dtype)
        what = f"For {dtype} on {arch}, on_tensor_cores chooses {found}."
        JUDGE.equal(found, given[-1], what, why=f"The last rule is the answer here, because {why}.")


def test_10_3_the_oldest(impl) -> None:
    """compute capability 7.0 is the first with tensor cores"""
    given = ("GEMV", "MatmulTensorization", "Fallback")
    what = "For sm_70, on_tensor_cores does not choose the rule whose code has the instruction."
    why = "Compute capability 7.0 is the first with tensor cores."
    JUDGE.equal(chosen(impl, "sm_70", given), "MatmulTensorization", what, why=why)


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
        JUDGE.equal(chosen(impl, "sm_80", given), given[0], what, why=why)


def observe_10_3(impl):
    cases = [(arch, USUAL, "float16") for arch in ("sm_80", "sm_90a")]
    cases += [
        ("sm_80", ("MatmulOnTensorCores", "Matmul", "Fallback"), "float16"),
        ("sm_80", ("a rule that fails", "GEMV", "Matmul", "Fallback"), "float16"),
        ("sm_80", ("Matmul", "GeneralReduction", "Fallback"), "float32"),
        ("sm_61", ("Matmul", "MatmulTensorization", "Fallback"), "float16"),
        ("sm_90a", ("Matmul", "GeneralReduction", "Fallback"), "float16"),
    ]
    return [lambda case=case: chosen(impl, *case) for case in cases]
