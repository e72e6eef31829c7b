"""Sound files made unsound: bytes, words, JSON trees and named arrays, each by a random number."""

import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

DTYPES = ("f2", "f8", "i1", "u8", "i4", "?", "c8", "U3", "S2", ">f4")
KEYS = ("x\x1b[2J", "timeouts", "next_observations", "infos")
WORDS = ("", "\x00", "{", "[" * 9999)
LONG = 1 << 16
"""Characters from which a text is not multiplied any more: 200 times 200 lines are memory of the
fuzzing, and not of what it tries."""
NUMBERS = ("0", "-1", "1e999", "-1e308", "nan", "9" * 40, "18446744073709551616", "0.5", "1e-320")
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), 1e-320, 0.5),
    *("", "text", "\x1b[2J", "../../etc/passwd", "9" * 5000, [], {}, [[]], {"a": {}}, [None] * 50),
)
INTEGERS = (0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def of_bytes(rng: random.Random, content: bytes) -> bytes:
    """A few flips, cuts, repeats and extreme integers."""
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8))):
        place, size = rng.randrange(len(data)), rng.choice((1, 2, 4, 8, 64, 500))
        act = rng.randrange(7)
        if act == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif act == 1:
            del data[place:]
        elif act == 2:
            del data[place : place + size]
        elif act == 3:
            data[place:place] = data[place : place + size] * rng.choice((1, 2, 50))
        elif act == 4:
            data[place : place + size] = rng.randbytes(size)
        elif act == 5:
            width = rng.choice((4, 8))
            number = rng.choice(INTEGERS) % 256**width
            data[place : place + width] = number.to_bytes(width, rng.choice(("little", "big")))
        else:
            data[place:place] = rng.randbytes(size)
        data = data or bytearray(b"\0")
    return bytes(data)


def of_text(rng: random.Random, content: bytes) -> bytes:
    """Numbers, words and lines exchanged, dropped, repeated or nested; or bytes as above."""
    if rng.random() < 0.3:
        return of_bytes(rng, content)
    text = content.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2, 5))):
        pieces = list(re.finditer(r"-?\d[\w.+-]*|\w+|[^\w\s]", text[: 4 * LONG]))
        lines = text.splitlines(keepends=True) or [""]
        act = rng.randrange(6)
        if act < 3 and pieces:
            piece = rng.choice(pieces)
            other = rng.choice((*rng.choices(NUMBERS, k=3), rng.choice(pieces).group(0), *WORDS))
            text = text[: piece.start()] + other + text[piece.end() :]
        elif act == 3:
            del lines[rng.randrange(len(lines))]
            text = "".join(lines)
        elif act == 4:
            place = rng.randrange(len(lines))
            line, times = rng.choice(lines), rng.choice((1, 3, 200))
            lines[place:place] = [line] * (times if len(text) < LONG else 1)
            text = "".join(lines)
        else:
            rng.shuffle(lines)
            text = "".join(lines)
    return text.encode("utf-8", "replace")


def of_tree(rng: random.Random, value: Any) -> Any:
    """A tree with one part of it another value, missing, or added."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: of_tree(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value[:place] + value[place + 1 :]
        return [*value[:place], of_tree(rng, value[place]), *value[place + 1 :]]
    return rng.choice(VALUES)


def of_json(rng: random.Random, content: bytes) -> bytes:
    if rng.random() < 0.3:
        return of_text(rng, content)
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 3))):
        tree = of_tree(rng, tree)
    return json.dumps(tree).encode()


def of_json_lines(rng: random.Random, content: bytes) -> bytes:
    if rng.random() < 0.4:
        return of_text(rng, content)
    lines = content.splitlines(keepends=True)
    for _ in range(rng.choice((1, 3))):
        place = rng.randrange(len(lines))
        lines[place] = json.dumps(of_tree(rng, json.loads(lines[place]))).encode() + b"\n"
    return b"".join(lines)


def of_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """Another type, shape or size, or values that no sensor has."""
    act = rng.randrange(9)
    rows = len(array) if array.ndim else 0
    with np.errstate(all="ignore"):
        if act == 0:
            return array.astype(rng.choice(DTYPES))
        if act == 1:
            return array[: rng.choice((0, 1, max(rows - 1, 0)))] if array.ndim else array[None]
        if act == 2:
            return array.T
        if act == 3:
            return array.reshape(-1)
        if act == 4:
            return array[..., None]
        if act == 5:
            return np.zeros((0, 0))
        if act == 6:
            return np.repeat(array, 2, axis=-1) if array.ndim else array
        changed = np.array(array)
        if changed.size and changed.dtype.kind in "fiu":
            odd = rng.choice((np.nan, np.inf, 1e38, -1e38, 127, -1, 0))
            where = rng.randrange(changed.size) if act == 7 else slice(None)
            changed.reshape(-1)[where] = np.array(odd).astype(changed.dtype)
        return changed


def of_arrays(rng: random.Random, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Named arrays, some changed, missing, renamed or added."""
    changed = dict(arrays)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(arrays))
        act = rng.random()
        if act < 0.7 and name in changed:
            changed[name] = of_array(rng, changed[name])
        elif act < 0.8:
            changed.pop(name, None)
        elif act < 0.9:
            changed[rng.choice(("x\x1b[2J", "timeouts", "next_observations", "infos"))] = arrays[
                name
            ]
        else:
            changed[name] = arrays[rng.choice(list(arrays))]
    return changed


def of_zip(rng: random.Random, content: bytes) -> bytes:
    """An archive whose members are damaged inside, with checksums that hold."""
    if rng.random() < 0.3:
        return of_bytes(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    body = members[name]
    if rng.random() < 0.6:  # the header, which is text: '{'descr': '<f4', 'shape': (40, 3), }'
        members[name] = of_text(rng, body[:128]) + body[128:]
    else:
        members[name] = of_bytes(rng, body)
    out = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(out, "w", method) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return out.getvalue()


Mutation = Callable[[random.Random, bytes], bytes]
