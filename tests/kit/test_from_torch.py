"""What a person hears whose model cannot be compiled, and the whole command on one that can."""

import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tvm

from chapters.ch10_imported_models import compile_model
from chapters.kit.models import from_torch
from chapters.kit.models.from_torch import ModelRefused, import_program, load, run_torch
from chapters.runner.course import ROOT

LINEAR = "import torch\ndef model():\n    return torch.nn.Linear(3, 4), {}"
MODULE = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        {}
def model():
    return Net(), (torch.randn(3),)
"""
REFUSED = {  # name: (the file, what the sentence says)
    "no model()": ("x = 1", "defines no function model()"),
    "not Python": ("def model(:", r"cannot be imported: SyntaxError: .* \(line 1\)"),
    "a missing package": ("import absent_package", "No module named 'absent_package' (line 1)"),
    "model() fails": ("def model():\n    raise ValueError('no weights')", "ValueError: no weights (line 2)"),
    "returns a number": ("def model():\n    return 3", "it returns an object of type int"),
    "returns no module": ("def model():\n    return 3, 4", "a tuple of types (int, int)"),
    "an input of another library": (LINEAR.format("(range(3),)"), "an example input is of type range"),
    "an input that is complex": (LINEAR.format("torch.ones(2, 3) * 1j"), "is torch.complex64, and TVM has real"),
    "an input of the wrong shape": (LINEAR.format("torch.ones(2, 5)"), "does not accept its example inputs"),
    "an input of the wrong dtype": (LINEAR.format("torch.ones(2, 3).int()"), "does not accept its example inputs"),
    "digits are lost": (MODULE.format("return torch.conv1d(x.double()[None], x.double()[None, None])"),
                        "dtype float32, and PyTorch gives float64"),
    "sys.exit": ("import sys\nsys.exit('set MODEL_DIR')", "SystemExit: set MODEL_DIR (line 2)"),
    "a branch": (MODULE.format("return x if x.sum() > 0 else -x"), "values at line 5 of a_model.py, `return x if"),
    "a mask": (MODULE.format("return x[x > 0]"), "A size in this model depends.*at line 5 of a_model"),
    "random numbers": (MODULE.format("return x + torch.randn_like(x)"), "other numbers when the model runs again"),
    "a class": ("import torch\ndef model():\n    return torch.nn.ReLU, (torch.ones(3),)", "module of it: ReLU()"),
    "an unknown operator": (MODULE.format("return torch.special.bessel_j0(x)"), "does not know.*special_bessel_j0"),
}  # fmt: skip
GOOD = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.RMSNorm(24, eps=1e-5), torch.nn.Linear(24, 40)
    def forward(self, x):
        return {"out": self.linear(self.norm(x + x.tanh())), "other": (None, x > 0)}
def model():
    return Net(), torch.randn(2, 5, 24)
"""


