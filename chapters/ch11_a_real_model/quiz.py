"""Predict-then-run questions of chapter 11; TVM and NumPy compute every answer."""

from __future__ import annotations

import numpy as np
import tvm

from chapters.ch11_a_real_model import given, layer
from chapters.kit.chat.gguf_file import BLOCKS
from chapters.kit.quantized.blocks import Form
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier


def _kernels(mod: tvm.IRModule) -> list[str]:
    """The kernels that a module launches after this chapter's passes."""
    passes = earlier(11).FuseDequantizeTake(), earlier(11).FuseDequantizeMatmul()
    fused = layer.fused(layer.lowered(mod), *passes)
    return [call.args[0].name_hint for call in given.kernel_calls(fused["main"])]


def _floats_of_the_summed() -> str:
    names = _kernels(layer.layer(kind=layer.AlsoSummed))
    unpacking = [name for name in names if "dequantize" in name]
    if all("NT_matmul" in name for name in unpacking):
        return "none"
    alone = len(unpacking) == 1
    return "one, which both read" if alone else "one, for the sum; the product unpacks its own"


def _bits() -> str:
    weights, size = BLOCKS["Q4_K"]
    return f"{size * 8 / weights:g}"


def _small_beside_large() -> str:
    x = np.concatenate([[1000.0], np.random.default_rng(0).uniform(-1, 1, 31)])
    rounded = np.rint(x / (np.abs(x).max() / 127))[1:]
    return "each is 0" if not rounded.any() else "each keeps about two digits"


def _odd_size() -> str:
    try:
        Form(4, 32, True, "float16", 16).shapes(64, 100)
    except ValueError:
        return "it is refused"
    return "the last group is filled with zeros"


QUESTIONS = [
    Question(
        ask="The layer of this chapter, x @ w.T + r with 4-bit weights. How many kernels are left after the passes?",
        choices=("1", "2", "3"),
        compute=lambda: str(len(_kernels(layer.layer()))),
        because="The product's kernel unpacks the matrix, and FuseOps adds the residual as its epilogue.",
        show=layer.layer()["main"].script(),
    ),
    Question(
        ask="A layer unpacks its matrix once. The product reads the result, and so does a sum of all weights. Which "
        "float copies of the matrix are left after the passes?",
        choices=("none", "one, which both read", "one, for the sum; the product unpacks its own"),
        compute=_floats_of_the_summed,
        because="The sum needs the floats in memory. The product can read them there, so unpacking the codes again "
        "would be extra work.",
    ),
    Question(
        ask="A block of Q4_K stores 256 weights in 144 bytes. How many bits is that per weight?",
        choices=("4", "4.5", "5"),
        compute=_bits,
        because="144 × 8 / 256 = 4.5. A block has eight scales and eight minima of 6 bits, and two float16 numbers.",
    ),
    Question(
        ask="In a group of 32, one x is 1000 and the others lie between -1 and 1. What are the others in 8 bits?",
        choices=("each is 0", "each keeps about two digits", "each is 1 or -1"),
        compute=_small_beside_large,
        because="The step is 1000 / 127, about 7.9. Values below half a step are rounded to 0, so one outlier costs "
        "the whole group its accuracy. Small groups limit the damage.",
    ),
    Question(
        ask="A matrix has 100 columns, and its groups have 32 weights. What happens?",
        choices=(
            "the last group is filled with zeros",
            "it is refused",
            "the last group has 4 weights",
        ),
        compute=_odd_size,
        because="`Form.shapes` raises ValueError if the group size does not divide the number of columns.",
    ),
]
