"""The checks of chapter 2: what the six passes attach, and what their readers make of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral

import numpy as np
import tvm
from tvm import relax

from chapters.ch02_attach_metadata.given import (
    CALLS,
    LEAST_CAPTURED,
    MOST_BYTES,
    MOST_GRAPHS,
    Reached,
    measure_attributes,
)
from chapters.checking import expect
from chapters.checking.attributes import check_attaches
from chapters.checking.expect import Section
from chapters.checking.judge import observe_pass
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.passes.planned_storage import plan_storage
from chapters.runner.failure import CheckFailed
from solutions.ch02_attach_metadata import attach_support_info as reference

LESSON = "chapters/ch02_attach_metadata/lesson.md"
HOW = Section(LESSON, "How it works")
NOT_FIRE = Section(LESSON, "When it must not fire")
READERS = Section(LESSON, "See it")
WHY = Section(LESSON, "Why these passes exist")
GRAPHS = Section(LESSON, "What a CUDA graph needs")
OUR_READER = Section(LESSON, "A reader of our own")
MEASURE = Section(LESSON, "Measure it")
BREAK = Section(LESSON, "Break it")

BOUNDS = "tir_var_upper_bound"
NON_NEGATIVE = "tir_non_negative_var"


# --- modules to attach to -------------------------------------------------------------------------


# No function called main, one of every kind, one fused, a device; `prefill` is a kernel here, not the model's function.
Mixed = relax_module(
    kernel("prefill(a, b)", (4, 8), "b[at] = a[at] * T.float32(2)")
    + """
I.module_attrs({"model": "mixed"})

@private
@bare
def helper(x: ("n", 8)) -> R.Tensor(("n", 8), "float32"):
    y = R.exp(x)
    return y

def decode(x: (4, 8)):
    R.func_attr({"num_input": 1})
    y = R.call_tir(cls.prefill, (x,), out_ty=R.Tensor((4, 8), "float32"))
    z = cls.helper(y)

def decode_step(x: ("n", "m")):
    R.func_attr({"Primitive": True})
    y = R.tanh(x)
"""
)
Mixed["sampler"] = relax.ExternFunc("runtime.sampler")
Mixed.update_global_info("vdevice", [relax.VDevice("llvm", 0, "global")])


@functools.cache
def _make_batch_decode() -> tvm.IRModule:
    return decoder("tiny", functions=["batch_decode"])[0]


def _attach_bounds(mod: tvm.IRModule, bounds: dict[str, int]) -> tvm.IRModule:
    """`mod` with `bounds` on every Relax function."""
    return reference.map_relax_functions(mod, lambda _name, func: func.with_attr(BOUNDS, bounds))


def _make_elementwise(*names: str) -> tvm.IRModule:
    """main(x) of five element-wise calls on a tensor whose symbolic dimensions are `names`."""
    value = "R.add(R.negative(R.sqrt(R.tanh(R.exp(x)))), x)"
    return relax_module(f"def main(x: {(*names, 16)}):\n    out = {value}")


# --- what a pass attached -------------------------------------------------------------------------


_check_attributes = functools.partial(check_attaches, read=HOW, read_not=NOT_FIRE)
_observe = functools.partial(observe_pass, runs=False)


# --- 2.1 ------------------------------------------------------------------------------------------


def _check_bounds(a_pass: Callable, bounds: dict[str, int], mod: tvm.IRModule = Mixed) -> None:
    more = {BOUNDS: bounds, NON_NEGATIVE: ["vocab_size"]}
    _check_attributes(a_pass, mod, "AttachVariableBounds", lambda _name: more)
    expect.equal(
        (a_pass.info.name, int(a_pass.info.opt_level)),
        ("AttachVariableBounds", 0),
        "Your pass is registered under another name or level than the pipeline expects. They stand in the decorator.",
        why="Instruments and printouts show the name. A pass of a higher level than PassContext(opt_level=…) is "
        "skipped, and no message says so.",
    )


def test_2_1_attaches_to_every_relax_function(impl) -> None:
    """both attributes, on every Relax function, and on nothing else"""
    bounds = {"n": 64, "m": 7}
    a_pass = impl.AttachVariableBounds(dict(bounds))
    _check_bounds(a_pass, bounds)
    _check_bounds(a_pass, bounds, _make_elementwise("n"))


def test_2_1_drops_what_is_no_bound(impl) -> None:
    """a bound that is not positive means unknown, and is dropped"""
    bounds = {"n": 64, "max_seq_len": -1, "zero": 0, "one": 1, "two_less": -2}
    given = dict(bounds)
    _check_bounds(impl.AttachVariableBounds(given), {"n": 64, "one": 1})
    what = "Your AttachVariableBounds changed the dict that it was given."
    NOT_FIRE.equal(given, bounds, what, why="The caller may give the same dict to several passes.")


def test_2_1_without_any_bound(impl) -> None:
    """with no bound left, the attributes are there and the map is empty"""
    for bounds in ({}, {"max_seq_len": -1}):
        _check_bounds(impl.AttachVariableBounds(bounds), {})


def test_2_1_keeps_its_own_bounds(impl) -> None:
    """changing the caller's dict afterwards does not change the pass, nor does another pass"""
    bounds = {"n": 64}
    a_pass = impl.AttachVariableBounds(bounds)
    bounds["n"] = 1
    _check_bounds(a_pass, {"n": 64})
    impl.AttachVariableBounds({"n": 2})
    _check_bounds(a_pass, {"n": 64})


