"""Site hook: puts every chapter on the site as lesson, lab and solution, and builds the navigation.

Adding a folder `chapters/chNN_name` with a lesson is enough; nothing here or in mkdocs.yml names a chapter.
"""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import course_path  # noqa: F401  (before the course is imported)
from exercises import with_exercises
from fingerprint import fingerprint
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File, InclusionLevel
from notebook import name as notebook_name
from notebook import notebook
from repo_links import Repository, source_page
from solution_page import solution_page

from chapters.toolkit import course
from chapters.toolkit.earlier import REFERENCE_ONLY
from chapters.toolkit.ir import ir_diff
from chapters.toolkit.pages import picture
from chapters.toolkit.pages.plots import figure

log = get_plugin_logger("publish")

PAGES_BEFORE = [
    ("Home", "index.md"),
    ("Setup", "setup.md"),
    ("How the course works", "how-it-works.md"),
]
PAGES_AFTER = [
    ("Run a kernel in the browser", "webgpu.md"),
    ("Pass timeline", "timeline.md"),
    ("What you can now read", "what-you-can-read.md"),
    ("Results", "results.md"),
    ("Soundness", "soundness.md"),
    ("Glossary", "glossary.md"),
    ("Troubleshooting", "troubleshooting.md"),
    ("For teachers", "teaching.md"),
]
TOOLKIT_STYLE = "styles/toolkit.css"
_STYLE = re.compile(r"<style data-course>.*?</style>", re.DOTALL)

_serving = False
_chapters: dict[str, course.Chapter] = {}  # address of the lesson -> chapter


def on_startup(command: str, dirty: bool) -> None:
    global _serving
    _serving = command == "serve"
    os.environ[REFERENCE_ONLY] = "1"  # for the labs and blocks that this build runs


def on_config(config):
    root = Path(config.config_file_path).parent
    _chapters.clear()
    course.chapters.cache_clear()  # while serving, a lesson's front matter may have changed
    _chapters.update({f"chapters/{c.slug}/lesson.md": c for c in _read_chapters(root)})
    config.nav = navigation(Path(config.docs_dir))
    config.extra_css = [*config.extra_css, TOOLKIT_STYLE]
    config.copyright = f"Verified on {stamp()}"  # in the footer of every page
    if _serving:
        _remember_labs(config, root)
    return config


def _read_chapters(root: Path) -> list[course.Chapter]:
    try:
        return course.chapters(root)
    except course.CourseError as error:
        raise PluginError(str(error)) from None
    except TypeError as error:
        raise PluginError(
            f"The front matter of {_faulty_lesson(root)} cannot be used ({error}). `needs` is a list "
            "of chapter numbers; an exercise has id, kind, minutes, title and name."
        ) from None


def _faulty_lesson(root: Path) -> str:
    for lesson in sorted((root / "chapters").glob("ch[0-9][0-9]_*/lesson.md")):
        facts = course.front_matter(lesson)
        try:
            tuple(facts["needs"])
            [course.Exercise(**exercise, chapter=0) for exercise in facts["exercises"]]
        except TypeError:
            return lesson.relative_to(root).as_posix()
    return "a lesson"


def navigation(docs: Path) -> list:
    """The site's navigation: the pages there are, and all chapters between them."""
    parts = []
    for uri, chapter in _chapters.items():
        pages = [{f"Lesson {chapter.number}": uri}]
        if (chapter.folder / "lab.py").exists():
            pages.append({f"Lab {chapter.number}": f"chapters/{chapter.slug}/lab.py"})
        if chapter.solution.exists():
            pages.append({f"Solution {chapter.number}": f"chapters/{chapter.slug}/solution.md"})
        parts.append({f"{chapter.number} · {chapter.title}": pages})
    before, after = (
        [{title: uri} for title, uri in pages if (docs / uri).exists()]
        for pages in (PAGES_BEFORE, PAGES_AFTER)
    )
    return [*before, *([{"Chapters": parts}] if parts else []), *after]


@event_priority(100)  # before mkdocs-jupyter looks for labs among the files
def on_files(files, config):
    root = Path(config.config_file_path).parent
    repository = Repository(root, Path(config.docs_dir))
    linked: list[Path] = []
    for chapter in _chapters.values():
        linked += _add_chapter(chapter, files, config, repository)
    for file in files.documentation_pages():
        if file.src_dir == config.docs_dir and file.src_uri.endswith(".md"):
            linked += repository.targets(file.content_string, Path(file.abs_src_path).parent)
    _add_sources(linked, files, config, repository)
    files.append(File.generated(config, TOOLKIT_STYLE, content=toolkit_style()))
    return files


