"""`python -m chapters.ch08_gpu_targets` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