def test_2_1_newer_bounds_win(impl) -> None:
    """run with other bounds it replaces the old ones"""
    once = impl.AttachVariableBounds({"n": 64})(Mixed)
    _check_bounds(impl.AttachVariableBounds({"m": 5}), {"m": 5}, once)


def test_2_1_map_relax_functions(impl) -> None:
    """map_relax_functions calls rewrite(name, func) for Relax functions and takes what it returns"""
    seen = []

    def rewrite(name: str, func: relax.Function) -> relax.Function:
        seen.append((name, isinstance(func, relax.Function)))
        return func if name == "helper" else func.with_attr("seen", name)

    _check_attributes(
        lambda mod: impl.map_relax_functions(mod, rewrite),
        Mixed,
        "map_relax_functions",
        lambda name: {} if name == "helper" else {"seen": name},
        settles=False,
    )
    what = "Your map_relax_functions did not call rewrite(name, func) once per Relax function."
    HOW.equal(sorted(seen), [("decode", True), ("decode_step", True), ("helper", True)], what)


def test_2_1_the_planner_knows_the_sizes(impl) -> None:
    """with the bounds, only storage that depends on vocab_size keeps a symbolic size"""
    mod = impl.AttachVariableBounds({"batch_size": 8, "context_window": 64})(_make_batch_decode())
    before, after = plan_storage(_make_batch_decode()), plan_storage(mod)
    left = [str(s) for s in after.symbolic if "vocab_size" not in str(s)]
    READERS.that(
        not left and len(after.storages) < len(before.storages),
        "After your pass, the memory planner knows no more about batch_decode than before.",
        expected="fewer storages, and a number for the size of each but the one that depends on vocab_size",
        yours=str(after),
        why="The planner, StaticPlanBlockMemory, reads tir_var_upper_bound of the function that it plans.",
    )


def observe_2_1(impl):
    def change_dict_afterwards() -> Callable:
        bounds = {"n": 9, "m": 3}
        a_pass = impl.AttachVariableBounds(bounds)
        bounds["m"] = 4
        return a_pass

    def make_two() -> Callable:
        a_pass = impl.AttachVariableBounds({"n": 9})
        impl.AttachVariableBounds({"n": 2})
        return a_pass

    def names() -> list[str]:
        seen: list[str] = []
        impl.map_relax_functions(Mixed.clone(), lambda name, func: seen.append(str(name)) or func)
        return sorted(seen)

    return [
        names,
        *_observe(lambda: impl.AttachVariableBounds({"n": 64, "k": -1, "z": 0}), Mixed),
        *_observe(lambda: impl.AttachVariableBounds({}), Mixed),
        *_observe(lambda: impl.AttachVariableBounds({"k": -1}), _make_elementwise("n")),
        *_observe(change_dict_afterwards, _make_elementwise("n", "m")),
        *_observe(make_two, _make_elementwise("n")),
        lambda: sorted(impl.map_relax_functions(Mixed, lambda _name, func: func).global_infos),
    ]


