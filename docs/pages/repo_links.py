"""Turns links between files of the repository into links between pages of the site.

Authors link files by their paths: a lesson names `lab.py`, `../../docs/glossary.md` or `../kit/ir/ir_diff.py`, which
works on a code host. On the site each such link leads to the page that shows that file. A source file that has no page
gets one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from docs.pages.fences import fence_code, map_prose

_LINK = re.compile(r"(?P<head>\]\()(?P<target>[^)\s#]+)(?P<tail>(?:#[^)\s]*)?(?:\s+\"[^\"]*\")?\))")
_LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml", ".json": "json", ".md": "markdown"}


@dataclass(frozen=True)
class Repository:
    """Two folders: the repository's root and the one with the site's own pages."""

    root: Path
    docs: Path

    def uri(self, path: Path) -> str | None:
        """The address, among the site's sources, of the page for `path`; None if the repository has no such file."""
        path = Path(os.path.normpath(path))
        if not path.is_relative_to(self.root) or not path.exists():
            return None
        parts = path.relative_to(self.root).parts
        in_chapter = len(parts) > 1 and re.match(r"ch\d\d_", parts[1])
        if path.is_relative_to(self.docs) and "hooks" not in parts:
            return path.relative_to(self.docs).as_posix() if path.is_file() else None
        if in_chapter and parts[0] == "chapters":
            if len(parts) == 2 or parts[2] == "lesson.md":
                return f"chapters/{parts[1]}/lesson.md"
            if parts[2] == "lab.py":
                return f"chapters/{parts[1]}/lab.md"
        if in_chapter and parts[0] == "solutions":
            return f"chapters/{parts[1]}/solution.md"
        return f"source/{'/'.join(parts)}.md" if path.is_file() else None

    def targets(self, markdown: str, folder: Path) -> list[Path]:
        """The files of the repository that `markdown`, lying in `folder`, links to."""
        found: list[Path] = []

        def note(text: str) -> str:
            found.extend(
                Path(os.path.normpath(folder / one["target"])) for one in _LINK.finditer(text)
            )
            return text

        map_prose(markdown, note)
        return [path for path in dict.fromkeys(found) if self.uri(path)]

    def relink(self, markdown: str, folder: Path, page_uri: str) -> str:
        """`markdown` with its repository links relative to the page `page_uri`."""

        def point(match: re.Match) -> str:
            target = self.relative(match["target"], folder, page_uri)
            return f"{match['head']}{target}{match['tail']}"

        return map_prose(markdown, lambda text: _LINK.sub(point, text))

    def relative(self, target: str, folder: Path, page_uri: str) -> str:
        """One link target; a target that is not a file of the repository is left unchanged."""
        if re.match(r"[a-z][a-z0-9+.-]*:|/", target):
            return target
        uri = self.uri(folder / target)
        if uri is None:
            return target
        return PurePosixPath(os.path.relpath(uri, os.path.dirname(page_uri) or ".")).as_posix()


def make_source_page(path: Path, root: Path, text: str | None = None) -> str:
    """The Markdown of the page that shows one file of the repository, or `text` instead of its content."""
    name = path.relative_to(root).as_posix()
    code = (text or path.read_text(encoding="utf-8")).rstrip("\n")
    language = _LANGUAGES.get(path.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n# `{name}`\n\n{fence_code(code, language)}\n"