def _add_chapter(chapter, files, config, repository: Repository) -> list[Path]:
    """Add the pages of one chapter; returns the files of the repository that they link to."""
    root, home = repository.root, f"chapters/{chapter.slug}"
    lab, second = chapter.folder / "lab.py", chapter.solution_folder / "second_way.py"
    files.append(_as_it_lies(f"{home}/lesson.md", root, config, f"{home}/index.html"))
    linked = [
        chapter.stub,
        *repository.targets(chapter.lesson.read_text(encoding="utf-8"), chapter.folder),
    ]
    if lab.exists():
        files.append(_as_it_lies(f"{home}/lab.py", root, config))
        content = notebook(lab, root, config.repo_url)
        files.append(
            File.generated(config, f"{home}/{notebook_name(chapter.slug)}", content=content)
        )
        linked += repository.targets(lab.read_text(encoding="utf-8"), chapter.folder)
    if chapter.solution.exists():
        content = solution_page(chapter)
        files.append(File.generated(config, f"{home}/solution.md", content=content))
        linked += repository.targets(content, chapter.solution_folder)
    for path in (lab, chapter.stub, chapter.solution, second):
        if not path.exists():
            log.warning(f"chapter {chapter.number} has no {path.relative_to(root).as_posix()}.")
    return linked


def _add_sources(linked, files, config, repository: Repository) -> None:
    for path in dict.fromkeys(linked):
        uri = repository.uri(path)
        if uri and uri.startswith("source/"):
            content = source_page(path, repository.root)
            inclusion = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, uri, content=content, inclusion=inclusion))
        elif uri and uri.startswith("chapters/") and files.get_file_from_path(uri) is None:
            files.append(_as_it_lies(uri, repository.root, config))


def _as_it_lies(uri: str, root: Path, config, dest_uri: str | None = None) -> File:
    """A file of the repository outside docs/, under the same address on the site."""
    return File(uri, str(root), config.site_dir, config.use_directory_urls, dest_uri=dest_uri)


def toolkit_style() -> str:
    """The style sheets of what the toolkit draws, once for the whole site."""
    styles = ir_diff.STYLE, picture.STYLE, picture.SVG_STYLE, figure.STYLE
    return "\n".join(style.strip() for style in styles)


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if not uri.endswith(".md") or uri.startswith("source/"):
        return markdown
    repository = Repository(Path(config.config_file_path).parent, Path(config.docs_dir))
    chapter = _chapters.get(uri)
    if chapter:
        page.meta["title"] = f"{chapter.number} · {chapter.title}"
        markdown = with_exercises(markdown, chapter)
        markdown = with_facts(repository.relink(markdown, chapter.folder, uri), chapter)
    elif page.file.abs_src_path:
        markdown = repository.relink(markdown, Path(page.file.abs_src_path).parent, uri)
    else:
        folder = repository.root / "solutions" / Path(uri).parent.name
        markdown = repository.relink(markdown, folder, uri)
    return markdown


@event_priority(-50)  # after outputs and labs are in the page
def on_page_content(content, page, config, files):
    return _STYLE.sub("", content)


def with_facts(markdown: str, chapter) -> str:
    """The lesson with its facts beneath its title, which is made from the front matter if missing."""
    heading = re.match(r"\s*# .+\n", markdown)
    title = heading[0].strip() if heading else f"# {chapter.number} · {chapter.title}"
    body = markdown[heading.end() :] if heading else markdown
    return f"{title}\n\n{facts(chapter)}\n\n{body}"


def facts(chapter) -> str:
    """What a reader wants to know before starting: time, needs, GPU, where things are, verified on."""
    numbers = {c.number: c for c in _chapters.values()}
    unknown = [n for n in chapter.needs if n not in numbers]
    if unknown:
        log.warning(f"chapter {chapter.number} needs chapter {unknown[0]}, which does not exist.")
    needs = [
        f"[{n} · {numbers[n].title}](../{numbers[n].slug}/lesson.md)"
        for n in chapter.needs
        if n in numbers
    ]
    what = [
        f"{chapter.minutes} minutes",
        f"needs {', '.join(needs)}" if needs else "needs no other chapter",
        "no GPU needed" if chapter.gpu in ("no", False) else f"GPU {chapter.gpu}",
    ]
    links = []
    if (chapter.folder / "lab.py").exists():
        links.append("[Lab](lab.py){ .md-button }")
    if chapter.stub.exists():
        source = f"../../source/chapters/{chapter.slug}/{chapter.file}.md"
        links.append(f"[Your file: {chapter.file}]({source}){{ .md-button }}")
    if chapter.solution.exists():
        links.append("[Solution](solution.md){ .md-button }")
    return "\n".join(
        [
            '<div class="facts" markdown>',
            "",
            " · ".join(what),
            "{ .facts-what }",
            "",
            *([" ".join(links), "{ .facts-links }", ""] if links else []),
            f"Verified on {stamp()}",
            "{ .facts-stamp }",
            "",
            "</div>",
        ]
    )


def stamp() -> str:
    """The versions this build runs the page with, its date (SOURCE_DATE_EPOCH if set) and device."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.fromtimestamp(int(epoch), timezone.utc) if epoch else datetime.now(timezone.utc)
    return (
        f"TVM {version('apache-tvm')}, NumPy {version('numpy')}, Python {platform.python_version()}, "
        f"{now.day} {now:%B %Y}, {platform.machine()} CPU"
    )


def _remember_labs(config, root: Path) -> None:
    """While serving, run a lab again only if it or something it may import has changed."""
    plugin = config.plugins.get("mkdocs-jupyter")
    if plugin is None:
        return
    plugin.config["cache"] = True
    plugin.config["cache_dir"] = str(root / ".cache" / "labs" / fingerprint(root)[:16])
