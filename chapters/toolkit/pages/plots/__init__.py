"""Plots as static SVG from numbers: no library, no script, readable in light and dark, with the table beneath."""
