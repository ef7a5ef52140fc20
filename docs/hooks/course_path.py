"""Makes the course importable: for the hooks, for the blocks they run and for the labs' kernels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if str(ROOT) not in _path:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, _path)])
# a kernel of the same name in the reader's home must not take the place of this environment's
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
