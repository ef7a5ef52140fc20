"""`python -m chapters.ch10_imported_models` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
