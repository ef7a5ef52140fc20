"""Checks the file beside this one."""

from tests.checks.ch04 import *
