"""Checks the file beside this one."""

from tests.checks.ch08 import *
