"""Frames of an episode as a film strip and as a moving picture."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

Frame = UInt8[np.ndarray, "height width 3"]

STRIP = 6
"""Pictures of a strip."""
_WIDTH = 200  # pixels of a picture


@dataclass(frozen=True)
class Reel:
    """One episode: a strip to print and a film to play; neither where nothing can be shown."""

    text: str
    """What it shows, or why there is nothing to show."""
    strip: bytes | None = None
    """PNG."""
    film: bytes | None = None
    """GIF."""


def reel(frames: Sequence[Frame], text: str) -> Reel:
    """A reel of frames that are evenly spread over an episode."""
    pictures = [_small(frame) for frame in frames]
    return Reel(text, _strip(pictures), _film(pictures))


def _small(frame: Frame) -> Image.Image:
    picture = Image.fromarray(frame)
    height = max(1, round(picture.height * _WIDTH / picture.width))
    return picture.resize((_WIDTH, height), Image.Resampling.LANCZOS)


def _strip(pictures: Sequence[Image.Image]) -> bytes:
    places = np.linspace(0, len(pictures) - 1, min(STRIP, len(pictures))).round().astype(int)
    gap = 6
    width, height = pictures[0].size
    sheet = Image.new("RGBA", (len(places) * (width + gap) - gap, height))
    for number, place in enumerate(places):
        sheet.paste(pictures[place], (number * (width + gap), 0))
    return _written(sheet.quantize(128), "PNG", optimize=True)


def _film(pictures: Sequence[Image.Image]) -> bytes:
    first, *rest = (picture.quantize(64) for picture in pictures)
    return _written(
        first, "GIF", save_all=True, append_images=rest, duration=80, loop=0, optimize=True
    )


def _written(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()
