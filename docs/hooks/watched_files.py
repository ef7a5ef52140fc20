"""Site hook: `mkdocs serve` builds again when a source of the site changes, and not when a learner saves an answer.

What git ignores is no source: the learner's files, their progress and copies, caches. Nor are the files that editors
keep beside the one that is edited.
"""

from __future__ import annotations

from pathlib import Path

from pathspec import GitIgnoreSpec  # a dependency of MkDocs

EDITORS = (".*", "*~", r"\#*#")


def on_serve(server, config, builder):
    root = Path(config.config_file_path).resolve().parent
    ignored = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    not_sources = GitIgnoreSpec.from_lines([*ignored, *EDITORS])

    def is_source(path: str) -> bool:
        resolved = Path(path).resolve()
        return not (
            resolved.is_relative_to(root)
            and not_sources.match_file(resolved.relative_to(root).as_posix())
        )

    schedule = server.observer.schedule

    def schedule_sources(handler, path, **options):
        build_again = handler.on_any_event

        def build_for_sources(event):
            names = event.src_path, getattr(event, "dest_path", "")
            if any(name and is_source(name) for name in names):
                build_again(event)

        handler.on_any_event = build_for_sources
        return schedule(handler, path, **options)

    server.observer.schedule = schedule_sources
    # MkDocs watches this folder already, and the folders of `watch` in mkdocs.yml from now on
    server.unwatch(config.docs_dir)
    server.watch(config.docs_dir)
    return server
