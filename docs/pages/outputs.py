"""What the code of each page showed: run when needed, and kept in docs/outputs, so that a fresh clone need not run it.

A lesson's outputs are kept as JSON, a lab's in its executed notebook.

A kept output is valid as long as three things are what they were: the code of the page's blocks, every file of the
course that was read while they ran (their imports included), and the version of TVM. `mkdocs serve` runs the lessons
whose output is not valid and remembers theirs in the user's cache; it never changes a tracked file.

    python -m docs.pages.outputs            run what is not valid, and keep it
    python -m docs.pages.outputs PAGE …     run these pages, such as chapters/ch04_add_rms_norm/lesson.md
    python -m docs.pages.outputs --check    run everything anew; fail where the text differs from what is kept

The output of a block marked `measured` is compared without its numbers, and one marked `here` not at all.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import html
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from nbclient.exceptions import CellControlSignal, DeadKernelError

from chapters.child import Child, Lost
from chapters.code_owner import REFERENCE, WHOSE
from chapters.kit.kept_files import cache_subfolder, json_text
from chapters.kit.machine import cpu_name
from chapters.opened import OPENED
from chapters.program import run_program
from chapters.runner.course import ROOT, chapters
from docs.pages import notebook
from docs.pages.notebook import Output
from docs.pages.page_blocks import Block, NotInstalled, PageError, read_blocks

KEPT = ROOT / "docs" / "outputs"
CACHE = cache_subfolder("outputs")
SECONDS = 600  # for one block
OPTIONAL = {
    "torch": "models",
    "transformers": "models",
}  # what pages may import -> the extra that installs it
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STYLE = re.compile(r"<style data-course>.*?</style>", re.DOTALL)  # the site has it in one file
_COLOUR = re.compile(r'<span(?: class="\w{1,3}")?>([^<]*)</span>')  # as Pygments writes it
_PAGE_FOLDER = re.compile(r"/\S*/page-\w+/")  # where the code of a page lies while it runs
_CACHED_CODE = re.compile(r"__pycache__/(\w+)\.[\w.-]+\.pyc$")
_NOT_READ_FOR_A_PAGE = ("docs/outputs/", ".", "site/")


def list_pages() -> dict[str, Path]:
    """Every page that may have code, by its path in the repository."""
    found = sorted((ROOT / "docs").glob("*.md"))
    for chapter in chapters():
        found += [chapter.lesson, chapter.folder / "lab.py"]
    return {path.relative_to(ROOT).as_posix(): path for path in found if path.exists()}


# --- kept outputs ---------------------------------------------------------------------------------


def find_output_file(where: str, folder: Path | None = None) -> Path:
    """The file with what a page showed: the tracked one, or the one in `folder`."""
    parts = where.removeprefix("docs/").removeprefix("chapters/").rpartition(".")[0].split("/")
    return (folder or KEPT) / f"{'_'.join(parts)}{'.ipynb' if is_lab(where) else '.json'}"


def is_lab(where: str) -> bool:
    return where.endswith("/lab.py")


@dataclass(frozen=True)
class PageOutput:
    """What a page showed: the output of each block, in a lesson also {"error": {"names", "lines", "line"}}.

    made: where and when, if that matters to some of them.
    """

    outputs: list[Output]
    made: str
    files: list[str]  # of the course, that were read


def load_valid(where: str, blocks: list[Block]) -> PageOutput | None:
    """What is remembered of a page if it still holds; else None."""
    for folder in (KEPT, CACHE):
        page = _read(find_output_file(where, folder))
        if page and page["code"] == _hash_code(blocks) and _is_unchanged(page):
            return PageOutput(page["outputs"], page["made"], list(page["files"]))
    return None


def _read(path: Path) -> dict | None:
    """What is kept in a file; None if there is none, or if it is damaged, which is said."""
    if not path.exists():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        page = notebook.read_executed(text) if path.suffix == ".ipynb" else json.loads(text)
        kinds = {"code": str, "made": str, "files": dict, "outputs": list}
        if all(isinstance(page[key], kind) for key, kind in kinds.items()):
            return page
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        pass
    print(f"{path} is damaged, so its page is run again.", file=sys.stderr)
    return None


def _hash_code(blocks: list[Block]) -> str:
    facts = [f"{b.raises} {b.mark}\n{b.code}" for b in blocks]
    return _hash_content("\0".join([version("apache-tvm"), *facts]).encode())


def _is_unchanged(page: dict) -> bool:
    return all(_hash_file(name) == key for name, key in page["files"].items())


def _list_learner_files() -> set[Path]:
    return {chapter.stub for chapter in chapters()}


def _list_folder(folder: Path) -> list[Path]:
    """What a page may find in a folder of the course: not what a learner edits, nor what Python or an editor makes."""
    found = [p for p in folder.iterdir() if p.suffix in (".py", ".md", ".yml", ".json")]
    return [p for p in found if p not in _list_learner_files()]


@cache
def _hash_file_version(name: str, _changed: int, _size: int) -> str:
    return _hash_content((ROOT / name).read_bytes())


def _hash_file(name: str) -> str:
    """A key of the content of a file of the course, or of the names in a folder; "" if it is gone."""
    try:
        if name.endswith("/"):
            return _hash_content(
                "\n".join(sorted(p.name for p in _list_folder(ROOT / name))).encode()
            )
        stat = (ROOT / name).stat()
    except OSError:
        return ""
    return _hash_file_version(name, stat.st_mtime_ns, stat.st_size)


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()[:12]


def save_output(where: str, blocks: list[Block], output: PageOutput, folder: Path) -> None:
    """Write what a page showed, and what that depends on, to `folder`."""
    page = {
        "code": _hash_code(blocks),
        "made": output.made,
        "files": {name: _hash_file(name) for name in output.files},
        "outputs": output.outputs,
    }
    path = find_output_file(where, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_lab(where):
        text = notebook.write_executed((ROOT / where).read_text(encoding="utf-8"), page)
    else:
        text = json_text(page) + "\n"
    path.write_text(text, encoding="utf-8")


# --- running --------------------------------------------------------------------------------------


def run_page(blocks: list[Block], where: str) -> PageOutput:
    """Run the blocks of a lesson in a new process, those of a lab in a kernel of Jupyter.

    Raises PageError naming the page, the block and the error if one fails, or does not raise as it should, and
    NotInstalled if an optional package is not installed.
    """
    if message := describe_missing_package(where, blocks):
        raise NotInstalled(message)
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        opened = Path(folder) / "opened"
        # a page must not depend on what one learner has written
        environment = {OPENED: str(opened), WHOSE: REFERENCE, "NO_COLOR": "1"}
        if is_lab(where):
            outputs = _run_lab(where, environment)
        else:
            with Child("chapters.runner.page_code", where, environment=environment) as child:
                outputs = [_run_block(child, block, blocks, where) for block in blocks]
        made = f"{cpu_name()}, {date.today():%B %Y}" if any(b.mark for b in blocks) else ""
        return PageOutput(outputs, made, _list_files_read(opened))


def describe_missing_package(where: str, blocks: list[Block]) -> str:
    """A sentence if the code of a page imports an optional package that is not installed; else ""."""
    for name in OPTIONAL:
        imports = re.compile(rf"^\s*(import|from) {name}\b", re.MULTILINE)
        used = any(imports.search(block.code) for block in blocks)
        if used and not importlib.util.find_spec(name):
            return (
                f"{where} imports {name}, which is not installed, so it did not run: "
                f"pip install -e '.[{OPTIONAL[name]}]'"
            )
    return ""


def _run_lab(where: str, environment: dict[str, str]) -> list[Output]:
    lab = (ROOT / where).read_text(encoding="utf-8")
    try:
        outputs = notebook.execute(lab, ROOT, environment, SECONDS)
    except (CellControlSignal, DeadKernelError) as error:
        raise PageError(f"{where}: {_ANSI.sub('', str(error)).strip()}") from None
    return [_clean_output(output) for output in outputs]


def _clean_output(output: Output) -> Output:
    """Without colours of a terminal, without style sheets, and without parts that print nothing.

    Jupyter may send what was printed at once in several parts; they become one.
    """
    parts = []
    for kind, group in groupby(output, lambda part: next(iter(part))):
        values = [part[kind] for part in group]
        for value in ["".join(values)] if kind == "printed" else values:
            text = _ANSI.sub("", _STYLE.sub("", value))
            text = text.rstrip() if kind == "printed" else text
            parts += [{kind: text}] if text else []
    return parts


def _run_block(child: Child, block: Block, blocks: list[Block], where: str) -> Output:
    try:
        answer = child.ask({"code": block.code, "line": block.line}, SECONDS)
    except Lost as lost:
        last = lost.printed.strip().splitlines()[-1:]
        raise PageError(
            f"{where}, line {block.line}: the process died in this block ({lost})"
            f"{': ' + last[0] if last else '.'}"
        ) from None
    error = answer["error"]
    if error:
        error["lines"] = [_PAGE_FOLDER.sub("", line) for line in error["lines"]]
    _check_error(block, error, where)
    output, at, printed = [], 0, child.printed()
    for shown in [*answer["shown"], {"at": len(printed)}]:
        text = printed[at : shown["at"]].decode("utf-8", "replace")
        at = shown.pop("at")
        output += [{"printed": text}, shown]
    output = _clean_output(output)
    return [*output, {"error": error}] if error else output


def _check_error(block: Block, error: dict | None, where: str) -> None:
    first = next((line for line in block.code.split("\n") if line.strip()), "")
    at = f"{where}, line {(error and error['line']) or block.line}, in the block `{first.strip()}`"
    if error and block.raises not in error["names"]:
        wanted = f" (expected {block.raises})" if block.raises else ""
        raise PageError(f"{at}: {format_error(error)}{wanted}")
    if block.raises and not error:
        raise PageError(f"{at}: should raise {block.raises}, and raised nothing.")


def format_error(error: dict) -> str:
    """The last line of an error; of a long message also the first, which names the error."""
    lines = error["lines"]
    if error["names"][0] in ("SyntaxError", "IndentationError") or len(lines) == 1:
        return lines[-1]
    return "\n".join([lines[0], *(["…"] if len(lines) > 2 else []), lines[-1]])


def _list_files_read(opened: Path) -> list[str]:
    """What was read of the course, files and folders, without what a learner edits."""
    learner_files, found = _list_learner_files(), set()
    for line in opened.read_text(encoding="utf-8").splitlines() if opened.exists() else []:
        name = Path(_CACHED_CODE.sub(r"\1.py", line)).as_posix() + "/" * line.endswith(os.sep)
        path = ROOT / name
        there = path.is_dir() if name.endswith("/") else path.is_file()
        if there and path not in learner_files and not name.startswith(_NOT_READ_FOR_A_PAGE):
            found.add(name)
    return sorted(found)


def run_all(
    wanted: dict[str, list[Block]],
    done: Callable[[str, PageOutput | PageError], None],
    say: Callable[[str], None],
    *,
    quietly: bool = True,
) -> None:
    """Run pages, as many at a time as there are cores, and call `done` with the result of each.

    quietly: run pages that measure alone, before the others, because a busy machine would make their numbers wrong.
    """
    measuring = {where for where in wanted if any(b.mark == "measured" for b in wanted[where])}
    alone = [where for where in wanted if quietly and where in measuring]
    together = [where for where in wanted if where not in alone]
    began, count = time.monotonic(), 0

    def one(where: str) -> PageOutput | PageError:
        try:
            return run_page(wanted[where], where)
        except PageError as error:
            return error

    def finish(where: str, ran: PageOutput | PageError) -> None:
        nonlocal count
        count += 1
        say(f"[{count}/{len(wanted)}] ran {where} ({time.monotonic() - began:.0f} s)")
        done(where, ran)

    for where in alone:
        finish(where, one(where))
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="page") as pool:
        # the last chapters' pages run longest, so they begin first
        running = {pool.submit(one, where): where for where in reversed(together)}
        for future in as_completed(running):
            finish(running[future], future.result())


# --- comparing ------------------------------------------------------------------------------------


def diff_outputs(where: str, blocks: list[Block], now: list[Output]) -> str:
    """How the outputs of a page differ from those that are kept, as a diff; "" where they do not."""
    page = _read(find_output_file(where))
    if page is None:
        return f"{where}: no output is kept.\n"
    stale = page["code"] != _hash_code(blocks) or not _is_unchanged(page)
    report = f"{where}: what is kept was made from other code.\n" if stale else ""
    for block, old, new in zip(blocks, page["outputs"], now, strict=False):
        before, after = (_list_comparable_lines(block, output) for output in (old, new))
        if before != after:
            lines = difflib.unified_diff(before, after, "kept", "now", lineterm="", n=1)
            report += f"{where}, line {block.line}:\n" + "\n".join(lines) + "\n"
    return report


def _list_comparable_lines(block: Block, output: Output) -> list[str]:
    if block.mark == "here":
        return []
    lines = []
    for part in output:
        for kind, value in part.items():
            text = "\n".join(value["lines"]) if kind == "error" else value
            if kind == "html":  # which colours code has, and how it is escaped, is up to Pygments
                text = html.unescape(_COLOUR.sub(r"\1", text)).replace("><", ">\n<")
            lines += [f"{kind}: {line}" for line in text.split("\n")]
    if block.mark == "measured":  # the numbers, and what follows from how wide they are
        lines = [re.sub(r"\d[\d.,]*(?:e-?\d+)?", "#", line) for line in lines]
        lines = [re.sub(r"[\s─-]+", " ", line) for line in lines]
    return lines


def main(arguments: Iterable[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m docs.pages.outputs", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    known = list_pages()
    if unknown := [name for name in options.pages if name not in known]:
        print(f"There is no page {unknown[0]}; a page is named like {next(iter(known))}.")
        return 2
    blocks = {name: read_blocks(path, name) for name, path in known.items()}
    wanted = {
        name: found
        for name, found in blocks.items()
        if found
        and (not options.pages or name in options.pages)
        and (options.check or options.pages or load_valid(name, found) is None)
    }
    left = [
        name for name in wanted if options.check and describe_missing_package(name, wanted[name])
    ]
    for name in (
        left
    ):  # what is kept of such a page can only be trusted while nothing that it read has changed
        if load_valid(name, wanted[name]):
            print(
                f"{describe_missing_package(name, wanted[name])}. What is kept of it was made from the same code."
            )
            del wanted[name]
    faults: list[str] = []

    def done(where: str, ran: PageOutput | PageError) -> None:
        if isinstance(ran, PageError):
            faults.append(f"{ran}\n")
        elif options.check:
            faults.append(diff_outputs(where, wanted[where], ran.outputs))
        else:
            save_output(where, wanted[where], ran, KEPT)

    # a check compares no numbers that were measured
    run_all(wanted, done, lambda text: print(text, flush=True), quietly=not options.check)
    if not options.check:
        used = {find_output_file(name) for name, found in blocks.items() if found}
        for path in set(KEPT.iterdir()) - used:  # of a page that is gone
            path.unlink()
    print("".join(faults), end="")
    bad = sum(map(bool, faults))
    print(f"{len(wanted)} pages ran, {bad} at fault." if bad else f"{len(wanted)} pages ran.")
    if bad and options.check:
        print("`python -m docs.pages.outputs` keeps the outputs as they are now.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(run_program(main))
