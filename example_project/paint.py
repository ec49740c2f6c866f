"""Paints the demo's pictures; run it only to make ``photos/`` anew.  Uses nothing but Pillow.

The pictures are made from gradients, polygons and seeded random numbers, so they are nobody's
photographs and free of any rights: ``python -m example_project.paint``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
WIDE, TALL = (900, 600), (600, 900)
FINE = 2  # drawn this many times larger, then reduced: smooth edges
PHOTOS = Path(__file__).parent / "photos"


def dice(seed: int) -> random.Random:
    """Random numbers that are the same at every run."""
    return random.Random(seed)


def sky(size: tuple[int, int], stops: Sequence[Colour]) -> Image.Image:
    """A vertical gradient through the colours, top to bottom."""
    strip = Image.new("RGB", (1, len(stops)))
    strip.putdata(list(stops))
    return strip.resize((size[0] * FINE, size[1] * FINE), Image.Resampling.BICUBIC)


def ridge(rng: random.Random, width: int, level: float, rough: float) -> list[float]:
    """Heights of a mountain line, one for each step of ``width``, by midpoint displacement."""
    points = [level, level]
    while len(points) < width // 8:
        mids = [(a + b) / 2 + rng.uniform(-rough, rough) for a, b in pairwise(points)]
        points = [p for pair in zip(points, mids, strict=False) for p in pair] + [points[-1]]
        rough *= 0.52
    return points


def hills(img: Image.Image, heights: Sequence[float], colour: Colour) -> None:
    """Fill everything below the line of heights."""
    width, height = img.size
    step = width / (len(heights) - 1)
    line = [(i * step, y) for i, y in enumerate(heights)]
    ImageDraw.Draw(img).polygon([(0, height), *line, (width, height)], fill=colour)


def glow(img: Image.Image, centre: tuple[float, float], radius: float, colour: Colour) -> None:
    """Add a soft light."""
    side = int(radius * 2)
    light = ImageChops.invert(Image.radial_gradient("L"))
    rim = 74  # what is left at the middle of a side: subtracted, so that no edge shows
    light = light.point([max(0, v - rim) ** 2 // (255 - rim) for v in range(256)])
    light = light.resize((side, side), Image.Resampling.BICUBIC)
    mask = Image.new("L", img.size)
    mask.paste(light, (int(centre[0] - radius), int(centre[1] - radius)))
    lit = ImageChops.screen(img, Image.new("RGB", img.size, colour))
    img.paste(lit, (0, 0), mask)


def disc(img: Image.Image, x: float, y: float, r: float, colour: Colour) -> None:
    """A filled circle."""
    ImageDraw.Draw(img).ellipse((x - r, y - r, x + r, y + r), fill=colour)


def blend(a: Colour, b: Colour, share: float) -> Colour:
    """The colour between two others."""
    return tuple(round(p + (q - p) * share) for p, q in zip(a, b, strict=True))  # type: ignore[return-value]


def layered_mountains(seed: int, stops: Sequence[Colour], far: Colour, near: Colour) -> Image.Image:
    """Ridges behind ridges, paler with distance."""
    rng, img = dice(seed), sky(WIDE, stops)
    w, h = img.size
    glow(img, (w * 0.68, h * 0.42), h * 0.55, (255, 214, 150))
    disc(img, w * 0.68, h * 0.42, h * 0.055, (255, 240, 205))
    for i in range(6):
        level = h * (0.50 + 0.085 * i)
        hills(img, ridge(rng, w, level, h * (0.15 - 0.015 * i)), blend(far, near, i / 5))
    return img


def sea_at_dusk() -> Image.Image:
    """A sun on the horizon and its light on the water."""
    rng, img = dice(5), sky(WIDE, [(38, 30, 80), (150, 60, 110), (250, 140, 90)])
    w, h = img.size
    horizon = int(h * 0.58)
    water = img.crop((0, 0, w, horizon)).transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    disc(img, w * 0.5, horizon, h * 0.13, (255, 226, 150))
    img.paste(
        ImageChops.multiply(water, Image.new("RGB", water.size, (150, 150, 190))), (0, horizon)
    )
    glow(img, (w * 0.5, horizon), h * 0.5, (255, 170, 90))
    draw = ImageDraw.Draw(img)
    for _ in range(420):
        depth = rng.random() ** 1.6
        y = horizon + depth * (h - horizon)
        x, half = rng.gauss(w / 2, w * (0.03 + 0.12 * depth)), 8 + 60 * depth * rng.random()
        draw.line(
            (x - half, y, x + half, y), fill=blend((255, 220, 150), (240, 120, 90), depth), width=3
        )
    return img


def starry_night() -> Image.Image:
    """Stars, a moon and fir trees, in portrait format."""
    rng, img = dice(11), sky(TALL, [(4, 8, 30), (12, 26, 66), (40, 66, 110)])
    w, h = img.size
    for _ in range(520):
        shade = rng.randint(110, 255)
        disc(
            img,
            rng.random() * w,
            rng.random() ** 1.4 * h * 0.85,
            rng.choice((1, 1, 2, 2, 3)),
            (shade, shade, 255),
        )
    glow(img, (w * 0.3, h * 0.2), w * 0.42, (190, 205, 255))
    disc(img, w * 0.3, h * 0.2, w * 0.075, (246, 244, 228))
    for x, y, r in [(0.275, 0.185, 0.018), (0.325, 0.205, 0.024), (0.295, 0.228, 0.012)]:
        disc(img, w * x, h * y, w * r, (226, 224, 210))
    hills(img, ridge(rng, w, h * 0.80, h * 0.05), (14, 26, 46))
    for x in sorted((rng.uniform(0, w) for _ in range(34)), key=lambda x: abs(x - w / 2)):
        fir(img, x, h * rng.uniform(0.93, 1.02), h * rng.uniform(0.10, 0.24), (5, 12, 22))
    return img


def fir(img: Image.Image, x: float, foot: float, tall: float, colour: Colour) -> None:
    """A fir tree of five tiers."""
    draw = ImageDraw.Draw(img)
    for tier in range(5):
        top, base = foot - tall * (1 - tier * 0.16), foot - tall * (0.70 - tier * 0.16)
        half = tall * (0.07 + tier * 0.045)
        draw.polygon([(x, top), (x - half, base), (x + half, base)], fill=colour)


def balloons() -> Image.Image:
    """Striped balloons over hills."""
    rng, img = dice(3), sky(WIDE, [(96, 170, 226), (176, 216, 240), (250, 236, 214)])
    w, h = img.size
    for i in range(3):
        tone = blend((150, 190, 150), (52, 110, 70), i / 2)
        hills(img, ridge(rng, w, h * (0.74 + 0.09 * i), h * 0.05), tone)
    palettes: list[tuple[Colour, Colour]] = [
        ((214, 64, 58), (250, 222, 150)),
        ((58, 92, 170), (240, 240, 246)),
        ((232, 150, 44), (120, 50, 96)),
    ]
    for (x, y, r), colours in zip(
        [(0.28, 0.34, 0.17), (0.63, 0.25, 0.11), (0.84, 0.47, 0.075)], palettes, strict=True
    ):
        balloon(img, w * x, h * y, h * r, colours)
    return img


def balloon(img: Image.Image, x: float, y: float, r: float, colours: tuple[Colour, Colour]) -> None:
    """A hot-air balloon; its stripes are ever narrower ellipses."""
    draw = ImageDraw.Draw(img)
    draw.polygon(
        [
            (x - r * 0.86, y + r * 0.5),
            (x + r * 0.86, y + r * 0.5),
            (x + r * 0.16, y + r * 1.55),
            (x - r * 0.16, y + r * 1.55),
        ],
        fill=blend(colours[0], (0, 0, 0), 0.15),
    )
    for i, part in enumerate((1.0, 0.80, 0.58, 0.36, 0.14)):
        draw.ellipse((x - r * part, y - r, x + r * part, y + r), fill=colours[i % 2])
    draw.line((x - r * 0.14, y + r * 1.55, x - r * 0.11, y + r * 1.85), fill=(60, 44, 34), width=3)
    draw.line((x + r * 0.14, y + r * 1.55, x + r * 0.11, y + r * 1.85), fill=(60, 44, 34), width=3)
    draw.rounded_rectangle(
        (x - r * 0.14, y + r * 1.8, x + r * 0.14, y + r * 2.05), r * 0.04, fill=(122, 82, 48)
    )


def city_at_night() -> Image.Image:
    """A skyline with lit windows."""
    rng, img = (
        dice(8),
        sky(WIDE, [(14, 14, 40), (44, 34, 84), (150, 84, 110), (240, 150, 110)]),
    )
    w, h = img.size
    draw = ImageDraw.Draw(img)
    for row, tone in enumerate([(58, 46, 92), (34, 30, 66), (16, 16, 38)]):
        x = -20.0
        while x < w:
            wide = rng.uniform(0.05, 0.11) * w
            top = h * rng.uniform(0.30 + 0.13 * row, 0.62 + 0.12 * row)
            draw.rectangle((x, top, x + wide, h), fill=tone)
            windows(draw, rng, (x, top, x + wide, h), row)
            x += wide + rng.uniform(2, 16)
    return img


def windows(
    draw: ImageDraw.ImageDraw,
    rng: random.Random,
    house: tuple[float, float, float, float],
    row: int,
) -> None:
    """Light about a third of a house's windows."""
    step = 16 + 6 * row
    left, top, right, bottom = (int(v) for v in house)
    for y in range(top + step, bottom - step, step):
        for x in range(left + step // 2, right - step // 2, step):
            if rng.random() < 0.32:
                light = blend((90, 80, 90), (255, 214, 130), 0.4 + 0.3 * row)
                draw.rectangle((x, y, x + step * 0.4, y + step * 0.55), fill=light)


def misty_forest() -> Image.Image:
    """Firs that fade into the mist, in shades of grey."""
    rng, img = dice(21), sky(WIDE, [(226, 228, 228), (206, 210, 212), (188, 194, 198)])
    w, h = img.size
    for layer in range(6):
        shade = 190 - layer * 31
        foot = h * (0.62 + 0.085 * layer)
        for _ in range(34 - 3 * layer):
            fir(
                img,
                rng.random() * w,
                foot + rng.uniform(0, h * 0.05),
                h * rng.uniform(0.16, 0.30 + 0.04 * layer),
                (shade, shade, shade),
            )
        hills(img, ridge(rng, w, foot, h * 0.02), (shade, shade, shade))
        img = Image.blend(
            img, Image.new("RGB", img.size, (214, 218, 220)), 0.12 if layer < 5 else 0.0
        )
    return img.convert("L")


def dunes() -> Image.Image:
    """Sand in evening light, with shaded flanks."""
    img = sky(WIDE, [(92, 150, 196), (208, 206, 190), (250, 214, 160)])
    w, h = img.size
    disc(img, w * 0.2, h * 0.2, h * 0.05, (255, 250, 230))
    for i in range(5):
        base, swell, phase = h * (0.48 + 0.11 * i), h * 0.07, i * 1.9
        crest = [
            base + swell * math.sin(x * 0.045 + phase) + swell * 0.4 * math.sin(x * 0.11 - phase)
            for x in range(113)
        ]
        hills(img, crest, blend((244, 196, 130), (186, 104, 58), i / 4))
        shade = [
            y + h * (0.028 + 0.02 * math.sin(x * 0.045 + phase + 1.2)) for x, y in enumerate(crest)
        ]
        hills(img, shade, blend((226, 170, 106), (160, 84, 48), i / 4))
    return img


def paper_leaf() -> Image.Image:
    """A leaf as a cut-out with a transparent background."""
    img = Image.new("RGBA", (600 * FINE, 600 * FINE), (0, 0, 0, 0))
    w, h = img.size
    draw = ImageDraw.Draw(img)
    edge = [
        (w * (0.5 + side * 0.33 * math.sin(math.pi * t) ** 0.8), h * (0.94 - 0.86 * t))
        for side in (-1, 1)
        for t in ([i / 60 for i in range(61)][::side])
    ]
    draw.polygon(edge, fill=(72, 140, 82, 255))
    draw.polygon([(w / 2, h * 0.94), *edge[61:], (w / 2, h * 0.08)], fill=(94, 166, 98, 255))
    for i in range(1, 8):
        y = h * (0.90 - 0.095 * i)
        reach = w * 0.24 * math.sin(math.pi * (0.1 + 0.105 * i)) ** 0.8
        for side in (-1, 1):
            draw.line(
                (w / 2, y, w / 2 + side * reach, y - reach * 0.6),
                fill=(206, 226, 178, 255),
                width=7,
            )
    draw.line((w / 2, h * 0.99, w / 2, h * 0.10), fill=(206, 226, 178, 255), width=12)
    return img


def finish(img: Image.Image) -> Image.Image:
    """Reduce to the final size, which smooths the edges."""
    small = img.resize((img.width // FINE, img.height // FINE), Image.Resampling.LANCZOS)
    return small if small.mode == "RGBA" else small.filter(ImageFilter.GaussianBlur(0.4))


def main() -> None:
    """Write every picture."""
    PHOTOS.mkdir(exist_ok=True)
    morning = layered_mountains(
        2, [(120, 160, 210), (250, 214, 180), (255, 236, 200)], (186, 170, 190), (34, 48, 74)
    )
    evening = layered_mountains(
        14, [(70, 50, 110), (230, 110, 110), (255, 190, 120)], (206, 120, 120), (44, 18, 50)
    )
    jpegs = {
        "balloons": balloons(),
        "city-at-night": city_at_night(),
        "dunes": dunes(),
        "evening-hills": evening,
        "misty-forest": misty_forest(),
        "morning-hills": morning,
        "sea-at-dusk": sea_at_dusk(),
        "starry-night": starry_night(),
    }
    for name, img in jpegs.items():
        small, exif = finish(img), Image.Exif()
        if name == "dunes":  # stored lying on its side, as cameras do: must come out upright
            small, exif[0x0112] = small.transpose(Image.Transpose.ROTATE_90), 6
        small.save(PHOTOS / f"{name}.jpg", quality=78, optimize=True, progressive=True, exif=exif)
    finish(paper_leaf()).quantize(64).save(PHOTOS / "paper-leaf.png", optimize=True)


if __name__ == "__main__":
    main()
