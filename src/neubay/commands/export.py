"""`neubay export` and `neubay card`: a policy for use elsewhere, and what to know of it."""

from pathlib import Path
from typing import Annotated

import tyro

from neubay.commands.text import Console, escape, say
from neubay.export import Format
from neubay.export.card import card_of, origin_of
from neubay.runs.files import atomic
from neubay.runs.rundir import VERDICTS

Source = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]


def export(run: Source, *, to: Format = "numpy", out: Path) -> None:
    """Write a policy as files that do not need neubay, with its card.

    Args:
        run: A run, a selection (a folder with selection.json) or a policy file. Of a run that ended
            with a selection, the policy that was chosen.
        to: numpy: policy.py and policy.npz, which need NumPy alone. onnx: policy.onnx.
            stablehlo: policy.stablehlo for cpu, cuda and tpu, and policy.json about it.
        out: The folder to write to.
    """
    # JAX is imported here, so that `neubay --help` answers at once.
    from neubay.policy import load_policy

    origin = origin_of(run)
    assert origin.file is not None
    for path in load_policy(origin.file).export(to, out):
        say(f"{path} ({path.stat().st_size / 1e3:.0f} kB)")
    if origin.verdict == "keep":
        Console(stderr=True).print(
            f"[yellow]warning:[/] {escape(str(run))}: the verdict is keep ({VERDICTS['keep']}): do "
            "not deploy this; its card has the reasons",
            soft_wrap=True,
        )


def card(run: Source, *, out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None) -> None:
    """Print the card of a policy in Markdown: data, scores, verdict, limits, how to load it.

    Args:
        run: A run, a selection (a folder with selection.json) or a policy file.
        out: Write it to this file instead.
    """
    text = card_of(run)
    if out is None:
        say(text.rstrip("\n"))
        return
    with atomic(out) as draft:
        draft.write_text(text, encoding="utf-8")
