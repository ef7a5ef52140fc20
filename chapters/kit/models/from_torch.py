"""Reads a file that defines a PyTorch model, runs it, and imports it as a Relax module.

The file defines `model()`, which returns (a torch.nn.Module, a tuple of example tensors). The module is compiled for
the shapes of these tensors. Where something is wrong, a Refused says so to the person who wrote the file.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

import numpy as np
import tvm
from tvm import relax

NO_TORCH = 'PyTorch is not installed: pip install -e ".[models]"'
RETURNED = "(a torch.nn.Module, a tuple of example tensors)"
MUST_RETURN = f"model() must return {RETURNED}"


class Refused(Exception):
    """A model that cannot be compiled, and the reason in one sentence."""


def load(name: str) -> tuple:
    """(module, example inputs) of the file or dotted module path `name`; the module is in evaluation mode."""
    if not importlib.util.find_spec("torch"):
        raise Refused(NO_TORCH)
    import torch

    source = _source(name)
    if not callable(getattr(source, "model", None)):
        raise Refused(f"{name} defines no function model(), which must return {RETURNED}.")
    try:
        returned = source.model()
    except (Exception, SystemExit) as error:
        raise Refused(f"model() of {name} fails: {_said(error, source.__file__)}.") from error
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    if is_pair and isinstance(returned[0], type):
        kind = returned[0].__name__
        raise Refused(
            f"{MUST_RETURN}; in {name} it returns the class {kind}. Make a module of it: {kind}()."
        )
    if not is_pair or not isinstance(returned[0], torch.nn.Module):
        raise Refused(f"{MUST_RETURN}; in {name} it returns {_kind(returned)}.")
    model, inputs = returned
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            raise Refused(f"{MUST_RETURN}; in {name} an example input is of type {kind}.")
    others = {str(p.dtype) for p in model.parameters() if p.is_floating_point()} - {"torch.float32"}
    if others:
        raise Refused(
            f"The model of {name} has weights of {', '.join(others)}. TVM's importer gives products another dtype "
            "than PyTorch does, so return model.float() and inputs of float32."
        )
    return model.eval(), inputs


def _source(name: str) -> ModuleType:
    """The imported file or module."""
    path = Path(name)
    dotted = all(part.isidentifier() for part in name.split("."))
    if path.is_dir() and not (dotted and (path / "__init__.py").exists()):
        raise Refused(f"{name!r} is a folder; give the Python file in it that defines model().")
    if path.exists() and not path.is_dir() and path.suffix != ".py":
        raise Refused(f"{name!r} is not a Python file: its name must end in .py.")
    if dotted and path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise Refused(
                f"There is no module {name}; a file is named with its ending, such as {name}.py."
            )
        path = Path(spec.origin or name)
    elif not path.is_file():
        raise Refused(f"There is no file {name}.")
    else:
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location("model_to_compile", path.resolve())
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source
    try:
        spec.loader.exec_module(source)
    except (Exception, SystemExit) as error:
        raise Refused(f"{name} cannot be imported: {_said(error, str(path.resolve()))}.") from error
    return source


def outputs_of(model, inputs: tuple) -> list[np.ndarray]:
    """What PyTorch computes, flattened in the order in which the exported graph returns it.

    A copy of the model gets copies of the inputs, because a model may write into its buffers or its inputs. Raises
    Refused if PyTorch refuses the inputs, and if a second run gives other numbers.
    """
    found, again = (_outputs(model, inputs) for _ in range(2))
    pairs = zip(found, again, strict=True)
    if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
        raise Refused(
            "PyTorch gives other numbers when the model runs again, so there is nothing to compare with. The model "
            "draws random numbers, such as those of torch.nn.functional.dropout without training=False."
        )
    return found


def _outputs(model, inputs: tuple) -> list[np.ndarray]:
    import torch
    from torch.utils import _pytree

    try:
        with torch.inference_mode():
            returned = copy.deepcopy(model)(*(value.clone() for value in inputs))
    except Exception as error:
        raise Refused(f"The model does not accept its example inputs: {_said(error)}.") from error
    return [
        value.detach().numpy()
        for value in _pytree.tree_flatten(returned)[0]
        if isinstance(value, torch.Tensor)
    ]


def imported(model, inputs: tuple) -> tvm.IRModule:
    """The model as a Relax module whose `main` takes the example inputs; weights are constants."""
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with torch.no_grad():
            program = torch.export.export(model, inputs)
    except Exception as error:
        raise Refused(_not_exported(error)) from error
    if where := _sized_by_values(program):
        raise Refused(
            f"A size in this model depends on a tensor's values{where}, and the compiled model has fixed sizes. Keep "
            "all elements, and let torch.where set those to 0 that do not count."
        )
    try:
        spelled = spelled_out(program)
        return wrap_indices(from_exported_program(spelled, run_ep_decomposition=False))
    except Exception as error:
        unknown = re.search(r"Unsupported function types \[(.*)\]", str(error))
        if unknown:
            message = f"TVM's importer does not know these operators of PyTorch: {unknown[1]}."
        else:
            message = f"TVM's importer cannot translate the exported model: {_said(error)}."
        raise Refused(message) from error


def spelled_out(program):
    """`program`, an exported one, in PyTorch's core operators, without options that the importer would ignore.

    The importer gives a cumulative sum the dtype of its operand, where PyTorch counts booleans and short integers in
    int64, and it drops the factor of `add(a, b, alpha=…)` and of `sub`.
    """
    import torch

    aten, table = torch.ops.aten, torch.export.default_decompositions()

    def cumsum(x, dim, *, dtype=None):
        summed = dtype or (x.dtype if x.is_floating_point() else torch.int64)
        return NotImplemented if x.dtype == summed else torch.cumsum(x.to(summed), dim)

    def scaled(call):
        return lambda a, b, *, alpha=1: NotImplemented if alpha == 1 else call(a, b * alpha)

    table[aten.cumsum.default] = cumsum
    table[aten.add.Tensor], table[aten.sub.Tensor] = scaled(torch.add), scaled(torch.sub)
    return program.run_decompositions(table)


def wrap_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with take(x, index, mode="wrap") for each take(x, index) of mode "fast", as the importer makes them.

    In mode "fast" a negative index reads outside of x, and PyTorch counts it from the end, as mode "wrap" does.
    """

    @relax.expr_functor.mutator
    class Wrap(relax.PyExprMutator):
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            call = super().visit_call_(call)
            if call.op == tvm.ir.Op.get("relax.take") and call.attrs.mode == "fast":
                return relax.op.take(*call.args, axis=call.attrs.axis, mode="wrap")
            return call

    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = Wrap(mod).visit_expr(func)
    return result


