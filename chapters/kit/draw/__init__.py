"""Pictures drawn from IR (graphs, loops, kernels, tiles, read orders), tables, and how a lab shows a value."""
