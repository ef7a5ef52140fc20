"""Chapter 0: one small model, written three ways, compiled and run.

The model is `relu(x @ w.T + b)`. Its inputs are x of shape (n, 16), where n is not known before the call, w of shape
(8, 16) and b of shape (8,), all float32. `from_script` is given. You write the model again in two other ways, and run
it.
"""

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T


@I.ir_module
class Scripted:
    """The model in TVMScript: Python syntax, read by TVM's parser and never executed."""

    @R.function
    def main(
        x: R.Tensor(("n", 16), "float32"),
        w: R.Tensor((8, 16), "float32"),
        b: R.Tensor((8,), "float32"),
    ) -> R.Tensor(("n", 8), "float32"):
        n = T.int64()
        with R.dataflow():
            wt: R.Tensor((16, 8), "float32") = R.permute_dims(w)
            xw: R.Tensor((n, 8), "float32") = R.matmul(x, wt)
            biased: R.Tensor((n, 8), "float32") = R.add(xw, b)
            out: R.Tensor((n, 8), "float32") = R.nn.relu(biased)
            R.output(out)
        return out


def from_script() -> tvm.IRModule:
    """Return the model as an IRModule with one Relax function, `main(x, w, b)`."""
    return Scripted


def from_block_builder() -> tvm.IRModule:
    """Build the same model with relax.BlockBuilder, call by call.

    Returns an IRModule whose `main(x, w, b)` has the same parameters and the same result as that of `from_script()`.
    """
    # BEGIN exercise 0.1 (about 12 lines): build main(x, w, b) with relax.BlockBuilder
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 16), "float32"))
    w = relax.Var("w", relax.TensorType((8, 16), "float32"))
    b = relax.Var("b", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            wt = builder.emit(relax.op.permute_dims(w))
            xw = builder.emit(relax.op.matmul(x, wt))
            biased = builder.emit(relax.op.add(xw, b))
            out = builder.emit_output(relax.op.nn.relu(biased))
        builder.emit_func_output(out)
    return builder.get()
    # END exercise 0.1


class Net(nn.Module):
    """The same model as a layer that has weights, as the author of a model writes it."""

    def __init__(self):
        # BEGIN exercise 0.2 (1 line): a layer that holds w and b
        self.linear = nn.Linear(16, 8, bias=True)
        # END exercise 0.2

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        # BEGIN exercise 0.2 (1 line): the model, using that layer
        return nn.op.relu(self.linear(x))
        # END exercise 0.2


def from_nn() -> tvm.IRModule:
    """Export Net to an IRModule with one function, `forward(x, weight, bias)`."""
    mod, _weights = Net().export_tvm(spec={"forward": {"x": nn.spec.Tensor(["n", 16], "float32")}})
    return mod


def run(mod: tvm.IRModule, name: str, *arrays: np.ndarray) -> np.ndarray:
    """Compile `mod` for this CPU and call its Relax function `name` on NumPy arrays.

    arrays: one per parameter, in their order, of their shapes and dtypes. An array may be strided or not aligned.
    Returns the function's result, which is one tensor, as a NumPy array.
    """
    # BEGIN exercise 0.3 (about 4 lines): compile, make a virtual machine, call it with TVM tensors
    executable = tvm.compile(mod, target="llvm")
    vm = relax.VirtualMachine(executable, tvm.cpu())
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    return vm[name](*tensors).numpy()
    # END exercise 0.3


@T.prim_func(s_tir=True)
def row_sums(
    a: T.Buffer((6, 16), "float32"),
    total: T.Buffer((6,), "float32"),
):
    """Store the sum of a[i, :] in total[i]. The caller provides both buffers; `total` may hold any numbers before."""
    for i, k in T.grid(6, 16):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            # BEGIN exercise 0.4 (about 3 lines): the sum must not depend on what `total` held before
            with T.init():
                total[vi] = T.float32(0)
            total[vi] = total[vi] + a[vi, vk]
            # END exercise 0.4


def predicted_functions() -> dict[str, tuple[int, int]]:
    """Predict how many functions the model's module holds before and after LegalizeOps.

    Returns a dict with the keys "before" and "after". Each value is a pair: (Relax functions, PrimFuncs).
    """
    # BEGIN exercise 0.5 (1 line): two pairs of numbers; write them down before you run anything
    return {"before": (1, 0), "after": (1, 4)}
    # END exercise 0.5


def refused() -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays that are each a legal argument of `add_rows(x, y)`, and that it must refuse together.

    add_rows declares both x and y as R.Tensor(("n", 16), "float32").
    """
    # BEGIN exercise 0.6 (1 line): which two shapes cannot both be (n, 16)?
    return np.ones((3, 16), "float32"), np.ones((5, 16), "float32")
    # END exercise 0.6
