"""Checks the file beside this one."""

from tests.checks.ch02 import *
