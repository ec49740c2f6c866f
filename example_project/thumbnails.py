"""Efficiency: a picture that is being made right now is not made a second time beside that.

With ``base=LockedTask`` the lock's key is the task's name and its argument.  A call that finds
the picture in the making ends at once, with a result that names who is at it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from PIL import Image, ImageFilter, ImageOps

from celery_redlock import LockedTask
from example_project.journal import Journal
from example_project.settings import out
from example_project.shop import app

SIZES = (720, 360, 120)  # pixels of the longer side


@app.task(base=LockedTask)
def make_thumbnail(photo: str) -> dict[str, Any]:
    """Make a picture's thumbnails; skipped while another worker is making the same ones."""
    return develop(Path(photo))


@app.task
def make_thumbnail_without_lock(photo: str) -> dict[str, Any]:
    """The same as a plain task, to see what the lock is for."""
    return develop(Path(photo))


def develop(photo: Path) -> dict[str, Any]:
    """Write a picture's thumbnails, one for each size, and say so in the journal."""
    with Journal(out() / "journal.jsonl").body(photo.name):
        picture = upright(photo)
        return {"photo": photo.name, "files": [reduce(picture, photo.name, size) for size in SIZES]}


def upright(photo: Path) -> Image.Image:
    """The picture as it is meant to be seen, in colours that a browser can show."""
    with Image.open(photo) as img:
        img.draft("RGB", (SIZES[0] * 2, SIZES[0] * 2))  # a large JPEG needn't be decoded in full
        turned = ImageOps.exif_transpose(img)
        return turned.convert("RGBA" if turned.has_transparency_data else "RGB")


def reduce(picture: Image.Image, name: str, size: int) -> str:
    """Write one thumbnail and give its file name; readers never see half a file."""
    small = picture.copy()
    small.thumbnail((size, size), Image.Resampling.LANCZOS)
    small = small.filter(ImageFilter.UnsharpMask(radius=1.2, percent=60))
    folder = out() / "thumbnails"
    folder.mkdir(exist_ok=True)
    target = folder / f"{name}.{size}.webp"
    draft = folder / f".{target.name}.{os.getpid()}"
    small.save(draft, "WEBP", quality=82)
    draft.replace(target)
    return target.name