# --- 2.2 ------------------------------------------------------------------------------------------


def _are_names(value: object) -> bool:
    sequence = isinstance(value, Sequence) and not isinstance(value, str)
    return sequence and all(isinstance(one, str) for one in value)


def _are_bounds(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(bound, Integral | tvm.tirx.IntImm)
        for name, bound in value.items()
    )


# the attributes of the first three rows of the page's table: whether a value is one, and what it looks like
USABLE: dict[str, tuple[Callable[[object], bool], str]] = {
    BOUNDS: (_are_bounds, 'a dict of whole numbers, such as {"batch_size": 3}'),
    NON_NEGATIVE: (_are_names, 'a list of names, such as ["vocab_size"]'),
    "relax.memory_plan_dynamic_func_output": (lambda one: isinstance(one, int), "True or False"),
    "relax.rewrite_cuda_graph.capture_symbolic_vars": (
        _are_names,
        'a list of names, such as ["batch_size"]',
    ),
}
_measured: dict[str, Reached] = {}  # by the answer, as every check asks for all of it


def _measure_choice(impl) -> Reached:
    chosen = impl.choose_attributes()
    wanted = 'a dict such as {"batch_decode": {"tir_var_upper_bound": {"batch_size": 3}}}'
    expect.returns(chosen, dict, "choose_attributes", "a dict", expected=wanted)
    others = {n: a for n, a in chosen.items() if n not in CALLS or not isinstance(a, Mapping)}
    expect.that(
        not others,
        "Your choose_attributes has an entry that is not a function of CALLS with a dict of attributes.",
        expected=f"{wanted}; the functions are {', '.join(CALLS)}",
        yours=repr(others)[:200],
    )
    for name, attrs in chosen.items():
        for key, value in attrs.items():
            READERS.that(
                key in USABLE,
                f"Your choose_attributes attaches `{key}` to {name}, which is not an attribute of this exercise.",
                expected=", ".join(USABLE),
                why="Other attributes say something else: `num_input`, for example, which parameters are weights. They "
                "are not yours to choose here, or no pass reads them.",
            )
            right, wanted_value = USABLE[key]
            READERS.that(
                right(value),
                f"Your choose_attributes gives {name} a value of `{key}` that its reader cannot use.",
                expected=wanted_value,
                yours=repr(value)[:200],
            )
    key = repr(chosen)
    if key not in _measured:
        _measured[key] = measure_attributes(chosen)
    return _measured[key]


def _check_choice(
    impl, fulfilled: Callable[[Reached], bool], what: str, why: str, read: Section
) -> None:
    reached = _measure_choice(impl)
    read.that(fulfilled(reached), what, yours=str(reached), why=why)


def test_2_2_no_bound_lies(impl) -> None:
    """no call has a size that is larger than its bound"""
    _check_choice(
        impl,
        lambda reached: not reached.lies,
        "A call exceeds a bound that you attached.",
        "The planner reserves storage for the bound. A call with a larger size does not fit, or fits only by chance.",
        BREAK,
    )


def test_2_2_allocates_little(impl) -> None:
    """the largest calls of both functions allocate few bytes"""
    _check_choice(
        impl,
        lambda reached: reached.bytes <= MOST_BYTES,
        f"The largest calls of the two functions allocate more than {MOST_BYTES:,} bytes.",
        "A bound larger than needed reserves too much. For a size without a bound, the planner cannot compare "
        "storages, and reuses fewer. planned(mod) shows the storages of each function.",
        WHY,
    )


