"""GPU kernels and schedules, what TVM launches, and what a kernel needs of the hardware."""
