"""Draws the picture of the front page: the end of a decoder layer before and after fusion.

`python -m chapters.toolkit.pages.front_picture` writes docs/images/fusion.svg; a test holds that the file is what this
draws.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx

from chapters.toolkit.course import ROOT
from chapters.toolkit.pages.picture import Pair, Picture, picture

IMAGE = ROOT / "docs" / "images" / "fusion.svg"
GAP = 48
CAPTION = 34
COLOURS = (
    "svg{color:#1f2328}@media (prefers-color-scheme:dark){svg{color:#e6edf3}}"
    ".caption{font:600 14px system-ui,sans-serif;fill:currentColor;text-anchor:middle}"
)


def residual_step() -> tvm.IRModule:
    """main(x, residual, w): x @ w.T + residual, as after attention in a decoder layer."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4096), "float32"))
    residual = relax.Var("residual", relax.TensorType((n, 4096), "float32"))
    w = relax.Var("w", relax.TensorType((4096, 4096), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, residual, w]):
        with builder.dataflow():
            wt = builder.emit(relax.op.permute_dims(w))
            y = builder.emit(relax.op.matmul(x, wt))
            out = builder.emit_output(relax.op.add(y, residual))
        builder.emit_func_output(out)
    return builder.get()


def lowered(mod: tvm.IRModule, *, fused: bool) -> tvm.IRModule:
    """`mod` as kernels: one for each operator, or with TVM's own fusion passes first."""
    fusion = [relax.transform.FuseTransposeMatmul()] if fused else []
    merge = [
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    passes = [*fusion, relax.transform.LegalizeOps(), *(merge if fused else [])]
    return tvm.transform.Sequential(passes)(mod)


def before_and_after() -> Pair:
    mod = residual_step()
    return Pair(
        picture(lowered(mod, fused=False), title="before"),
        picture(lowered(mod, fused=True), title="after"),
    )


def document() -> str:
    """Both pictures side by side in one SVG that follows the reader's light or dark mode."""
    both = before_and_after()
    width = round(both.before.layout.width + both.after.layout.width + GAP)
    height = round(max(both.before.layout.height, both.after.layout.height)) + CAPTION
    after_at = round(both.before.layout.width + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>Before fusion {both.before.caption}, after it '
        f"{both.after.caption}</title><style>{COLOURS}</style>"
        f"{_placed(both.before, 0)}{_placed(both.after, after_at)}</svg>\n"
    )


def _placed(drawn: Picture, x: int) -> str:
    width, height = drawn.layout.width, drawn.layout.height
    inner = drawn.svg.replace(
        "<svg ", f'<svg x="{x}" y="{CAPTION}" width="{width}" height="{height}" ', 1
    )
    caption = f"{drawn.title}: {drawn.caption}"
    return f'<text class="caption" x="{x + width / 2:g}" y="20">{caption}</text>{inner}'


def main() -> None:
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    IMAGE.write_text(document(), encoding="utf-8", newline="\n")
    print(f"wrote {IMAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
