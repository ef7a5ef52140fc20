"""Shows a value of a lab: rendered on the site and in a notebook, as text in a terminal."""

from __future__ import annotations

import sys


def display(*values: object) -> None:
    """Show each value as if it were the last expression of a notebook's cell."""
    notebook = sys.modules.get("IPython")
    if notebook and notebook.get_ipython():
        from IPython.display import display as show

        show(*values)
        return
    for value in values:
        sys.displayhook(value)
