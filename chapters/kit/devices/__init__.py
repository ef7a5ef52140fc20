"""Devices that run a learner's kernel: a GPU of this machine, one that TVM's RPC reaches, or WGSL through wgpu."""
