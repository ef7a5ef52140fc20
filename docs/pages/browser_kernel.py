"""Chapter 4's kernel as WGSL, with faults to try, as the part of a page that docs/js/webgpu.js runs in a browser.

The text, the launch and the order of the arguments are TVM's, made when this is called. A fault is a change of that
text. A change that no longer finds its place raises, so a page never shows a fault that is not there.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.target import Target

from chapters.kit.gpu.launches import HostProgram, Launch
from chapters.kit.ir.row_index import row_dimensions

HIDDEN_SIZE = 1024
THREADS = 256  # every WebGPU device takes this many in a workgroup
EPSILON = 1e-5
ROWS = (64, 1024, 4096)
# largest error allowed in a row, as a share of its largest value: two roundings of the dtype, and some for the sum
TOLERANCE = {"float32": 2e-6, "float16": 1.5e-3}
WEBGPU = Target({"kind": "webgpu", "max_num_threads": THREADS})
_BARRIER = r"^ *workgroupBarrier\(\);\n"
_STORAGE = re.compile(r"@binding\(\d+\) var<storage, (read_write|read)> (\w+)")


@dataclass(frozen=True)
class Fault:
    """A change of the kernel's text. races: whether some devices may still give right numbers."""

    title: str
    says: str
    change: Callable[[str], str]
    races: bool = False


def delete_matches(text: str, pattern: str, which: slice) -> str:
    """`text` without those matches of `pattern` that `which` picks. ValueError if TVM wrote none of them."""
    picked = list(re.finditer(pattern, text, re.MULTILINE))[which]
    if not picked:
        raise ValueError(f"Nothing to delete: the kernel has no match of {pattern!r}.")
    for match in reversed(picked):
        text = text[: match.start()] + text[match.end() :]
    return text


FAULTS = (
    Fault("as TVM wrote it", "Nothing is changed.", lambda text: text),
    Fault(
        "the barrier after the store is gone",
        "Every thread stores what it summed; without the barrier, a thread may read its neighbour's place "
        "before the neighbour has stored.",
        lambda text: delete_matches(text, _BARRIER, slice(1, 2)),
        races=True,
    ),
    Fault(
        "every barrier is gone",
        "No thread waits for any other in the whole sum.",
        lambda text: delete_matches(text, _BARRIER, slice(None)),
        races=True,
    ),
    Fault(
        "the sum stops one step early",
        "The last step, in which thread 0 adds what thread 1 holds, is deleted: half the squares are lost.",
        lambda text: delete_matches(
            text, r"^  if \(i32\(threadIdx\.x\) < 1i\) \{\n.*\n  \}\n", slice(1)
        ),
    ),
    Fault(
        "nothing is stored before the sum",
        "The threads' own sums never reach workgroup memory: what is added up was there before.",
        lambda text: delete_matches(text, r"^  red_buf0\[.*\] = partial\[0i\];\n", slice(1)),
    ),
    Fault(
        "a quarter of every row is never written",
        "The last store of every thread is deleted: what the output held before, here not-a-number, stays.",
        lambda text: delete_matches(text, r"^  norm_ptr\[.*\n", slice(-1, None)),
    ),
)


@functools.cache
def describe_kernels() -> dict:
    """All that docs/js/webgpu.js needs, as JSON's types."""
    return {
        "hidden": HIDDEN_SIZE,
        "epsilon": EPSILON,
        "kernels": [_describe_kernel(dtype) for dtype in TOLERANCE],
        "faults": [{"title": f.title, "says": f.says, "races": f.races} for f in FAULTS],
    }


def make_kernel_func(dtype: str) -> tirx.PrimFunc:
    """Chapter 4's kernel for x1 and x2 of (n, 1, HIDDEN_SIZE)."""
    from solutions.ch04_add_rms_norm.fuse_add_norm import row_kernel

    fixed = [tirx.IntImm("int64", number) for number in (1, HIDDEN_SIZE)]
    dims = row_dimensions([tirx.Var("n", "int64"), *fixed])
    return row_kernel(dims, HIDDEN_SIZE, dtype, EPSILON, THREADS)


