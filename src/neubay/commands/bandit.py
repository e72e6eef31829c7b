"""`neubay bandit`: the paper's Section 3, data to figures, and its theorem in numbers."""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.table import Table

from neubay.commands.data_display import write_json
from neubay.commands.text import Console
from neubay.config import Preset
from neubay.errors import NeubayError, damage_reported

if TYPE_CHECKING:
    from neubay.runs.tracking import Row

# Imports of ours happen inside the commands: `--help` answers at once.

Switch = tyro.conf.FlagCreatePairsOff[bool]
Directories = Annotated[
    tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="SUMMARY.json ...")
]


def bandit(
    *,
    preset: Preset | None = None,
    seed: int = 0,
    out: Path | None = None,
    penalties: tuple[float, ...] = (0.0, 0.003, 0.01, 0.03),
    encoder_lr: float | None = None,
    memory: Literal["preset", "lru", "gated", "none"] = "preset",
    theory: Switch = False,
    epsilon: float = 0.1,
    beta: float = 0.01,
    data_size: int = 1000,
    gamma: float = 0.99,
) -> None:
    """The two-armed bandit of the paper's Section 3.

    The data shows arm 0 only. A reward ensemble is fitted to it, an agent is trained in it for each
    penalty, and evaluated in bandits where arm 1 pays with probability 0.01 to 0.99, beside the
    exact optimum. Writes summary.json, figures and the runs. The same command resumes.

    With --theory nothing is trained: both sides of the paper's theorem are computed for the two
    worlds of its proof, one arm paying 1/2 and the other 1/2 - epsilon or 1/2 + epsilon.

    Args:
        preset: Published sizes, or sizes for two cores; cpu unless there is an accelerator.
        seed: Decides data, ensemble and agents.
        out: Directory to write to; runs/bandit-PRESET-seedS if not given.
        penalties: Values of lambda; 0 is the Bayesian agent.
        encoder_lr: Learning rate of the recurrent encoder; the preset's unless given.
        memory: The agent's memory: the preset's, another, or 'none' for the Markov agent.
        theory: Compute the theorem instead.
        epsilon: Theory: by how much the uncertain arm differs from 1/2.
        beta: Theory: share of the data's pulls that are of the uncertain arm.
        data_size: Theory: |D|, the number of pulls in the data.
        gamma: Theory: the discount factor.
    """
    from neubay.commands.display import stopped
    from neubay.config import default_preset
    from neubay.studies import bandit as section_3

    console = Console()
    if theory:
        return _theory(console, epsilon, beta, data_size, gamma, out)
    chosen = preset or default_preset()
    directory = out or Path("runs") / f"bandit-{chosen}-seed{seed}"
    asked = {"encoder_lr": encoder_lr, "memory": None if memory == "preset" else memory}
    agent = {name: value for name, value in asked.items() if value is not None}
    command = _command({"preset": chosen, "seed": seed, "out": directory, **agent}, penalties)
    with stopped(console, command):
        summary = section_3.run(
            chosen,
            seed,
            directory,
            penalties=penalties,
            overrides={"agent": agent} if agent else {},
            tell=lambda text: console.print(text, markup=False, soft_wrap=True),
            track=partial(_show_evaluation, console),
        )
        _write_report([summary], directory, "png")
    _show(console, summary, directory)


