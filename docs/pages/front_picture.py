"""Draws the picture of the front page: the end of a decoder layer before and after fusion.

`python -m docs.pages.front_picture` writes docs/images/fusion.svg. A test compares the file with what this draws.
"""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.picture import Picture, picture
from chapters.runner.course import ROOT
from docs.pages.front import FUSION

IMAGE = ROOT / "docs" / "images" / "fusion.svg"
GAP = 48
CAPTION = 34
COLOURS = (
    "svg{color:#1f2328}@media (prefers-color-scheme:dark){svg{color:#e6edf3}}"
    ".caption{font:600 14px system-ui,sans-serif;fill:currentColor;text-anchor:middle}"
)


def make_residual_step() -> tvm.IRModule:
    """main(x, residual, w): x @ w.T + residual, as after attention in a decoder layer."""
    return relax_module("""
def main(x: ("n", 4096), residual: ("n", 4096), w: (4096, 4096)):
    lv = R.permute_dims(w)
    lv1 = R.matmul(x, lv)
    gv = R.add(lv1, residual)
""")


def lower_to_kernels(mod: tvm.IRModule, *, fused: bool) -> tvm.IRModule:
    """`mod` as kernels: one for each operator, or with TVM's own fusion passes first."""
    names = FUSION if fused else ["LegalizeOps"]
    passes = [getattr(relax.transform, name)() for name in names]
    return tvm.transform.Sequential(passes)(mod)


def draw_document() -> str:
    """Both pictures side by side in one SVG that follows the reader's light or dark mode."""
    mod = make_residual_step()
    before = picture(lower_to_kernels(mod, fused=False), title="before")
    after = picture(lower_to_kernels(mod, fused=True), title="after")
    width = round(before.layout.width + after.layout.width + GAP)
    height = round(max(before.layout.height, after.layout.height)) + CAPTION
    after_at = round(before.layout.width + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>Before fusion {before.caption}, after it '
        f"{after.caption}</title><style>{COLOURS}</style>"
        f"{_place(before, 0)}{_place(after, after_at)}</svg>\n"
    )


def _place(drawn: Picture, x: int) -> str:
    width, height = drawn.layout.width, drawn.layout.height
    place = f'<svg x="{x}" y="{CAPTION}" width="{width}" height="{height}" '
    inner = drawn.svg.replace("<svg ", place, 1)
    caption = f"{drawn.title}: {drawn.caption}"
    return f'<text class="caption" x="{x + width / 2:g}" y="20">{caption}</text>{inner}'


def main() -> None:
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    IMAGE.write_text(draw_document(), encoding="utf-8", newline="\n")
    print(f"wrote {IMAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
