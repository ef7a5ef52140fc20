"""`python -m chapters.ch09_the_compiler` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
