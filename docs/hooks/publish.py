"""Site hook: puts every chapter on the site as lesson, lab and solution, and builds the navigation.

Adding a chapter's folders in `chapters` and `solutions` is enough; nothing here or in mkdocs.yml names a chapter.
"""

from __future__ import annotations

import html
import importlib
import os
import pkgutil
import platform
import posixpath
import re
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, InclusionLevel
from mkdocs_jupyter.config import settings as notebook_settings

from chapters.kit import draw
from chapters.kit.ir import ir_diff
from chapters.runner import course
from chapters.runner.learner_file import make_missing, make_stub
from docs.pages import outputs, plots
from docs.pages.course_map import PATH_NAMES
from docs.pages.exercises import complete_exercises
from docs.pages.notebook import make_download, render_links
from docs.pages.notebook import make_file_name as notebook_name
from docs.pages.repo_links import Repository, make_source_page
from docs.pages.solution_page import make_solution_page

PAGES_BEFORE = [
    {"Home": "index.md"},
    {"Setup": "setup.md"},
    {"Three paths": "paths.md"},
    {"How the course works": "how-it-works.md"},
]
PAGES_AFTER = [
    {"A model of your own": "your-own-model.md"},
    {"Run a kernel in the browser": "webgpu.md"},
    {"Pass timeline": "timeline.md"},
    {"What you can now read": "what-you-can-read.md"},
    {"What we found upstream": "upstream.md"},
    {"Triton and Inductor beside ours": "other-compilers.md"},
    {"Results": "results.md"},
    {"Soundness": "soundness.md"},
    {"Cheat sheet": "cheat-sheet.md"},
    {"Glossary": "glossary.md"},
    {"Troubleshooting": "troubleshooting.md"},
    {"For teachers": "teaching.md"},
]
KINDS_OF_PAGE = ("Lesson", "Lab", "Solution")
TEMPLATES = str(Path(__file__).parents[1] / "pages" / "templates")  # instead of mkdocs-jupyter's
STYLE = "styles/all.css"  # one file instead of one per sheet: a browser waits for each before it shows anything

_sheets: list[str] = []  # the style sheets of mkdocs.yml
_chapters: dict[str, course.Chapter] = {}  # address of the lesson -> chapter


def on_config(config):
    root = Path(config.config_file_path).parent
    _chapters.clear()
    course.chapters.cache_clear()  # while serving, a lesson's front matter may have changed
    try:
        _chapters.update({f"chapters/{c.slug}/lesson.md": c for c in course.chapters(root)})
    except course.CourseError as error:
        raise PluginError(str(error)) from None
    make_missing()  # lessons link to them
    notebook_settings.templates_dir = TEMPLATES
    config.nav = [*PAGES_BEFORE, {"Chapters": build_navigation()}, *PAGES_AFTER]
    _sheets[:] = config.extra_css
    config.extra_css = [STYLE]
    config.copyright = f"Verified on {describe_build()}"  # in the footer of every page
    return config


def build_navigation() -> list:
    """The pages of all chapters, as MkDocs' `nav` has them."""
    parts = []
    for chapter in _chapters.values():
        number, home = chapter.number, _chapter_address(chapter)
        kinds = [kind for kind in KINDS_OF_PAGE if kind != "Lab" or not chapter.is_capstone]
        pages = [{f"{kind} {number}": f"{home}/{kind.lower()}.md"} for kind in kinds]
        parts.append({f"{number} · {chapter.title}": pages})
    return parts


def _chapter_address(chapter: course.Chapter) -> str:
    return f"chapters/{chapter.slug}"


@event_priority(50)  # before the plugins look at which files there are
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
    written = [Path(config.docs_dir, sheet).read_text(encoding="utf-8") for sheet in _sheets]
    files.append(File.generated(config, STYLE, content="\n".join([*written, collect_styles()])))
    return files


def _add_chapter(chapter, files, config, repository: Repository) -> list[Path]:
    """Add the pages of one chapter; returns the files of the repository that they link to."""
    root, home = repository.root, _chapter_address(chapter)
    lab, second = chapter.folder / "lab.py", chapter.solution_folder / "second_way.py"
    kept = outputs.find_output_file(f"{home}/lab.py")
    for path in (chapter.solution, second, *(() if chapter.is_capstone else (lab, kept))):
        if not path.exists():
            raise PluginError(f"There is no {path.relative_to(root).as_posix()}.")
    lesson_text, solution = chapter.lesson.read_text(encoding="utf-8"), make_solution_page(chapter)
    generated, lab_text = {"solution.md": solution}, ""
    if not chapter.is_capstone:
        lab_text, executed = (path.read_text(encoding="utf-8") for path in (lab, kept))
        notebook = make_download(executed, config.repo_url, collect_styles())
        generated[notebook_name(chapter.slug)] = notebook
        files.append(File.generated(config, f"{home}/lab.md", abs_src_path=str(kept)))
    place, index = (str(root), config.site_dir, config.use_directory_urls), f"{home}/index.html"
    files.append(File(f"{home}/lesson.md", *place, dest_uri=index))
    for name, content in generated.items():
        files.append(File.generated(config, f"{home}/{name}", content=content))
    return [
        chapter.stub,
        *repository.targets(lesson_text, chapter.folder),
        *repository.targets(lab_text, chapter.folder),
        *repository.targets(solution, chapter.solution_folder),
    ]


