"""Devices that run a kernel, clocks that compare kernels in turns, and traces of pipelines."""
