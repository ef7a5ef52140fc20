"""An engine that runs each kernel in many orders of its threads: no order may be refused or give other numbers."""

from __future__ import annotations

import numpy as np

from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import Launch, LaunchError


def every_order(launch: Launch) -> None:
    """An engine for HostProgram.run: the first thread first, and then ten random orders.

    Raises LaunchError, with the seed, if an order gives other bits.
    """
    arrays = [one for one in launch.arguments if isinstance(one, np.ndarray)]
    before = [array.copy() for array in arrays]
    CudaOnCpu()(launch)
    after = [array.copy() for array in arrays]
    for seed in range(1, 11):
        for array, old in zip(arrays, before, strict=True):
            array[...] = old
        CudaOnCpu(seed=seed)(launch)
        for array, first in zip(arrays, after, strict=True):
            other = array.view("uint8") != first.view("uint8")
            if other.any():
                raise LaunchError(
                    f"{launch.kernel.name} gives other numbers in the random order of seed {seed}: "
                    f"{np.count_nonzero(other)} of {other.size} bytes of an array differ."
                )