@pytest.fixture
def write(tmp_path):
    """Writes a_model.py and returns its path."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[models]'")

    def written(text: str) -> str:
        path = tmp_path / "a_model.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return written


@pytest.mark.parametrize("name", REFUSED)
def test_one_sentence_says_what_is_wrong(write, name):
    text, says = REFUSED[name]
    pattern = says if ".*" in says else "".join(f"\\{c}" if c in "().`" else c for c in says)
    with pytest.raises(ModelRefused, match=pattern) as reason:
        model, inputs = load(write(text))
        run_torch(model, inputs)
        import_program(model, inputs)
    assert "\n" not in str(reason.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent.py", "There is no file absent.py."),
        ("a/b", "There is no file a/b."),
        ("a.b", "There is no module a.b;"),
        ("folder", "'folder' is a folder; give the Python file in it"),
        ("folder.py", "'folder.py' is a folder;"),
        (".", "'.' is a folder;"),
        ("", "'' is a folder;"),
        ("notes.txt", "'notes.txt' is not a Python file: its name must end in .py."),
        ("./notes.txt", "'./notes.txt' is not a Python file"),
        (
            "zeros.py",
            "zeros.py cannot be imported: ",
        ),
    ],
)
def test_a_name_that_is_no_models(tmp_path, monkeypatch, name, says):
    pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[models]'")
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "folder.py"):
        (tmp_path / folder).mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "zeros.py").write_bytes(b"\0")
    with pytest.raises(ModelRefused) as refused:
        load(name)
    assert str(refused.value).startswith(says)


def test_without_pytorch(monkeypatch):
    monkeypatch.setattr(from_torch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModelRefused, match=r'PyTorch is not installed: pip install -e "\.\[models\]"'
    ):
        load("any.py")


def run_compile(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "chapters", "compile", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)


def test_the_command_compares_and_explains(write):
    done = run_compile(write(GOOD))
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "RMSNorms among them: 1, linear layers: 1",
        "fuse_add_norm",
        "ScheduleMatmuls",
        "numbers: the results differ from PyTorch's",
    ):
        assert part in done.stdout


def test_the_command_refuses_in_one_line(write):
    done = run_compile(write("x = 1"))
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (2, "", 1)


def test_a_model_without_kernels_and_one_of_integers(write, monkeypatch, capsys):
    def status(text: str) -> int:
        monkeypatch.setattr(sys, "argv", ["compile_model", "--quick", write(text)])
        return compile_model.main()

    assert status(MODULE.format("return x")) == 0
    integers = "return torch.full((2, 3), 5001) @ torch.full((3, 2), 5003) + x[:2].long()"
    assert status(MODULE.format(integers)) == 0  # the importer alone sums them in float32
    assert "by at most 0.0e+00 of the largest number" in capsys.readouterr().out


def test_other_numbers_are_an_error():
    expected = np.array([1.0, -2.0, np.nan, np.inf], "float32")
    assert compile_model.largest_error(tvm.runtime.tensor(expected), [expected]) == 0
    finite = np.nan_to_num(expected)
    for other, says in (
        (expected + 0.001, "Output 1 differs"),
        (expected[:1], "shape"),
        (expected.astype("float64"), "dtype float64, and PyTorch's has float32"),
        (finite, "NaN or an infinity in other places"),
        (expected / [0, 1, 1, 1], "NaN or an infinity in other places"),
    ):
        other = other if "dtype" in says else other.astype("float32")
        with pytest.raises(compile_model.WrongNumbers, match=says):
            compile_model.largest_error(tvm.runtime.tensor(other), [expected])
    words = np.arange(5)
    with pytest.raises(compile_model.WrongNumbers, match="1 of its 5 elements"):
        compile_model.largest_error(tvm.runtime.tensor(words // 4 + words), [words])


PASSES = {  # name: (what passes() does, what the sentence says)
    "fails": ("return [1 / 0]", r"passes\(\) of .* fails: ZeroDivisionError: division by zero"),
    "no pass": ("return ['fuse']", r"passes\(\) of .* must return a list of passes; in it is an object of type str"),
    "a pass fails": ("return [a_pass(lambda mod: mod['x'])]", "The pass mine of .* fails: "),
    "ill-formed": ("return [a_pass(broken)]", "The pass mine of .* gives a module that is ill-formed"),
}  # fmt: skip
BEFORE = """
import tvm
def a_pass(change):
    return tvm.transform.module_pass(lambda mod, ctx: change(mod), opt_level=0, name="mine")
def broken(mod):
    main = mod["main"]
    x = tvm.relax.Var("x", main.params[0].ty)
    mod["main"] = tvm.relax.Function([x], main.body, main.ret_ty)
    return mod
def passes():
    {}
"""


@pytest.mark.parametrize("name", PASSES)
def test_passes_that_do_not_work(name, write):
    body, says = PASSES[name]
    file = write(MODULE.format("return x + x") + BEFORE.format(body))
    with pytest.raises(ModelRefused, match=says):
        compile_model.measure_error(file)


@pytest.fixture
def example(write):
    """The example's own file, with the loop's line and sizes replaced."""
    text = (ROOT / "docs" / "own-model" / "recurrent.py").read_text(encoding="utf-8")

    def changed(loop: str) -> str:
        text_of = text.replace("STEPS, WIDTH = 16, 2048", "STEPS, WIDTH = 5, 48")
        return write(text_of.replace("for t in range(len(x)):", loop))

    return changed


@pytest.mark.parametrize(
    ("loop", "products"),
    [("for t in range(len(x)):", 6), ("for t in reversed(range(5)):", 6), ("for t in (0, 2):", 4)],
)
def test_the_example_multiplies_once_if_all_rows_are_multiplied(example, loop, products):
    file = example(loop)
    assert compile_model.measure_error(file) < 1e-5
    *_, changed = compile_model.make_graphs(file)
    names = [call.op.name for call in compile_model.operators(changed)]
    assert names.count("relax.matmul") == products


def test_the_command_says_what_the_passes_change(example, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["compile_model", "--quick", example("for t in range(len(x)):")]
    )
    assert compile_model.main() == 0
    said = capsys.readouterr().out
    assert "(EliminateCommonSubexpr, MultiplyBeforeSlicing), both fused" in said
    # the table of launches without and with the passes
    assert re.search(r"main +\d+ → \d+ .*\n\nfunction", said)
