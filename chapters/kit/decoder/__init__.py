"""The real input of the course: a Llama-style decoder, code that runs it, and its reference in NumPy."""
