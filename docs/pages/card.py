"""The picture that a link to a page shows elsewhere: the course's name, the page's title and a line beneath it."""

from __future__ import annotations

import io
import textwrap
from functools import cache
from pathlib import Path

SIZE = (1200, 630)
PAPER, INK, MUTED, ACCENT = "#fdfcfa", "#26231f", "#635d55", "#c96f12"
MARGIN = 90
COLOURS = 24  # shades in the file; more would only make it larger


@cache
def _font(name: str, size: int):
    """A font that comes with matplotlib, so that it is there wherever the site is built."""
    import matplotlib
    from PIL import ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(folder / f"{name}.ttf", size)


def card(title: str, beneath: str, site: str = "Fusion by Hand") -> bytes:
    """A PNG of SIZE."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 24, SIZE[1]), fill=ACCENT)
    draw.text((MARGIN, 70), site, font=_font("DejaVuSerif-Bold", 34), fill=MUTED)
    large = len(title) <= 44
    lines = textwrap.wrap(title, 23 if large else 32)[:4]
    font = _font("DejaVuSerif-Bold", 72 if large else 52)
    draw.multiline_text((MARGIN, 170), "\n".join(lines), font=font, fill=INK, spacing=14)
    below = "\n".join(textwrap.wrap(beneath, 62)[:2])
    draw.multiline_text(
        (MARGIN, SIZE[1] - 130), below, font=_font("DejaVuSans", 28), fill=MUTED, spacing=8
    )
    written = io.BytesIO()
    image.quantize(COLOURS).save(written, "PNG", optimize=True)
    return written.getvalue()
