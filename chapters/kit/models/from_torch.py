"""Reads a file that defines a PyTorch model, runs it, and imports it as a Relax module.

The file defines `model()`, which returns (a torch.nn.Module, its example inputs), or a torch.export.ExportedProgram.
A module is compiled for the shapes of its example inputs, a program for all sizes that it was exported for. Where
something is wrong, a ModelRefused says so to the person who wrote the file.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import tvm
from tvm import relax

from chapters.kit.ir.rebuild import replace_calls

NO_TORCH = 'PyTorch is not installed: pip install -e ".[models]"'
RETURNED = "(a torch.nn.Module, its example inputs) or a torch.export.ExportedProgram"
SIZES = (1, 7, 70)  # in place of the symbolic sizes of a program
MUST_RETURN = f"model() must return {RETURNED}"
_LOADED: dict[str, ModuleType] = {}  # what `load` has imported, by name


class ModelRefused(Exception):
    """A model that cannot be compiled, and the reason in one sentence."""


def load(name: str) -> tuple:
    """(module or exported program, example inputs) of the file or dotted module path `name`.

    The inputs are one of the forms of `arguments`. A module is in evaluation mode.
    """
    if not importlib.util.find_spec("torch"):
        raise ModelRefused(NO_TORCH)
    import torch

    source = _LOADED[name] = _import_source(name)
    if not callable(getattr(source, "model", None)):
        raise ModelRefused(f"{name} defines no function model(), which must return {RETURNED}.")
    with refuse_failures(f"model() of {name} fails", source.__file__):
        returned = source.model()
    if isinstance(returned, torch.export.ExportedProgram) and returned.example_inputs:
        returned = returned, returned.example_inputs
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    if is_pair and isinstance(returned[0], type):
        kind = returned[0].__name__
        raise ModelRefused(
            f"{MUST_RETURN}; in {name} it returns the class {kind}. Make a module of it: {kind}()."
        )
    if not is_pair or not isinstance(returned[0], torch.nn.Module | torch.export.ExportedProgram):
        raise ModelRefused(f"{MUST_RETURN}; in {name} it returns {_type_name(returned)}.")
    model, inputs = returned
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    for value in torch.utils._pytree.tree_leaves(arguments(inputs)):
        if not isinstance(value, torch.Tensor | int | float | str | None):
            kind = type(value).__name__
            raise ModelRefused(f"{MUST_RETURN}; in {name} an example input is of type {kind}.")
        if isinstance(value, torch.Tensor) and (value.is_complex() or value.is_sparse):
            kind = value.dtype if value.is_complex() else value.layout
            raise ModelRefused(
                f"An example input of {name} is {kind}, and TVM has real, dense tensors alone. Let the model take "
                "what torch.view_as_real(x) or x.to_dense() gives."
            )
    return model.eval() if isinstance(model, torch.nn.Module) else model, inputs


def load_passes(name: str) -> list:
    """What passes() of `name`, which `load` has imported, returns: passes of TVM; [] if it defines no passes()."""
    source = _LOADED[name]
    if not callable(getattr(source, "passes", None)):
        return []
    with refuse_failures(f"passes() of {name} fails", source.__file__):
        found = list(source.passes())
    for one in found:
        if not isinstance(one, tvm.transform.Pass):
            raise ModelRefused(
                f"passes() of {name} must return a list of passes; in it is {_type_name(one)}."
            )
    return found


@contextlib.contextmanager
def refuse_failures(what: str, path: str | None = None) -> Iterator[None]:
    """Turn an exception into a ModelRefused that begins with `what`. path: of the file whose line it names."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ModelRefused(f"{what}: {_explain(error, path)}.") from error


