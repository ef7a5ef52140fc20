"""What the lessons, the solutions and the checks share, one idea per file."""
