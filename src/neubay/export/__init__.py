"""A trained policy as files that are read elsewhere: NumPy alone, ONNX, StableHLO; and its card."""

from pathlib import Path
from typing import Any, Literal, get_args

from neubay.errors import NeubayError, RunError
from neubay.export.card import TITLE, Origin, card
from neubay.runs import rundir
from neubay.runs.files import atomic, atomic_write_json, note_array, read_note, write_arrays

Format = Literal["numpy", "onnx", "stablehlo"]
FILES: dict[str, tuple[str, ...]] = {
    "numpy": ("policy.npz", "policy.py", "card.md"),
    "onnx": ("policy.onnx", "card.md"),
    "stablehlo": ("policy.stablehlo", "policy.json", "card.md"),
}
"""What each format writes, the card last."""


def write(mode: Any, note: dict[str, Any], to: Format, out: Path, origin: Origin) -> list[Path]:
    """Write a policy, its greedy form and the note of its file, into a folder; returns what was
    written, the card last."""
    # JAX is imported here, so that a card is printed at once.
    from neubay.export import onnx_graph, stablehlo
    from neubay.export.plain import metadata, plain

    if to not in get_args(Format):
        raise NeubayError(f"unknown format '{to}'; known: {', '.join(get_args(Format))}")
    written = [out / name for name in FILES[to]]
    _refuse_others(out, written)
    policy = plain(mode, note)
    if to == "numpy":
        with atomic(written[0]) as draft:
            write_arrays(draft, {"about": note_array(policy.about)} | policy.arrays)
        with atomic(written[1]) as draft:
            draft.write_bytes(Path(__file__).with_name("standalone.py").read_bytes())
    elif to == "onnx":
        with atomic(written[0]) as draft:
            onnx_graph.write_onnx(policy, draft)
    else:
        with atomic(written[0]) as draft:
            stablehlo.write_stablehlo(mode, policy, draft)
        atomic_write_json(written[1], metadata(policy))
    with atomic(written[-1]) as draft:
        draft.write_text(card(note, origin), encoding="utf-8")
    return written


def _refuse_others(out: Path, files: list[Path]) -> None:
    """Refuse a folder in which something else than an earlier export would be overwritten."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; --out names a folder")
    foreign = [] if is_card(files[-1]) else [file.name for file in files if file.exists()]
    foreign += [name for name in (rundir.RUN_FILE, rundir.SELECTION_FILE) if (out / name).exists()]
    policy = out / rundir.POLICY_FILE
    if not foreign and policy.exists() and "distribution" not in read_note(policy):
        foreign = [policy.name]
    if foreign:
        raise RunError(f"{out}: holds {foreign[0]}, which is no export; choose another --out")


def is_card(path: Path) -> bool:
    """Whether a file is the card of a policy."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(len(TITLE)) == TITLE
    except (OSError, UnicodeDecodeError):
        return False
