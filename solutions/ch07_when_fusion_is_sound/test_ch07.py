"""Checks the file beside this one."""

from tests.checks.ch07 import *
