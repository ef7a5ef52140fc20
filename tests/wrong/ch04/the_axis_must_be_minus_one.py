"""4.2: compares axes with [-1] only."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from solutions.ch04_add_rms_norm.fuse_add_norm import match_add_norm as sound_match

EXERCISE = "4.2"
WHAT = "the last axis is known only by the name -1"
WHY = "axes=[2] of a tensor of rank 3 is the same axis. Models write it either way."
READ = "chapters/ch04_add_rms_norm/lesson.md, “Match”"


def match_add_norm(norm, value, bound):
    pair = sound_match(norm, value, bound)
    return pair if pair and list(value.attrs.axes) == [-1] else None
