"""Predict-then-run questions of chapter 11; TVM and NumPy compute every answer."""

from __future__ import annotations

import itertools

import numpy as np
import tvm
from tvm.target import Target

from chapters.ch11_a_real_model import given, layer
from chapters.kit.chat.gguf_file import BLOCKS
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.quantized.int8_product import int8_product
from chapters.kit.quantized.weight_blocks import PackedLayout
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier


def _kernels(mod: tvm.IRModule) -> list[str]:
    """The kernels that a module launches after this chapter's passes."""
    passes = earlier(11).FuseDequantizeTake(), earlier(11).FuseDequantizeMatmul()
    fused = layer.fuse(layer.lower(mod), *passes)
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
        PackedLayout(4, 32, True, "float16", 16).shapes(64, 100)
    except ValueError:
        return "it is refused"
    return "the last group is filled with zeros"


def _passes_without_floats() -> str:
    """The smallest number of this chapter's passes after which no kernel of a model's two ends unpacks alone."""
    ends, chapter = layer.lower(layer.ends()), earlier(11)
    passes = chapter.FuseDequantizeTake(), chapter.FuseDequantizeMatmul()
    for count in range(len(passes) + 1):
        for chosen in itertools.combinations(passes, count):
            mod = layer.fuse(ends, *chosen)
            if not any(given.unpacks(mod, call) for call in given.kernel_calls(mod["main"])):
                return str(count)
    return "more"


def _dtype_of_x() -> str:
    """What the product of bytes makes of x, on a processor with AVX-512."""
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "icelake-server"})
    func = int8_product(
        layer.Q4_1, 64, 96, (1, 96), dot_products(target), earlier(11).multiply_codes
    )
    stored = {str(store.buffer.dtype) for store in nodes(func.body, tvm.tirx.BufferStore)}
    names = {"int8": "integers of 8 bits, and a scale", "float16": "float16"}
    return next(
        (name for dtype, name in names.items() if dtype in stored), "nothing: it stays float32"
    )


PREDICT = [
    Question(
        ask="How many bits per weight are 20 bytes for 32 weights?",
        choices=("4", "4.5", "5"),
        compute=lambda: f"{layer.Q4_1.bytes_of(16, 32) * 8 / (16 * 32):g}",
        because="160 / 32 = 5. Each weight has a code of 4 bits. A scale and a minimum of 16 bits each, shared by 32 "
        "weights, add one bit.",
    ),
    Question(
        ask="How many passes do you need, so that no kernel reads float weights?",
        choices=("1", "2", "3"),
        compute=_passes_without_floats,
        because="The lookup and the product are two kinds of kernels. Each kind needs a pass that lets it unpack the "
        "codes itself.",
    ),
    Question(
        ask="What does x become for the instruction that multiplies bytes?",
        choices=("nothing: it stays float32", "float16", "integers of 8 bits, and a scale"),
        compute=_dtype_of_x,
        because="Both operands must be bytes. So x is divided into groups, and each group is rounded to integers from "
        "-127 to 127 with a scale of its own.",
    ),
]

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
        because="`PackedLayout.shapes` raises ValueError if the group size does not divide the number of columns.",
    ),
]
