"""`python -m chapters.ch01_walk_the_ir` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