def arguments(inputs) -> tuple[tuple, dict]:
    """(positional, keyword) arguments: `inputs` itself if it is such a pair, a tuple of the first, or the others alone.

    An argument is what torch.export takes: a tensor, a number, None, or a tuple, list or dict of such.
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    is_both = len(inputs) == 2 and isinstance(inputs[0], tuple) and isinstance(inputs[1], dict)
    return inputs if is_both else (tuple(inputs), {})


def tensors_of(inputs) -> list[tvm.runtime.Tensor]:
    """Copies of the tensors among the inputs, in the order in which `main` of the imported module takes them."""
    from torch.utils import _pytree

    return [*map(tensor, _select_tensors(_pytree.tree_leaves(arguments(inputs))))]


def _select_tensors(values: list) -> list:
    import torch

    return [value for value in values if isinstance(value, torch.Tensor)]


def tensor(value) -> tvm.runtime.Tensor:
    """A copy of a PyTorch tensor as a tensor of TVM. It is dense and stored row by row."""
    import torch

    dense = value.detach() if value.layout == torch.strided else value.detach().to_dense()
    copied = dense.resolve_neg().clone(memory_format=torch.contiguous_format)
    return tvm.runtime.from_dlpack(copied)


def _import_source(name: str) -> ModuleType:
    """The imported file or module."""
    path = Path(name)
    dotted = all(part.isidentifier() for part in name.split("."))
    if path.is_dir() and not (dotted and (path / "__init__.py").exists()):
        raise ModelRefused(
            f"{name!r} is a folder; give the Python file in it that defines model()."
        )
    if path.exists() and not path.is_dir() and path.suffix != ".py":
        raise ModelRefused(f"{name!r} is not a Python file: its name must end in .py.")
    if dotted and path.suffix != ".py":
        sys.path.insert(0, os.getcwd())
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise ModelRefused(
                f"There is no module {name}; a file is named with its ending, such as {name}.py."
            )
        path = Path(spec.origin or name)
    elif not path.is_file():
        raise ModelRefused(f"There is no file {name}.")
    else:
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location("model_to_compile", path.resolve())
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source
    with refuse_failures(f"{name} cannot be imported", str(path.resolve())):
        spec.loader.exec_module(source)
    return source


def runnable(model):
    """A module that PyTorch can call: the model itself, or the module of an exported program."""
    return model.module() if hasattr(model, "graph_signature") else model


def run_torch(model, inputs) -> list[np.ndarray]:
    """What PyTorch computes, flattened in the order in which the exported graph returns it.

    A copy of the model gets copies of the inputs, because a model may write into its buffers or its inputs. Raises
    ModelRefused if PyTorch refuses the inputs, and if a second run gives other numbers.
    """
    found, again = (_run_copy(model, inputs) for _ in range(2))
    pairs = zip(found, again, strict=True)
    if not all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fV") for a, b in pairs):
        raise ModelRefused(
            "PyTorch gives other numbers when the model runs again, so there is nothing to compare with. The model "
            "draws random numbers, such as those of torch.nn.functional.dropout without training=False."
        )
    return found


def _run_copy(model, inputs) -> list[np.ndarray]:
    import torch
    from torch.utils import _pytree

    model = runnable(model)
    held = [value for part in model.modules() for value in _pytree.tree_leaves(vars(part))]
    with torch.inference_mode():
        copies = {
            id(value): value.clone()
            for value in _select_tensors([*held, *_pytree.tree_leaves(arguments(inputs))])
        }
    with refuse_failures("The model does not accept its example inputs"):
        # the copies are given, because deepcopy refuses tensors that were computed, as weight_norm makes them
        copied, (args, kwargs) = copy.deepcopy((model, arguments(inputs)), copies)
        with torch.inference_mode():
            returned = copied(*args, **kwargs)
    return [tensor(value).numpy() for value in _select_tensors(_pytree.tree_leaves(returned))]


def export_program(model, inputs):
    """The model as a torch.export.ExportedProgram; a program stays as it is. Raises ModelRefused."""
    import torch

    if isinstance(model, torch.export.ExportedProgram):
        return model
    args, kwargs = arguments(inputs)
    try:
        with torch.no_grad():
            return torch.export.export(model, args, kwargs)
    except Exception as error:
        raise ModelRefused(_explain_export(error)) from error


def import_program(model, inputs) -> tvm.IRModule:
    """The model as a Relax module whose `main` takes the tensors among the example inputs; weights are constants.

    Its attribute "mended" says in words which results were rounded to PyTorch's dtype.
    """
    from chapters.kit.models.torch_importer import TorchImporter

    program = export_program(model, inputs)
    if where := _find_size_by_values(program):
        raise ModelRefused(
            f"A size in this model depends on a tensor's values{where}, and the compiled model has fixed sizes. Keep "
            "all elements, and let torch.where set those to 0 that do not count."
        )
    try:
        importer = TorchImporter()
        spelled = drop_other_values(decompose(program))
        mod = wrap_indices(importer.from_exported_program(spelled, False, False, False, None))
    except Exception as error:
        unknown = re.search(r"Unsupported function types \[(.*)\]", str(error))
        if unknown:
            message = f"TVM's importer does not know these operators of PyTorch: {unknown[1]}."
        else:
            message = f"TVM's importer cannot translate the exported model: {_explain(error)}."
        raise ModelRefused(message) from error
    mod = relax.transform.ConvertToDataflow()(mod)  # torch.cond comes without dataflow blocks
    return mod.with_attr("mended", importer.say_mended())


def drop_other_values(program):
    """`program` without the arguments and results that are no tensors: torch.export has made constants of them."""
    from torch.export.graph_signature import OutputKind, TensorArgument

    signature, nodes = program.graph_signature, [*program.graph.nodes]
    taken = [node for node in nodes if node.op == "placeholder"]
    for node, spec in zip(taken, signature.input_specs, strict=True):
        if not isinstance(spec.arg, TensorArgument):
            program.graph.erase_node(node)
    signature.input_specs[:] = [
        spec for spec in signature.input_specs if isinstance(spec.arg, TensorArgument)
    ]
    pairs = [
        (value, spec)
        for value, spec in zip(nodes[-1].args[0], signature.output_specs, strict=True)
        if isinstance(spec.arg, TensorArgument) and spec.kind == OutputKind.USER_OUTPUT
    ]
    nodes[-1].args = (tuple(value for value, _ in pairs),)
    signature.output_specs[:] = [spec for _, spec in pairs]
    return program


def sizes_of(program) -> dict[str, int]:
    """The symbolic sizes of an exported program in its example inputs, by name; {} if all sizes are numbers."""
    shapes = (shape for _, shape in _list_inputs(program))
    dims = [dim.node for shape in shapes for dim in shape if not isinstance(dim, int)]
    symbols = {symbol: dim.shape_env for dim in dims for symbol in dim.expr.free_symbols}
    return {str(one): int(env.backed_var_to_val[one]) for one, env in symbols.items()}


def _list_inputs(program) -> list[tuple[str, tuple]]:
    """(name, shape) of each argument that the caller of a program gives; () for one that is no tensor."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    specs = [one for one in program.graph_signature.input_specs if one.kind.name == "USER_INPUT"]
    return [(one.arg.name, tuple(getattr(values[one.arg.name], "shape", ()))) for one in specs]


