"""Checks the file beside this one."""

from tests.checks.ch01 import *
