"""Site hook: the kernels that run the labs say only what is an error.

ipykernel warns at each start that it talks over TCP, which on one machine is no news, and which a
learner would take for a fault.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_profile = tempfile.TemporaryDirectory(prefix="kernel-")


def on_startup(command: str, dirty: bool) -> None:
    settings = Path(_profile.name) / "profile_default" / "ipython_kernel_config.py"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('get_config().Application.log_level = "ERROR"\n', encoding="utf-8")
    os.environ["IPYTHONDIR"] = _profile.name
