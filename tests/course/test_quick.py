"""What makes TVM faster changes nothing else: its call stack, its imports, what its schedules refuse."""

import inspect
import subprocess
import sys

import pytest
import tvm
from tvm.s_tir.schedule import _type_checker as checker
from tvm.script import tirx as T
from tvm.script.parser.core import doc

from chapters.quick_stack import WITH_SOURCE
from chapters.runner.course import ROOT


def asked_by(module: str, question: str) -> list[inspect.FrameInfo]:
    """What `question` gives to a function of `module`."""
    names = {"__name__": module, "inspect": inspect}
    exec(f"def ask():\n    return {question}", names)
    return names["ask"]()


@pytest.mark.parametrize(
    "question", ["inspect.stack()", "inspect.getouterframes(inspect.currentframe())"]
)
def test_the_frames_are_the_same_and_only_the_first_have_source(question):
    own, tvm = asked_by("somewhere", question), asked_by("tvm.script.parser", question)
    assert [frame.function for frame in own[:3]] == ["ask", "asked_by", inspect.stack()[0].function]
    assert [frame.function for frame in tvm] == [frame.function for frame in own]
    assert [frame.lineno for frame in tvm[2:]] == [frame.lineno for frame in own[2:]]
    for here in range(WITH_SOURCE):
        assert (tvm[here].code_context, tvm[here].index) == (
            own[here].code_context,
            own[here].index,
        )
    assert own[4].code_context and not any(frame.code_context for frame in tvm[WITH_SOURCE:])


def test_a_function_that_is_registered_later_is_found_too():
    import tvm_ffi

    for name in ("quick_a.one", "quick_a.two"):
        tvm_ffi.register_global_func(name, lambda name=name: name)
        tvm_ffi.init_ffi_api("quick_a", __name__)
        function = globals().pop(name.partition(".")[2])
        assert function() == name
    for name in ("quick_a.one", "quick_a.two"):
        tvm_ffi.remove_global_func(name)
    tvm_ffi.register_global_func("quick_a.three", lambda: 3)
    tvm_ffi.register_global_func("quick_a.four", lambda: 4)
    tvm_ffi.init_ffi_api("quick_a", __name__)  # as many functions as before, and others
    assert globals().pop("three")() + globals().pop("four")() == 7
    for name in ("quick_a.three", "quick_a.four"):
        tvm_ffi.remove_global_func(name)
    assert "quick_a.one" not in tvm_ffi.registry.list_global_func_names()


def test_where_tvm_is_missing_that_is_what_python_says():
    """A peer of a bench may be an interpreter without it, in which libraries ask for TVM."""
    code = "import importlib.util as u, sys, chapters; sys.path = [p for p in sys.path if 'packages' not in p]; "
    code += "assert u.find_spec('tvm') is None and u.find_spec('tvm_ffi') is None"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True)


def test_garbage_is_collected_again_after_the_import():
    code = "import gc, chapters, tvm; assert gc.isenabled()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="there it is imported with TVM")
def test_tvm_is_imported_without_pytorch():
    """Unless there is an NVIDIA driver. That PyTorch can be imported later, every test of chapter 10 shows."""
    code = "import sys, chapters, tvm; from chapters.kit.devices import cuda_driver as driver; "
    code += "sys.exit('torch' in sys.modules and not driver._load(driver.DRIVER))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_whoever_is_not_tvm_may_import_pytorch():
    """Here it is only found: whether it runs is not the question."""
    pytest.importorskip("torch")
    code = "import sys, importlib.util as util, chapters\n"
    for name in ("{}", "{'__name__': 'tvm_ffi_mine'}"):
        code += f"exec('assert util.find_spec(\"torch\")', {{'util': util, **{name}}})\n"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_text_that_is_parsed_again_gives_the_same_program_and_its_own_values():
    def double(factor: int):
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((4,), "int32")):
            for i in range(4):
                A[i] = A[i] * factor

        return main

    assert doc.parse("x = 1") is doc.parse("x = 1")
    tvm.ir.assert_structural_equal(double(2), double(2))
    assert "* 3" in double(3).script() and "* 2" in double(2).script()


def test_a_wrong_type_is_refused_after_a_right_one():
    for value, wrong, hint in ((1, "a", int), ([1], [1, "a"], list[int]), ("a", 1, str | None)):
        assert checker._type_check(value, "n", hint) is None
        assert checker._type_check(value, "n", hint) is None
        assert '"n' in checker._type_check(wrong, "n", hint)
        assert "has wrong type. Expected" in checker._type_check(wrong, "n", hint)
    assert checker._type_check.__module__ == "chapters.quick_tvm"
