"""`python -m chapters.ch11_a_real_model` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