def _command(given: Mapping[str, object], penalties: Sequence[float]) -> str:
    """What resumes a run."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return shlex.join(["neubay", "bandit", *flags, "--penalties", *map(str, penalties)])


def report(
    summaries: Directories,
    *,
    out: Path = Path("bandit-report"),
    figures: Literal["png", "svg", "pdf"] = "png",
) -> None:
    """Figures and tables over several runs of `neubay bandit` that differ in their seeds.

    Args:
        summaries: The summary.json of each run.
        out: Directory to write ensemble, returns, adaptation and tables.md to.
        figures: Format of the figures.
    """
    if not summaries:
        raise NeubayError("nothing to report: name the summary.json of one run or more")
    records = [read_summary(path) for path in summaries]
    records.sort(key=lambda record: record.get("seed", 0))
    _write_report(records, out, figures)
    Console().print(f"{out}/: ensemble, returns, adaptation as {figures}, tables.md")


def read_summary(path: Path) -> dict[str, Any]:
    """The summary.json of a run of `neubay bandit`, of which tables can be made."""
    from neubay.report.studies import bandit_tables
    from neubay.runs.files import read_json

    summary = read_json(path)
    if "ensemble_means" not in summary:
        raise NeubayError(f"{path}: not the summary.json of a run of 'neubay bandit'")
    with damage_reported(path):
        bandit_tables.tables([summary])
    return summary


def _write_report(summaries: Sequence[dict[str, Any]], directory: Path, suffix: str) -> None:
    from neubay.data.files import written_whole
    from neubay.report.parts import figures
    from neubay.report.studies import bandit_figures, bandit_tables

    for name, draw in (
        ("ensemble", bandit_figures.ensemble_figure),
        ("returns", bandit_figures.returns_figure),
        ("adaptation", bandit_figures.adaptation_figure),
    ):
        figures.save(draw(summaries), directory / f"{name}.{suffix}")
    with written_whole(directory / "tables.md", overwrite=True) as draft:
        draft.write_text(bandit_tables.tables(summaries), encoding="utf-8")


def _show_evaluation(console: Console, row: "Row") -> None:
    if row["kind"] == "evaluation":
        mean = row["return_mean"] / row["length_mean"]
        console.print(f"  step {row['step']:,}: return per pull {mean:.3f} over all bandits")


def _show(console: Console, summary: Mapping[str, Any], directory: Path) -> None:
    uncertainty = summary["uncertainty"]
    console.print(
        f"\nuncertainty: {uncertainty['0']:.4f} on arm 0, {uncertainty['1']:.4f} on arm 1, "
        f"{summary['uncertainty_ratio']:.1f} times as much"
    )
    table = Table("lambda", *(f"p1 = {p1:g}" for p1 in summary["test_p1"]), "posterior")
    for name, agent in summary["agents"].items():
        cells = [*agent["bandits"].values(), agent["posterior"]]
        table.add_row(
            name, *(f"{c['mean_return']:.3f} [dim]{c['optimal_return']:.3f}[/]" for c in cells)
        )
    console.print(table)
    console.print(
        f"return per pull, and in grey the exact optimum of that lambda; "
        f"{summary['episodes']} episodes per bandit, {summary['seconds']:.0f} s in all\n"
        f"{directory}/: summary.json, ensemble.png, returns.png, adaptation.png, tables.md"
    )


def _theory(
    console: Console, epsilon: float, beta: float, data_size: int, gamma: float, out: Path | None
) -> None:
    from neubay.studies.theory import TwoWorlds

    record = TwoWorlds(epsilon, beta, data_size, gamma).theorem()
    words: dict[str, Any] = {"lower": 0.5 - epsilon, "upper": 0.5 + epsilon}
    for bound in ("robust_gap_bound", "robust_gap_bound_as_assumed"):
        holds = record["robust_gap"] > record[bound]
        words[f"{bound}_said"] = "holds" if holds else "does not hold"
    table = Table.grid(padding=(0, 3))
    for label, text in _THEOREM:
        table.add_row(label, text.format(**record, **words))
    console.print(table)
    if out is not None:
        write_json(out / "theory.json", record)
        console.print(f"{out / 'theory.json'}")


_THEOREM = (
    (
        "worlds",
        "one arm pays 1/2, the other {lower:g} (m_-1) or {upper:g} (m_1, the truth); "
        "gamma = {gamma:g}",
    ),
    (
        "data",
        "|D| = {data_size:,}, {beta:.3g} of it on the uncertain arm; "
        "P_D(m_1) = {posterior_of_truth:.3f} on average",
    ),
    ("[bold]policies[/]", ""),
    ("  robust-optimal", "never the uncertain arm; misses {robust_gap:.4g} in m_1"),
    (
        "  Bayes-optimal",
        "the uncertain arm while its successes less failures are at least {threshold}; "
        "misses {bayes_gap:.4g} in m_1",
    ),
    (
        "  Delta",
        "{advantage:.4g}, the advantage of the Bayes-optimal one "
        "(above zero with probability {advantage_is_positive:.4g})",
    ),
    ("[bold]coverage[/]", ""),
    ("  C(robust-optimal)", "{robust_coverage:.4g}"),
    ("  C_Bayes(ideal), C_Bayes(Bayes-optimal)", "{ideal_coverage:.4g}, {bayes_coverage:.4g}"),
    ("[bold]the theorem[/]", "with delta_0 = {delta:g}"),
    (
        "  Bayesian gap <= bound",
        "{bayes_gap:.4g} <= {bayes_gap_bound:.4g}: "
        "holds with probability {bayes_gap_bound_holds:.4g} over the data",
    ),
    ("  robust gap > bound", "{robust_gap:.4g} > {robust_gap_bound:.4g}: {robust_gap_bound_said}"),
    (
        "  Delta > bound",
        "{advantage:.4g} > {lower_bound:.4g}: "
        "holds with probability {lower_bound_holds:.4g} over the data; the bound is positive with "
        "probability {lower_bound_is_positive:.4g}",
    ),
    ("[bold]as the proof has it[/]", "C(robust-optimal) not computed, but set by beta"),
    ("  C(robust-optimal)", "{assumed_coverage:.4g} = (1 - gamma)^4 / (64 beta)"),
    (
        "  robust gap > bound",
        "{robust_gap:.4g} > {robust_gap_bound_as_assumed:.4g}: {robust_gap_bound_as_assumed_said}",
    ),
    (
        "  Delta > bound",
        "{advantage:.4g} > {lower_bound_as_assumed:.4g}: "
        "holds with probability {lower_bound_as_assumed_holds:.4g} over the data; the bound is "
        "positive with probability {lower_bound_as_assumed_is_positive:.4g}",
    ),
    (
        "  how hard to tell",
        "KL {divergence:.3g} if D hides which arm was pulled (the proof's reading), "
        "{divergence_with_arms:.3g} if it shows it",
    ),
    (
        "  epsilon of the proof",
        "at most {largest_epsilon_of_proof:.3g}, with beta below 1/32",
    ),
)
"""The theorem, line by line; what depends on the data as its expectation over it."""
