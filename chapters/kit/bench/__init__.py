"""Measuring: fair rounds, bounds of the machine, results files."""
