"""Measuring: fair rounds, upper bounds of the machine, results files."""