def test_2_2_captures_enough(impl) -> None:
    """most launches come from graphs"""
    _check_choice(
        impl,
        lambda reached: reached.captured >= LEAST_CAPTURED,
        f"Less than {LEAST_CAPTURED:.0%} of the launches are replayed from CUDA graphs.",
        "A kernel whose tensors have a symbolic size needs a bound and a hint for it.",
        GRAPHS,
    )


def test_2_2_records_few_graphs(impl) -> None:
    """few graphs are recorded for these calls"""
    _check_choice(
        impl,
        lambda reached: reached.graphs <= MOST_GRAPHS,
        f"More than {MOST_GRAPHS} graphs are recorded for these calls.",
        "A graph is recorded once for each combination of the sizes that its kernels use. Recording costs time and "
        "memory, which only replays pay back.",
        GRAPHS,
    )


def observe_2_2(impl):
    facts = "lies", "bytes", "captured", "graphs"
    return [lambda fact=fact: getattr(_measure_choice(impl), fact) for fact in facts]


# --- 2.3 ------------------------------------------------------------------------------------------


FOUR = 'R.Tensor((4,), "float32")'

# calls only
STRAIGHT = relax_module("""
def main(x: (3, 16), w: (16, 16)):
    a = R.exp(x)
    b = R.matmul(a, w)
    c = R.tanh(b)
    out = R.add(c, a)
""")
# a is used two stages later, d is an alias, and w is a parameter used everywhere
CHAIN = relax_module("""
def main(x: (3, 16), w: (16, 16)):
    a = R.exp(x)
    b = R.matmul(a, w)
    c = R.tanh(b)
    d = c
    e = R.add(d, d)
    f = R.matmul(e, w)
    out = R.add(f, a)
""")
# fields of a tuple, a tuple made and unpacked, a result of two stages, weights in a tuple
PACKED = relax_module("""
def main(x: ("n", 8, "float16"), weights: R.Tuple(R.Tensor((8, 8), "float16"))):
    w = weights[0]
    y = R.matmul(x, w)
    halves = R.split(y, 2, axis=1)
    left = halves[0]
    right = halves[1]
    small = R.exp(left)
    pair = (small, right)
    again = pair[1]
    z = R.matmul(x, w)
    wide = R.astype(again, "float32")
    return (small, wide)
""")
# several blocks, an `if` whose condition and branches use tensors of an earlier stage, and a result known early
BRANCHES = relax_module("""
def main(x: R.Tensor((), "bool")):
    first = R.logical_not(x)
    unused = R.logical_not(x)
    with R.dataflow():
        second = R.logical_not(x)
        R.output(second)
    other = R.logical_not(x)
    choose = R.logical_not(x)
    if choose:
        third = R.logical_not(first)
    else:
        third = R.logical_and(x, other)
    fourth = R.logical_not(third)
    return (second, fourth)
""")
# a constant with a name, and a match_cast, which names the tensor that it checks
CASTS = relax_module("""
def main(x: (4,)):
    two = R.const(2.0, "float32")
    a = R.exp(x)
    known = R.match_cast(a, R.Tensor((4,), "float32"))
    b = R.multiply(known, two)
    out = R.add(b, two)
    same = out
""")
# two functions inside a function: one uses a tensor it was not given, and the other and a branch call the first
CAPTURED = relax_module(f"""
def main(x: {FOUR}, choose: R.Tensor((), "bool")):
    a = R.exp(x)
    @R.function
    def add_a(y: {FOUR}) -> {FOUR}:
        added = R.add(y, a)
        return added
    b = R.tanh(x)
    also = add_a
    @R.function
    def add_again(z: {FOUR}) -> {FOUR}:
        once: {FOUR} = add_a(z)
        again: {FOUR} = add_a(once)
        return again
    c: {FOUR} = also(b)
    if choose:
        d: {FOUR} = add_a(c)
    else:
        d = R.exp(c)
    e: {FOUR} = add_again(d)
    return e
""")
# stage 1, from `same`, names, packs, unpacks and captures what it does not use; `right` is computed before `left`
NAMED = relax_module(f"""
def main(x: {FOUR}):
    unused = R.sin(x)
    right = R.exp(x)
    left = R.tanh(x)
    same = left
    pair = (unused, right)
    again = pair[1]
    @R.function
    def add_left(y: {FOUR}) -> {FOUR}:
        added = R.add(y, left)
        return added
    made = R.cos(x)
    sum_of_two: {FOUR} = add_left(made)
    out = R.add(again, sum_of_two)
    return out
""")
# a call that returns a tuple in a tuple, and a tuple that holds a constant, a parameter and a tuple
NESTED = relax_module(f"""
def main(x: {FOUR}):
    t = R.call_pure_packed("three", x, ty_args=R.Tuple(R.Tuple({FOUR}, {FOUR}), {FOUR}))
    two = t[0]
    left = two[0]
    right = two[1]
    rest = t[1]
    packed = (right, R.const(2.0, "float32"), (rest, x))
    inner = packed[2]
    same = inner[0]
    c = R.add(left, packed[1])
    d = R.add(same, c)
    return d
""")
# two variables called a, and the first is used after the second is bound: a pass has put it in the place of `old`
TWO_CALLED_A = relax_module(f"""
def main(x: {FOUR}):
    a = R.exp(x)
    b = R.tanh(a)
    old = a
    a = R.sin(x)
    c = R.add(a, b)
    d = R.add(c, old)
    return d
""")
TWO_CALLED_A = relax.transform.CanonicalizeBindings()(TWO_CALLED_A)
SENT = {  # the shape and dtype of every tensor that crosses, where that is not (4,) and float32
    STRAIGHT: ((3, 16), "float32"),
    CHAIN: ((3, 16), "float32"),
    PACKED: (("n", 4), "float16"),
    BRANCHES: ((), "bool"),
}


