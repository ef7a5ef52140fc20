"""Checks the file beside this one."""

from tests.checks.ch00 import *
