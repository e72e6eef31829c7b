"""A trained policy as files that are read elsewhere: NumPy alone, ONNX, StableHLO; and its card."""

from pathlib import Path
from typing import Any, Literal, get_args

from neubay.errors import NeubayError, RunError
from neubay.export.card import Origin, card
from neubay.runs import rundir
from neubay.runs.files import atomic, atomic_write_json, note_array, read_note, write_arrays

Format = Literal["numpy", "onnx", "stablehlo"]
CARD_FILE = "card.md"


def write(mode: Any, note: dict[str, Any], to: Format, out: Path, origin: Origin) -> list[Path]:
    """Write a policy, its greedy form and the note of its file, into a folder; returns what was
    written, the card last."""
    # JAX is imported here, so that a card is printed at once.
    from neubay.export import onnx_graph, stablehlo
    from neubay.export.plain import metadata, plain

    if to not in get_args(Format):
        raise NeubayError(f"unknown format '{to}'; known: {', '.join(get_args(Format))}")
    _refuse_others(out)
    policy = plain(mode, note)
    written: list[Path] = []
    if to == "numpy":
        written = [out / "policy.npz", out / "policy.py"]
        with atomic(written[0]) as draft:
            write_arrays(draft, {"about": note_array(policy.about)} | policy.arrays)
        with atomic(written[1]) as draft:
            draft.write_bytes(Path(__file__).with_name("standalone.py").read_bytes())
    elif to == "onnx":
        written = [out / "policy.onnx"]
        with atomic(written[0]) as draft:
            onnx_graph.write_onnx(policy, draft)
    else:
        written = [out / "policy.stablehlo", out / "policy.json"]
        with atomic(written[0]) as draft:
            stablehlo.write_stablehlo(mode, policy, draft)
        atomic_write_json(written[1], metadata(policy))
    with atomic(out / CARD_FILE) as draft:
        draft.write_text(card(note, origin), encoding="utf-8")
    return [*written, out / CARD_FILE]


def _refuse_others(out: Path) -> None:
    """Refuse a folder in which something else than an earlier export would be overwritten."""
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: is a file; --out names a folder")
    policy = out / rundir.POLICY_FILE
    foreign = [name for name in (rundir.RUN_FILE, rundir.SELECTION_FILE) if (out / name).exists()]
    if policy.exists() and "distribution" not in read_note(policy):
        foreign.append(policy.name)
    if foreign:
        raise RunError(f"{out}: holds {foreign[0]}, which is no export; choose another --out")
