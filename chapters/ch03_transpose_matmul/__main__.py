"""`python -m chapters.ch03_transpose_matmul` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
