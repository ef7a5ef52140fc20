"""Shows a value in a lab: rendered in a notebook, as text in a terminal."""

from __future__ import annotations


def display(*values: object) -> None:
    """Render each value in a notebook or on the site; print its text where there is no notebook."""
    try:
        get_ipython()
    except NameError:
        for value in values:
            print(value)
        return
    from IPython.display import display as show

    show(*values)
