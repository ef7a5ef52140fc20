"""A bench's operands hold what they were given, aligned, in their own memory."""

import gc

import numpy as np
import pytest

from chapters.kit.bench.numpy_memory import in_numpy_memory
from chapters.kit.cpu.aligned import ALIGNED

DTYPES = "float32", "float16", "bfloat16", "int8", "uint8", "int32"
SHAPES = (3, 5, 7), (1,), (1200, 1000)


@pytest.fixture(scope="module")
def tensors():
    """{(dtype, shape): (tensor, the array it was given)}, after the arrays have changed and the garbage is gone."""
    found = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            array = np.random.default_rng(1).integers(0, 100, shape).astype(dtype)
            found[dtype, shape] = in_numpy_memory(array), array.copy()
            array[...] = 0
    gc.collect()
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_holds_the_array(tensors, dtype, shape):
    tensor, before = tensors[dtype, shape]
    assert str(tensor.dtype) == dtype and tuple(tensor.shape) == shape
    given = tensor.numpy()
    assert (given.view("uint8") == before.view("uint8")).all()


def test_its_memory_is_aligned():
    for size in range(1, 200, 7):
        tensor = in_numpy_memory(np.zeros(size, "float32"))
        assert np.from_dlpack(tensor).ctypes.data % ALIGNED == 0


def test_an_array_that_is_not_contiguous_is_copied_in_order():
    array = np.arange(12, dtype="int32").reshape(3, 4).T
    assert (in_numpy_memory(array).numpy() == array).all()
