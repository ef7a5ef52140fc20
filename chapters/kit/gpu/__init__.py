"""GPU kernels without a GPU: what TVM launches, engines that execute it, what a kernel needs of the hardware."""
