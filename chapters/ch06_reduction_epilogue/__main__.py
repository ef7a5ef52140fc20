"""`python -m chapters.ch06_reduction_epilogue` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