def find_variables(func: relax.Function, *names: str) -> list[relax.Var]:
    """The variables of `func` that are called `names`; of two with one name, the later."""
    found = {b.var.name: b.var for block in func.body.blocks for b in block.bindings}
    return [found[name] for name in names]


def _find_crossings(impl, mod: tvm.IRModule, name: str, *starts: str) -> list[tuple]:
    func = mod[name]
    result = impl.crossing_tensors(func, find_variables(func, *starts))
    wanted = "a list, empty if no tensor crosses"
    expect.returns(result, list, "Your crossing_tensors", "a list of Crossing", expected=wanted)
    return [(c.name, c.shape, str(c.ty.dtype), c.from_stage, tuple(c.to_stages)) for c in result]


def _check_crossings(
    impl, mod: tvm.IRModule, starts: str, crossing: dict[str, tuple], why: str
) -> None:
    """Where `mod` is cut before each of `starts`, `crossing` is sent.

    crossing: by name, the stage that computes the tensor, then those that use it.
    """
    sent = SENT.get(mod, ((4,), "float32"))
    expected = [(n, *sent, made, tuple(used)) for n, (made, *used) in crossing.items()]
    cut = " and before ".join(starts.split())
    got = _find_crossings(impl, mod, "main", *starts.split())
    if got != expected:
        raise OUR_READER.failed(
            f"Your crossing_tensors finds the wrong crossings for a function that is cut before {cut}."
            if starts
            else "Your crossing_tensors finds crossings in a function that is not cut.",
            expected=_describe_crossings(expected),
            yours=_describe_crossings(got) + "\nin\n" + mod["main"].script(),
            why=why,
        )


def _describe_crossings(crossings: list[tuple]) -> str:
    return (
        "\n".join(
            f"{name} {shape} {dtype}: stage {made} to {', '.join(map(str, used))}"
            for name, shape, dtype, made, used in crossings
        )
        or "nothing crosses"
    )


def test_2_3_one_stage(impl) -> None:
    """a function that is not cut sends nothing"""
    for mod in (CHAIN, BRANCHES):
        why = "A tensor that only its own stage uses never leaves it."
        _check_crossings(impl, mod, "", {}, why)