def resize_inputs(program, inputs) -> Iterator[tuple[dict[str, int], tuple]]:
    """(sizes, the example inputs cut or repeated to them), for three choices of sizes that the program allows."""
    from torch.utils import _pytree

    values, spec = _pytree.tree_flatten(arguments(inputs))
    symbols = sorted(sizes_of(program))
    bounds = {str(symbol): known for symbol, known in program.range_constraints.items()}
    for size in SIZES if symbols else ():
        # no two sizes are equal, except that all are 1
        wanted = {name: size + (size > 1) * number for number, name in enumerate(symbols)}
        sizes = {
            name: int(max(bounds[name].lower, min(bounds[name].upper, size)))
            for name, size in wanted.items()
        }
        pairs = zip(values, _list_inputs(program), strict=True)
        yield sizes, _pytree.tree_unflatten([_resize(v, s, sizes) for v, (_, s) in pairs], spec)


def _resize(value, shape: tuple, sizes: Mapping[str, int]):
    """A tensor of `shape`, in which symbols have these sizes, with the elements of `value`, repeated if need be."""
    import torch

    for axis, dim in enumerate(shape):
        if not isinstance(dim, int):
            expr = dim.node.expr
            dim = int(expr.subs({one: sizes[str(one)] for one in expr.free_symbols}))
        value = value.index_select(axis, torch.arange(dim) % value.shape[axis])
    return value


