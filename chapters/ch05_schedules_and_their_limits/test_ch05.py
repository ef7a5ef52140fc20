"""Checks the file beside this one."""

from tests.checks.ch05 import *