def test_2_3_calls_only(impl) -> None:
    """a function of calls, without second names, tuples, branches and inner functions"""
    why = "Stage 1 uses b in its first binding and a in its second. It is given x and w, which are parameters."
    _check_crossings(impl, STRAIGHT, "c", {"a": (0, 1), "b": (0, 1)}, why)
    why = "Stage 2 uses a, computed in stage 0, and c, computed in stage 1."
    _check_crossings(impl, STRAIGHT, "c out", {"a": (0, 2), "b": (0, 1), "c": (1, 2)}, why)
    why = "Stages 1 and 2 both use a. It is one tensor, so it has one entry, with two stages."
    _check_crossings(impl, STRAIGHT, "b c", {"a": (0, 1, 2), "b": (1, 2)}, why)


def test_2_3_to_later_stages(impl) -> None:
    """a tensor that a later stage uses crosses once, also if it skips a stage or is used often"""
    why = "Stage 1 uses b in its first binding, and a in its last one."
    _check_crossings(impl, CHAIN, "c", {"a": (0, 1), "b": (0, 1)}, why)
    why = "Stage 2 uses a, which stage 0 computes. That stage 1 does not use it changes nothing."
    _check_crossings(impl, CHAIN, "c f", {"a": (0, 2), "b": (0, 1), "e": (1, 2)}, why)
    why = "Stages 1 and 2 both use a. It is one tensor, so it has one entry, with two stages."
    _check_crossings(impl, CHAIN, "b f", {"a": (0, 1, 2), "e": (1, 2)}, why)


def test_2_3_names_are_not_tensors(impl) -> None:
    """a second name for a tensor is not a second tensor; parameters and constants do not cross"""
    why = "`d = c` computes nothing, so stage 1 needs c. w is a parameter, and every stage is given the parameters."
    _check_crossings(impl, CHAIN, "e", {"a": (0, 1), "c": (0, 1)}, why)
    why = "`known` is a second name for a: a match_cast computes nothing. `two` is a constant, which every stage has. "
    why += "The last stage computes nothing, and returns `out`."
    _check_crossings(impl, CASTS, "b same", {"a": (0, 1), "out": (1, 2)}, why)
    why = "Stage 1 names, packs, unpacks and captures tensors, which uses none of them. Stage 2 uses them."
    sent = {"right": (0, 2), "left": (0, 2), "made": (1, 2)}
    _check_crossings(impl, NAMED, "same sum_of_two", sent, why)
    why = "Two variables are called a. They are different variables: compare with `same_as`, and not by name."
    _check_crossings(impl, TWO_CALLED_A, "a", {"a": (0, 1), "b": (0, 1)}, why)


def test_2_3_empty_stages(impl) -> None:
    """if a variable is listed twice, it begins two stages, and the first of these is empty"""
    why = "c is listed twice, so stage 1 is empty, and c is in stage 2. even_starts makes such cuts for few calls."
    _check_crossings(impl, CHAIN, "c c f", {"a": (0, 3), "b": (0, 2), "e": (2, 3)}, why)


def test_2_3_tuples(impl) -> None:
    """of a tuple, only the fields that are used cross, each by itself"""
    why = "Only its own stage uses halves[0]. `weights` is a parameter, so its fields do not cross. The last stage "
    why += "returns `small`."
    for start in ("pair", "z"):
        _check_crossings(impl, PACKED, start, {"halves[1]": (0, 1), "small": (0, 1)}, why)
    both = {"halves[0]": (0, 1), "halves[1]": (0, 1)}
    _check_crossings(impl, PACKED, "left", both, "Stage 1 uses both fields.")
    why = "`t` is a tuple whose first field is a tuple. Stage 1 uses t[0][0] and, through `packed`, t[1]."
    _check_crossings(impl, NESTED, "c", {"t[0][0]": (0, 1), "t[1]": (0, 1)}, why)


