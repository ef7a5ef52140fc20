"""`python -m chapters.ch00_first_module` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
