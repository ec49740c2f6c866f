"""Finds the pictures to work on, and says clearly what is wrong with a folder that has none."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

SHIPPED = Path(__file__).resolve().parent.parent / "photos"
AT_MOST = 24


class NoPictures(Exception):
    """A folder that can't be used; the message says why and what to do."""


@dataclass(frozen=True)
class Pictures:
    """What was found.

    Attributes:
        files: the pictures, in the order of their names.
        left_out: the other files that look or should have been pictures, and why not.
        more: how many further files were not even looked at, since there are enough.
    """

    files: list[Path]
    left_out: dict[str, str]
    more: int = 0


def find(folder: str | None) -> Pictures:
    """The pictures of a folder, each of them decoded once to be sure.

    Args:
        folder: as the user gave it in ``PHOTOS``; None or empty: the shipped pictures.

    Raises:
        NoPictures: the folder is missing, can't be read, or has no picture in it.
    """
    where = Path(folder).expanduser() if folder else SHIPPED
    named = f"PHOTOS={folder}" if folder else str(SHIPPED)
    candidates = _files(where, named)
    good: list[Path] = []
    left_out: dict[str, str] = {}
    while candidates and len(good) < AT_MOST:
        path = candidates.pop(0)
        fault = _fault(path)
        if fault is None:
            good.append(path.resolve())
        else:
            left_out[ascii(path.name)[1:-1]] = fault
    if not good:
        raise NoPictures(f"{named}: no picture among its files.\n{_listed(left_out)}")
    return Pictures(good, left_out, len(candidates))


def _files(where: Path, named: str) -> list[Path]:
    """The files of the folder that aren't hidden, by name."""
    try:
        if not where.exists():
            raise NoPictures(f"{named}: there is no such folder.")
        if not where.is_dir():
            raise NoPictures(f"{named}: this is a file; name the folder that it is in.")
        entries = sorted(p for p in where.iterdir() if not p.name.startswith("."))
        files = [p for p in entries if p.is_file()]
    except OSError as exc:
        raise NoPictures(f"{named}: this folder can't be read ({exc.strerror}).") from exc
    if not files:
        inside = "has only folders in it, which are not searched" if entries else "is empty"
        raise NoPictures(f"{named}: this folder {inside}; name one with pictures in it.")
    return files


def _fault(path: Path) -> str | None:
    """Why this file can't be used; None if it can."""
    if not path.name.isprintable():  # nor can it be sent in a message, if it isn't UTF-8
        return "its name has characters that can't be shown"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as img:
                img.draft("RGB", (64, 64))  # decodes a JPEG in full, but small
                img.load()
    except UnidentifiedImageError:
        return "not a picture that Pillow can read"
    except Image.DecompressionBombError:
        return "more pixels than Pillow opens"
    except OSError as exc:
        return f"can't be read: {exc.strerror or exc}"
    except (SyntaxError, ValueError) as exc:  # what Pillow's decoders raise for broken files
        return f"a broken picture: {exc}"
    return None


def _listed(left_out: dict[str, str], at_most: int = 8) -> str:
    lines = [f"  {name}: {why}" for name, why in list(left_out.items())[:at_most]]
    rest = len(left_out) - at_most
    return "\n".join([*lines, f"  ... and {rest} more"] if rest > 0 else lines)


def remarks(pictures: Pictures) -> list[str]:
    """What the user should know about files that take no part."""
    said = []
    if pictures.left_out:
        said.append(f"Left out {len(pictures.left_out)}:\n{_listed(pictures.left_out)}")
    if pictures.more:
        said.append(f"Took the first {AT_MOST} by name; {pictures.more} more were not looked at.")
    return said