def decompose(program):
    """`program`, an exported one, in PyTorch's core operators, without options that the importer would ignore.

    The importer drops the factor of `add(a, b, alpha=…)` and of `sub`, makes infinities the limits of integers that
    are clamped on one side, takes the largest number for `any`, and divides with rounding by an int32 whatever the
    dividend. TVM cannot compile a slice with symbolic sizes whose axis counts from the end. PyTorch decomposes
    attention for a CPU into views that do not fit its strides, and neither histograms nor products of groups of rows,
    as experts compute them.
    """
    import torch

    aten, table = torch.ops.aten, torch.export.default_decompositions()

    def scaled(call):
        return lambda a, b, *, alpha=1: NotImplemented if alpha == 1 else call(a, b * alpha)

    def clamped(x, low=None, high=None):
        if x.is_floating_point() and not (low is not None and high is not None and low > high):
            return NotImplemented
        for limit, call in ((low, torch.maximum), (high, torch.minimum)):
            x = x if limit is None else call(x, torch.full((), limit, dtype=x.dtype))
        return x

    def divided(a, b, *, rounding_mode=None):
        if isinstance(b, torch.Tensor):
            return NotImplemented
        return torch.div(a, torch.full((), b, dtype=a.dtype), rounding_mode=rounding_mode)

    def any_of(x, dim=(), keepdim=False):
        found = (x if x.dtype == torch.bool else x != 0).to(torch.int8).amax(dim, keepdim)
        return found.to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)

    def sliced(x, dim=0, *others):
        return NotImplemented if dim >= 0 else aten.slice(x, dim + x.ndim, *others)

    def histogram(x, bins=100, min=0, max=0):
        if min == max:  # then the smallest and the largest element are the limits
            return NotImplemented
        place = ((x - min) / (max - min) * bins).clamp(max=bins - 0.5).to(torch.int64)
        place = torch.where((x >= min) & (x <= max), place, -1).flatten()
        return (place[:, None] == torch.arange(bins)).sum(0).to(x.dtype)

    def attention(q, k, v, mask=None, *others, **options):
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -torch.inf).to(q.dtype)
        return aten._scaled_dot_product_attention_math(q, k, v, mask, *others, **options)[0]

    def grouped(x, w, ends, **options):
        # rows of x up to ends[0] times w[0], then up to ends[1] times w[1], …
        row = torch.arange(x.shape[0])
        group = (row[:, None] >= ends).sum(-1)
        if isinstance(x.shape[0], int) and x.shape[0] <= w.shape[0]:
            return (x[:, None] @ w[group])[:, 0]
        return (x @ w)[group, row]

    for node in program.graph.nodes:  # Transformers has an operator of its own beside PyTorch's
        if "grouped_mm" in getattr(node.target, "__name__", "") and len(node.args) == 3:
            table[node.target] = grouped
    table[aten.add.Tensor], table[aten.sub.Tensor] = scaled(torch.add), scaled(torch.sub)
    table[aten.clamp.default], table[aten.div.Tensor_mode] = clamped, divided
    table[aten.slice.Tensor], table[aten.histc.default] = sliced, histogram
    for overload in (aten.any.default, aten.any.dim, aten.any.dims):
        table[overload] = any_of
    table[aten.scaled_dot_product_attention.default] = attention
    return program.run_decompositions(table)


def wrap_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with take(x, index, mode="wrap") for each take(x, index) of mode "fast", as the importer makes them.

    In mode "fast" a negative index reads outside of x, and PyTorch counts it from the end, as mode "wrap" does.
    """

    def wrap(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Expr:
        if call.op == tvm.ir.Op.get("relax.take") and call.attrs.mode == "fast":
            return relax.op.take(*call.args, axis=call.attrs.axis, mode="wrap")
        return call

    return replace_calls(mod, wrap)


def _find_size_by_values(program) -> str:
    """Where an exported program has the first result whose size depends on values, as of y[y > 0]; "" if nowhere."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for node in program.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ())
        if free_unbacked_symbols(shape):
            lines = re.findall(
                r'File "(.*)", line (\d+).*\n\s*(.+)', node.meta.get("stack_trace") or ""
            )
            return _locate(lines[-1][0], int(lines[-1][1]), lines[-1][2]) if lines else " somewhere"
    return ""


def _locate(path: str, number: int, line: str | None) -> str:
    return f" at line {number} of {Path(path).name}, `{line}`"


def _explain_export(error: Exception) -> str:
    """Why torch.export gave up; the line of the model, or of a library, that it could not follow."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}torch{os.sep}" not in f.filename
    ]
    frames = [f for f in frames if f.filename not in (__file__, "<string>")]
    where = _locate(frames[-1].filename, frames[-1].lineno or 0, frames[-1].line) if frames else ""
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
    return f"torch.export cannot follow this model{where}: {_explain(error)}."


def _explain(error: BaseException, path: str | None = None) -> str:
    """An exception in one line: its type, the first line of its text, and where in the file at `path` it arose."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    text = next((line.strip() for line in said.splitlines() if line.strip()), "no message")
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if isinstance(error, SyntaxError):
        lines = [error.lineno] if error.lineno else []
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {text.rstrip('.')}{where}"


def _type_name(value: object) -> str:
    """The type of a value, or of each element of a tuple."""
    if isinstance(value, tuple | list):
        return f"a tuple of types ({', '.join(type(one).__name__ for one in value)})"
    return f"an object of type {type(value).__name__}"
