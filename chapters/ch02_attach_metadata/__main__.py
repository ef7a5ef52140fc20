"""`python -m chapters.ch02_attach_metadata` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