def _add_sources(linked, files, config, repository: Repository) -> None:
    # a learner's file is shown as everybody starts from it
    stubs = {chapter.stub: make_stub(chapter) for chapter in _chapters.values()}
    for path in dict.fromkeys(linked):
        uri = repository.uri(path)
        if uri and uri.startswith("source/"):
            content = make_source_page(path, repository.root, stubs.get(path))
            inclusion = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, uri, content=content, inclusion=inclusion))


def collect_styles() -> str:
    """The style sheets of everything that draws, once for the whole site."""
    modules = [ir_diff, plots]
    for module in pkgutil.iter_modules(draw.__path__):
        modules.append(importlib.import_module(f"{draw.__name__}.{module.name}"))
    sheets = [getattr(m, name, "") for m in modules for name in ("STYLE", "SVG_STYLE")]
    return "\n".join(sheet.strip() for sheet in sheets if sheet)


GET = (
    "Get the repository."  # what pages say, and what gets the address if the site is built with one
)


def insert_address(markdown: str, repo_url: str | None) -> str:
    """A page that says where to get the repository, as far as that is known."""
    found = f"Clone the repository: `git clone {repo_url}`."
    return markdown.replace(GET, found) if repo_url else markdown


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    repository = Repository(Path(config.config_file_path).parent, Path(config.docs_dir))
    slug = Path(uri).parent.name
    if chapter := _chapters.get(uri):
        page.meta["title"] = f"{chapter.number} · {chapter.title}"
        try:
            markdown = complete_exercises(markdown, chapter)
        except course.CourseError as error:
            raise PluginError(f"{uri}: {error}") from None
        return insert_beneath_title(
            repository.relink(markdown, chapter.folder, uri), render_facts(chapter)
        )
    if uri.endswith("/lab.md"):
        page.meta["title"] = f"Lab {int(slug[2:4])}"
        return ""  # mkdocs-jupyter makes the page from the notebook
    markdown = insert_address(markdown, config.repo_url)
    solutions = repository.root / "solutions" / slug  # a page without a file shows a solution
    folder = Path(page.file.abs_src_path).parent if page.file.abs_src_path else solutions
    return repository.relink(markdown, folder, uri)


@event_priority(100)  # before other hooks look at the page
def on_page_content(content, page, config, files):
    """The page of a lab: what mkdocs-jupyter has rendered, with the site's links and the facts beneath its title."""
    uri = page.file.src_uri
    if not uri.endswith("/lab.md"):
        return content
    home, slug = posixpath.dirname(uri), Path(uri).parent.name
    repository = Repository(Path(config.config_file_path).parent, Path(config.docs_dir))

    def point(match: re.Match) -> str:
        target = repository.relative(match[2], repository.root / home, uri)
        found = files.get_file_from_path(posixpath.normpath(f"{home}/{target}"))
        return f"{match[1]}{found.url_relative_to(page.file) if found else target}"

    # the template's page as text; what mkdocs-jupyter adds around it are colours that the site has already
    content = html.unescape(re.match(r"<pre>(.*?)</pre>", content, re.DOTALL)[1])
    content = re.sub(r'(<a href=")([^"#:]+)', point, content)
    return content.replace("</h1>", f"</h1>{render_lab_facts(slug, config.repo_url)}", 1)


def insert_beneath_title(markdown: str, facts: str) -> str:
    """A page with its facts beneath its title, or at its top if the Markdown has no title."""
    title = re.match(r"\s*# .+\n", markdown)
    end = title.end() if title else 0
    return f"{markdown[:end].strip()}\n\n{facts}\n\n{markdown[end:]}"


def render_lab_facts(slug: str, address: str | None) -> str:
    """How to run a lab, and buttons for its notebook."""
    return (
        f'<div class="facts"><p>Run it yourself: <code>python -m chapters.{slug}</code></p>'
        f"{render_links(slug, address)}</div>"
    )


def render_facts(chapter) -> str:
    """What a reader wants to know before starting: time, needs, GPU, links, versions."""
    numbers = {c.number: c for c in _chapters.values()}
    needs = [f"[{n} · {numbers[n].title}](../{numbers[n].slug}/lesson.md)" for n in chapter.needs]
    needed = f"needs {', '.join(needs)}" if needs else "needs no other chapter"
    shorter = [
        f"{chapter.minutes_on(path)} for {words.lower()}"
        for path, words in list(PATH_NAMES.items())[:-1]
        if 0 < chapter.minutes_on(path) < chapter.minutes
    ]
    minutes = f"{chapter.minutes} minutes{f' ({joined})' if (joined := ', '.join(shorter)) else ''}"
    gpu = "no GPU needed" if chapter.gpu == "no" else f"GPU {chapter.gpu}"
    source = f"../../source/{_chapter_address(chapter)}/{chapter.file}.md"
    links = {} if chapter.is_capstone else {"Lab": "lab.md"}
    links |= {f"Your file: {chapter.file}": source, "Solution": "solution.md"}
    buttons = " ".join(f"[{words}]({uri}){{ .md-button }}" for words, uri in links.items())
    return f"""<div class="facts" markdown>

{minutes} · {needed} · {gpu}
{{ .facts-what }}

{buttons}
{{ .facts-links }}

Verified on {describe_build()}
{{ .facts-stamp }}

</div>"""


def describe_build() -> str:
    """The versions this build runs the page with, its date (SOURCE_DATE_EPOCH if set) and device."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.fromtimestamp(int(epoch), timezone.utc) if epoch else datetime.now(timezone.utc)
    return (
        f"TVM {version('apache-tvm')}, NumPy {version('numpy')}, Python {platform.python_version()}, "
        f"{now.day} {now:%B %Y}, {platform.machine()} CPU"
    )
