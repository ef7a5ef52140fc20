"""`python -m chapters.ch05_schedules_and_their_limits` tells this chapter in the terminal."""

from chapters.runner.story import tell

tell(__spec__.parent)
