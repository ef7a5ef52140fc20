"""The real input of the course: a Llama-style decoder, its runs, and its reference in NumPy."""