def test_2_3_branches_and_results(impl) -> None:
    """an `if` uses its condition and what its branches use; the last stage returns the result"""
    why = "`choose` is the condition. One branch uses `first`, the other `other`. The last stage returns `second`."
    sent = {"first": (0, 1), "second": (0, 1), "other": (0, 1), "choose": (0, 1)}
    _check_crossings(impl, BRANCHES, "third", sent, why)
    why = "No stage uses `unused`, so it is not sent."
    sent = {"first": (0, 2), "second": (1, 2), "other": (1, 2), "choose": (1, 2)}
    _check_crossings(impl, BRANCHES, "unused third", sent, why)
    why = "The `if` computes `third`, as a call does, and stage 1 uses it."
    _check_crossings(impl, BRANCHES, "fourth", {"second": (0, 1), "third": (0, 1)}, why)


def test_2_3_captured(impl) -> None:
    """what an inner function captures is used where that function is called"""
    why = (
        "Stages 1, 2 and 3 call functions that use a, although no call mentions a. relax.analysis.free_vars(function) "
        "lists what a function captures: add_a captures a, and add_again captures add_a. `also` is add_a. "
        "A branch calls add_a."
    )
    sent = {"a": (0, 1, 2, 3), "b": (0, 1), "c": (1, 2), "d": (2, 3)}
    _check_crossings(impl, CAPTURED, "c d e", sent, why)


def test_2_3_decoder(impl) -> None:
    """cut before its second layer, the decoder sends one hidden state, and its whole cache"""
    mod = _make_batch_decode()
    got = _find_crossings(impl, mod, "batch_decode", "rms_norm2")
    shapes = sorted(((shape, to) for _, shape, _, _, to in got), key=str)
    cache = (3, 2, "batch_size", "context_window", 4, 16)
    expected = sorted([(("batch_size", 1, 128), (1,)), (cache, (1,))], key=str)
    what = "Your crossing_tensors finds the wrong tensors for a batch_decode that is cut before its second layer."
    why = "A layer takes the hidden state. The cache is one tensor, which every layer updates and passes on."
    OUR_READER.equal(shapes, expected, what, why=why)


def observe_2_3(impl):
    plain = _observe_plain_2_3(impl)

    def captured() -> str:
        """Look only at an answer that is right in everything else: other mistakes do not depend on inner functions."""
        right = _observe_plain_2_3(reference)
        if [str(probe()) for probe in plain] != [str(probe()) for probe in right]:
            return "something else comes first"
        found = _find_crossings(impl, CAPTURED, "main", "c", "d", "e")
        return str([found, _find_crossings(impl, NAMED, "main", "same", "sum_of_two")])

    return [*plain, captured]


def _observe_plain_2_3(impl):
    cuts = [
        *((CHAIN, starts) for starts in ("c f", "b f", "e")),
        *((PACKED, start) for start in ("z", "left")),
        *((BRANCHES, starts) for starts in ("unused third", "fourth")),
        (CASTS, "b same"),
        (NESTED, "c"),
        (TWO_CALLED_A, "a"),
        (CHAIN, "c c f"),
    ]
    return [
        lambda mod=mod, starts=starts: _find_crossings(impl, mod, "main", *starts.split())
        for mod, starts in cuts
    ]


# --- 2.4, 2.5 ----------------------------------------------------------------------------------


LARGEST = (
    "Go through `batch_decode` operator by operator. The planner plans every result that is not an output. Which one "
    "has the most bytes, and does its shape depend on a bound?"
)
PLANNED = {
    "largest": LARGEST,
    "largest_at_batch_16": LARGEST,
    "symbolic": "A storage keeps a symbolic size if a dimension of its tensor has no bound. Which symbolic sizes of "
    "the decoder have none, and which temporaries have such a dimension?",
}


