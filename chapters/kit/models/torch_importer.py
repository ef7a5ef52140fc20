"""TVM's importer of exported PyTorch programs, held to the dtypes that PyTorch recorded.

On float16 and bfloat16 PyTorch computes each operator in float32 and rounds its result once. It converts operands of
mixed dtypes to the dtype of the result before it computes. TVM's importer does neither: it leaves products in float32,
sums in the dtype of the operands, and divides integers as integers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import torch
from torch import fx
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from chapters.kit.ir.tensor_ir import variables_of

NARROW = (torch.float16, torch.bfloat16)
# operators with arithmetic or an order that PyTorch tags neither as pointwise nor as reductions
COMPUTES = re.compile("softmax|norm|pool|upsample|cumsum|cumprod|convolution|sort|topk")
MOVES = ("clone", "where", "masked_fill", "copy")  # tagged as pointwise, but without arithmetic


class TorchImporter(ExportedProgramImporter):
    """Imports each operator with the arithmetic and the dtype of its recorded result.

    `mended` counts the results that were converted, by their dtype before and after. Raises TypeError for an operator
    that has lost digits: its result is narrower than PyTorch's, or is an integer where PyTorch has a fraction.
    """

    def create_convert_map(self) -> dict[str, Callable]:
        self.mended: Counter[tuple[str, str]] = Counter()
        products = dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), self._convert_product)
        converts = super().create_convert_map()
        converts |= {f"{name}.default": convert for name, convert in products.items()}
        converts["amax.default"] = self._make_reduction(relax.op.max)
        converts["amin.default"] = self._make_reduction(relax.op.min)
        converts["prod.dim_int"] = self._make_reduction(relax.op.prod)
        self.sizes, self.slice_numbers = {}, converts["slice.Tensor"]
        converts["slice.Tensor"] = self._slice_by_length
        # the same tensor: TVM's are dense
        converts["_to_sparse.default"] = converts["contiguous.default"]
        return {name: self._convert_as_recorded(convert) for name, convert in converts.items()}

    def _convert_as_recorded(self, convert: Callable) -> Callable:
        """`convert`, between conversions of its operands to the dtype of the arithmetic, and of its result."""

        def converted(node: fx.Node) -> object:
            value = node.meta.get("val")
            first = value[0] if isinstance(value, tuple | list) and value else value
            if not isinstance(first, torch.Tensor):
                return convert(node)
            dtypes = self._operand_dtypes(node, first.dtype)
            kept = {one: self.env[one] for one in dtypes}
            for one, dtype in dtypes.items():
                expr = self.env[one]
                if not isinstance(expr.ty, relax.TensorType):  # a symbolic size
                    expr = relax.op.reshape(relax.op.arange(expr, expr + 1, 1, "int64"), ())
                expr = relax.op.astype(self.block_builder.emit(expr), _dtype_name(dtype))
                self.env[one] = self.block_builder.emit(expr)
            result = convert(node)
            self.env.update(kept)
            if first is not value or not isinstance(getattr(result, "ty", None), relax.TensorType):
                return result
            return self._round_result(node, result, first.dtype)

        return converted

    def _operand_dtypes(self, node: fx.Node, result: torch.dtype) -> dict[fx.Node, torch.dtype]:
        """The operands that PyTorch converts before it computes a result of dtype `result`, and to which dtypes."""
        name, tags = node.target.__name__.partition(".")[0], getattr(node.target, "tags", ())
        operands = node.all_input_nodes
        if name == "convolution":  # its products need no conversion: their sums are in float32
            operands = [one for one in node.args[2:3] if one]
        elif not ({torch.Tag.pointwise, torch.Tag.reduction} & {*tags} or COMPUTES.search(name)):
            return {}
        dtypes = {}
        for one in operands:
            value = one.meta.get("val")
            if not isinstance(value, torch.Tensor):
                if isinstance(value, torch.SymInt) and torch.Tag.pointwise in tags:
                    dtypes[one] = _arithmetic_dtype(result)
                continue
            found, ordered = value.dtype, not result.is_floating_point  # or compared
            wide = (
                found if ordered and (result == torch.bool or found.is_floating_point) else result
            )
            wide = wide if name in MOVES else _arithmetic_dtype(wide)
            is_mask = found == torch.bool and name in MOVES
            if found != wide and not is_mask and torch.promote_types(found, wide) == wide:
                dtypes[one] = wide
        return dtypes

    def _round_result(self, node: fx.Node, result: relax.Expr, recorded: torch.dtype) -> relax.Expr:
        """`result` in the dtype that PyTorch recorded."""
        found, wanted = str(result.ty.dtype), _dtype_name(recorded)
        if found == wanted:
            return result
        wide, indices = getattr(torch, found), "int" in found and "int" in wanted
        if not indices and not (recorded.is_floating_point and _arithmetic_dtype(recorded) == wide):
            raise TypeError(f"it gives `{node.target}` dtype {found}, and PyTorch gives {wanted}")
        self.mended[found, wanted] += 1
        return self.block_builder.emit(relax.op.astype(result, wanted))

    def create_input_vars(self, exported_program) -> tuple:
        """The variables of the arguments. `sizes` are those of the symbolic dimensions, by name."""
        found = super().create_input_vars(exported_program)
        shapes = (one.ty.shape for group in found[:2] for one in group.values())
        self.sizes = {
            one.name: one for shape in shapes for dim in shape for one in variables_of(dim)
        }
        return found

    def _convert_size(self, size: int | torch.SymInt) -> int | tirx.Expr:
        """A size of PyTorch, such as 2 * n, as one of TVM."""
        import sympy

        if isinstance(size, int):
            return size
        names = sorted(map(str, size.node.expr.free_symbols))
        calls = {"FloorDiv": tirx.floordiv, "Mod": tirx.floormod, "Max": tirx.max, "Min": tirx.min}
        return sympy.lambdify(names, size.node.expr, [calls])(*(self.sizes[name] for name in names))

    def say_mended(self) -> str:
        """How many results were converted, such as "3 from float32 to float16"; "" if none."""
        counts = self.mended.items()
        return ", ".join(f"{number} from {found} to {to}" for (found, to), number in counts)

    def _convert_product(self, node: fx.Node) -> relax.Expr:
        """beta * c + alpha * a @ b for addmm and baddbmm, a @ b for mm and bmm; summed in float32 or wider."""
        *added, a, b = (self.env[one] for one in node.args)
        beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
        wide = _dtype_name(_arithmetic_dtype(node.meta["val"].dtype))
        emit = self.block_builder.emit
        result = emit(relax.op.matmul(a, b, out_dtype=wide))
        if alpha != 1:
            result = emit(relax.op.multiply(result, relax.const(alpha, wide)))
        if added and beta:
            (c,) = added
            if str(c.ty.dtype) != wide:
                c = emit(relax.op.astype(c, wide))
            if beta != 1:
                c = emit(relax.op.multiply(c, relax.const(beta, wide)))
            result = emit(relax.op.add(c, result))
        return result

    def _slice_by_length(self, node: fx.Node) -> relax.Expr:
        """x[start:end:step] along an axis; a symbolic one has the recorded length, and no ends that TVM must clip."""
        x, axis, start, _, step = node.args + (None, 0, None, None, 1)[len(node.args) :]
        recorded = node.meta["val"].shape[axis]
        if all(isinstance(one, int) for one in (recorded, x.meta["val"].shape[axis])):
            return self.slice_numbers(node)
        start = self.env.get(start, start or 0)
        if isinstance(start, int) and start < 0:
            start = self._convert_size(x.meta["val"].shape[axis]) + start
        x, length = self.env[x], self._convert_size(recorded)
        ends = [axis], [start], [start + length * step], [step]
        return self.block_builder.emit(relax.op.strided_slice(x, *ends, assume_inbound=True))

    def _make_reduction(self, op: Callable) -> Callable:
        """The converter of a reduction `op` over an axis or some axes, or over all for []."""

        def convert(node: fx.Node) -> relax.Expr:
            x, axes, keepdims = node.args + ([], False)[len(node.args) - 1 :]
            return self.block_builder.emit(op(self.env[x], None if axes == [] else axes, keepdims))

        return convert


def _arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which PyTorch computes a result of `dtype`."""
    return torch.float32 if dtype in NARROW else dtype


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
