"""Checks the file beside this one."""

from tests.checks.ch06 import *