def test_2_4_prediction_holds(impl) -> None:
    """the predicted bytes are those the planner allocates"""
    yours = impl.predicted_storage()
    plans = {}
    for batch in (8, 16):
        bounds = {"batch_size": batch, "context_window": 64}
        plans[batch] = plan_storage(_attach_bounds(_make_batch_decode(), bounds))
    measured = {
        "largest": max(s.size for s in plans[8].constant),
        "largest_at_batch_16": max(s.size for s in plans[16].constant),
        "symbolic": len(plans[8].symbolic),
    }
    expect.that(
        isinstance(yours, dict) and set(measured) <= set(yours),
        "Your predicted_storage does not return a dict of three numbers.",
        expected=", ".join(repr(key) for key in measured),
        yours=repr(yours)[:200],
    )
    for key, value in measured.items():
        what = f"Your predicted_storage says another number for {key!r} than the planner."
        MEASURE.predicted(yours[key], value, what, why=PLANNED[key])


def observe_2_4(impl):
    return [lambda key=key: impl.predicted_storage()[key] for key in PLANNED]


def _find_error(mod: tvm.IRModule, name: str, array: np.ndarray, bounds: dict) -> str:
    """ "" if function `name` runs on `array`, with `bounds` on every function if there are any, else the error."""
    try:
        expect.run(_attach_bounds(mod, bounds) if bounds else mod, name, [array])
    except Exception as error:
        return str(error).split("\nStack trace")[0].strip()
    return ""


def _read_lying_bound(impl) -> tuple[tvm.IRModule, np.ndarray]:
    result = impl.lying_bound()
    parts = result if isinstance(result, tuple | list) else [result]
    kinds = tvm.IRModule, np.ndarray
    expect.that(
        len(parts) == 2 and all(map(isinstance, parts, kinds)),
        "Your lying_bound does not return a module and an array.",
        expected="(module, array): an IRModule and a NumPy array for `score`",
        yours=", ".join(type(one).__name__ for one in parts),
    )
    return _attach_bounds(parts[0], {}), parts[1]


def test_2_5_the_bound_is_true_of_prefill(impl) -> None:
    """prefill runs on 64 rows with the bound, and score runs on its array without it"""
    mod, array = _read_lying_bound(impl)
    expect.is_program(mod, "lying_bound", "prefill", "score")
    taken = mod["prefill"].params[0].ty
    what = "Your prefill does not take R.Tensor((seq_len, 16), float32)."
    expect.that(str(taken.shape[0]) == "seq_len", what, yours=str(taken))
    rows = np.random.default_rng(1).standard_normal((64, 16)).astype("float32")
    for name, given, bounds in (("prefill", rows, {"seq_len": 64}), ("score", array, {})):
        error = _find_error(mod, name, given, bounds)
        how = "on 64 rows with the bound" if bounds else "on your array without the bound"
        expect.that(not error, f"Your {name} does not run {how}.", yours=error)


def test_2_5_the_bound_is_false_of_score(impl) -> None:
    """the same bound makes the VM refuse score"""
    mod, array = _read_lying_bound(impl)
    error = _find_error(mod, "score", array, {"seq_len": 64})
    if "storage allocation failure" in error:
        return
    if error:
        raise CheckFailed("The VM refused your score, but not for lack of storage.", yours=error)
    sizes = plan_storage(mod)
    raise BREAK.failed(
        "Your score also runs with the bound.",
        expected="the VM refuses it with “storage allocation failure”",
        yours=f"an array of shape {array.shape}; without the bound the planner allocates\n{sizes}",
        why="The planner looks up the bound by the name of a variable in the function's signature. It plans the "
        "tensors between the input and the output, not the output. The VM allocates storage in pages of 4096 bytes, "
        "so an array with a few rows too many may still fit.",
    )


def observe_2_5(impl):
    def plans_inside_score() -> bool:
        plan = plan_storage(impl.lying_bound()[0])
        return any(s.planned for s in plan.storages if s.function == "score")

    return [
        lambda: f"planned inside: {plans_inside_score()}",
        lambda: f"rows called {impl.lying_bound()[0]['score'].params[0].ty.shape[0]}",
        lambda: f"more rows than the bound: {impl.lying_bound()[1].shape[0] > 64}",
        lambda: (
            f"without the bound: {_find_error(impl.lying_bound()[0], 'score', impl.lying_bound()[1], {})}"
        ),
    ]
