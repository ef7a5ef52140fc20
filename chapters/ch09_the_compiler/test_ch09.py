"""Checks the file beside this one."""

from tests.checks.ch09 import *
