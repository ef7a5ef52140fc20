"""Devices that run a kernel, and clocks that compare kernels in turns."""
