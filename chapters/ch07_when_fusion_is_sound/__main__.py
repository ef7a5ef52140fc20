"""`python -m chapters.ch07_when_fusion_is_sound` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
