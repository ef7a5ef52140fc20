"""Checks the file beside this one."""

from tests.checks.ch03 import *