def _describe_kernel(dtype: str) -> dict:
    program = HostProgram(make_kernel_func(dtype), WEBGPU)
    (kernel,) = program.kernels.values()
    writable = {name: mode == "read_write" for mode, name in _STORAGE.findall(kernel.source)}
    buffers = [n for n, t in zip(kernel.names, kernel.dtypes, strict=True) if t == "handle"]
    return {
        "dtype": dtype,
        "entry": kernel.name,
        "tolerance": TOLERANCE[dtype],
        "buffers": [{"name": n.removesuffix("_ptr"), "writable": writable[n]} for n in buffers],
        "launches": [_record_launch(program, rows, dtype) for rows in ROWS],
        "texts": [_strip_comments(fault.change(kernel.source)) for fault in FAULTS],
    }


def _record_launch(program: HostProgram, rows: int, dtype: str) -> dict:
    """The grid and the scalars that TVM's host code passes for `rows` rows; no kernel runs."""
    launches: list[Launch] = []
    shapes = [(rows, 1, HIDDEN_SIZE)] * 2 + [(HIDDEN_SIZE,)] + [(rows, 1, HIDDEN_SIZE)] * 2
    program.run(launches.append, [np.zeros(shape, dtype) for shape in shapes])
    (launch,) = launches
    given = zip(launch.arguments, launch.kernel.dtypes, strict=True)
    scalars = [int(value) for value, kind in given if kind != "handle"]
    # after the scalars, WGSL's uniform block holds packGridDimX, the number of the last block
    return {"rows": rows, "grid": list(launch.grid), "scalars": [*scalars, launch.grid[0] - 1]}


def _strip_comments(text: str) -> str:
    """`text` without the comments and empty lines that TVM puts around it."""
    lines = [line for line in text.splitlines() if not line.startswith("//")]
    return "\n".join(lines).strip() + "\n"


class BrowserKernel:
    """The part of a page with the text, the choices, the verdict and the list of runs."""

    def __str__(self) -> str:
        return "A kernel that a browser runs: see docs/webgpu.md on the course's site."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        facts = describe_kernels()
        data = json.dumps(facts).replace("</", "<\\/")
        text = facts["kernels"][0]["texts"][0]
        dtypes = _render_options(kernel["dtype"] for kernel in facts["kernels"])
        faults = _render_options(fault["title"] for fault in facts["faults"])
        rows = _render_options(map(str, ROWS), chosen=1)
        heads = ("run", "dtype", "text", "rows", "wrong rows", "error", "time", "GB/s")
        return f"""<div class="webgpu" id="webgpu">
<p class="webgpu-device" id="webgpu-device" role="status">Running needs JavaScript, which is off here.</p>
<div class="webgpu-choices">
<label>Elements <select id="webgpu-dtype">{dtypes}</select></label>
<label>Text <select id="webgpu-fault">{faults}</select></label>
<label>Rows <select id="webgpu-rows">{rows}</select></label>
</div>
<p class="webgpu-says" id="webgpu-says">{html.escape(facts["faults"][0]["says"])}</p>
<label class="webgpu-label" for="webgpu-text">The kernel, in WGSL. Edit it as you like.</label>
<textarea id="webgpu-text" rows="24" wrap="off" spellcheck="false" autocomplete="off" autocapitalize="off"
 aria-describedby="webgpu-keys">
{html.escape(text)}</textarea>
<p class="webgpu-keys" id="webgpu-keys">Ctrl+Enter (⌘+Enter) runs. Tab leaves the text.</p>
<div class="webgpu-choices">
<button type="button" class="md-button" id="webgpu-run" disabled>Run and check</button>
<button type="button" class="md-button" id="webgpu-reset" disabled>Undo my edits</button>
<label><input type="checkbox" id="webgpu-poison" checked> fill workgroup memory with poison first</label>
</div>
<div class="webgpu-verdict" id="webgpu-verdict" role="status">Nothing has run yet.</div>
<div class="row-map" id="webgpu-map" hidden></div>
<table id="webgpu-runs" hidden><caption>Your runs, the last one first</caption>
<thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr></thead><tbody></tbody></table>
<script type="application/json" id="webgpu-facts">{data}</script>
</div>"""


def _render_options(titles, chosen: int = 0) -> str:
    return "".join(
        f'<option value="{n}"{" selected" if n == chosen else ""}>{html.escape(title)}</option>'
        for n, title in enumerate(titles)
    )
