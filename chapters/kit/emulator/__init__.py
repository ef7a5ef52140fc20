"""GPU code executed on a CPU and watched: TVM's CUDA by g++ with a fiber for each thread, its WGSL by wgpu."""