def _sized_by_values(program) -> str:
    """Where an exported program has the first result whose size is not a number, as of y[y > 0]; "" if nowhere."""
    import torch

    for node in program.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ())
        if any(isinstance(dim, torch.SymInt) for dim in shape):
            lines = re.findall(
                r'File "(.*)", line (\d+).*\n\s*(.+)', node.meta.get("stack_trace") or ""
            )
            return _at(lines[-1][0], int(lines[-1][1]), lines[-1][2]) if lines else " somewhere"
    return ""


def _at(path: str, number: int, line: str | None) -> str:
    return f" at line {number} of {Path(path).name}, `{line}`"


def _not_exported(error: Exception) -> str:
    """Why torch.export gave up; the line of the model, or of a library, that it could not follow."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}torch{os.sep}" not in f.filename
    ]
    frames = [f for f in frames if f.filename not in (__file__, "<string>")]
    where = _at(frames[-1].filename, frames[-1].lineno or 0, frames[-1].line) if frames else ""
    if "DynamicCache" in str(error):
        return (
            "torch.export cannot follow this model: it returns a cache of keys and values. In model(), set "
            "config.use_cache = False, and give an attention mask among the example inputs."
        )
    if "data-dependent" in str(error):
        return (
            f"torch.export cannot follow this model: the program depends on a tensor's values{where}. "
            "Where it chooses between two results, compute both and use torch.where; a size must be a number."
        )
    return f"torch.export cannot follow this model{where}: {_said(error)}."


def _said(error: BaseException, path: str | None = None) -> str:
    """An exception in one line: its type, the first line of its text, and where in the file at `path` it arose."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    text = next((line.strip() for line in said.splitlines() if line.strip()), "no message")
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if isinstance(error, SyntaxError):
        lines = [error.lineno] if error.lineno else []
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {text.rstrip('.')}{where}"


def _kind(value: object) -> str:
    """The type of a value, or of each element of a tuple."""
    if isinstance(value, tuple | list):
        return f"a tuple of types ({', '.join(type(one).__name__ for one in value)})"
    return f"an object of type {type(value).__name__}"
