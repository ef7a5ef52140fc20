"""Guard zones around arrays; the code is the toolkit's, for a page runs it too."""

from chapters.toolkit.cases.guarded import Guarded, WroteOutside, run_compiled

__all__ = ["Guarded", "WroteOutside", "run_compiled"]
