"""Which packages are installed here, and which of them are not the ones that the course pins."""

from __future__ import annotations

import re
from importlib import metadata

from chapters.runner.course import ROOT

MEND = "run `pip install -e .` in the course's folder"


def pins() -> dict[str, str]:
    """The packages that pyproject.toml pins to one version, and that version."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(re.findall(r'"([A-Za-z0-9_.-]+)==([^"]+)"', text))


def installed_version(package: str) -> str:
    """The installed version of a package, "" if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def wrong_versions() -> list[str]:
    """One sentence for each pinned package that is missing or of another version."""
    sentences = []
    for package, wanted in pins().items():
        found = installed_version(package)
        if found != wanted:
            says = f"{package} {found} is installed" if found else f"{package} is not installed"
            sentences.append(f"{says}; the course needs {wanted}")
    return sentences
