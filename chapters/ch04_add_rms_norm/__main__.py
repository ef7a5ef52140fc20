"""`python -m chapters.ch04_add_rms_norm` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
