"""What README and docs/ show is there: commands, flags, linked files, scores. Python blocks run."""

import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from neubay.cli import COMMANDS, main

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
}
README, GUIDE = PAGES["README.md"], PAGES["docs/guide.md"]
WHOLE = re.sub(r"\\\n *", "", "\n".join(PAGES.values()))  # lines that go on are one command
LINES = sorted(set(re.findall(r"^ *(neubay .*)", WHOLE, flags=re.MULTILINE)))
BLOCKS = re.findall(r"```python\n(.*?)```", README + GUIDE, flags=re.DOTALL)


@pytest.mark.parametrize("block", [b for b in BLOCKS if "neubay.train" not in b])
def test_python_blocks_run(block: str) -> None:
    exec(compile(block, "block", "exec"), {})


def commands_of(shown: str) -> set[str]:
    """The names of the commands in a text such as '`neubay data info DATASET`'."""
    found = set()
    for command in re.findall(r"`neubay ([^`]+)`", shown):
        words = [word for word in shlex.split(command) if re.fullmatch(r"[a-z]+", word)]
        found.add(" ".join(words[:2]))
    return found


def test_every_command_is_in_the_table_and_exists() -> None:
    cells = re.findall(r"^\| (`neubay .*?`) \|", PAGES["docs/commands.md"], flags=re.MULTILINE)
    shown = commands_of("".join(cells))
    assert shown == set(COMMANDS), f"missing {set(COMMANDS) - shown}, stray {shown - set(COMMANDS)}"


def test_commands_that_the_readme_lists_exist() -> None:
    listed = commands_of("".join(re.findall(r"^- (`neubay .*?`):", README, flags=re.MULTILINE)))
    assert listed
    assert listed <= set(COMMANDS)


@cache
def flags_of(name: str) -> set[str]:
    """The flags that the help of a command shows."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    return set(re.findall(r"--[\w.-]+", shown.getvalue()))


@pytest.mark.parametrize("line", LINES)
def test_commands_that_are_shown_have_the_flags_they_are_shown_with(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    name = next(name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS)
    flags = {word for word in words if word.startswith("--")}
    assert flags <= flags_of(name), f"neubay {name} has no {sorted(flags - flags_of(name))}"


def anchors(text: str) -> set[str]:
    """What links to the headings of a page end with, as code hosts make it."""
    headings = re.findall(r"^#+ (.*)", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_lead_to_something(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page}: no {link}"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{page}: no {link}"


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_package_that_are_named_exist(page: str) -> None:
    known = [
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.md", "docs/**/*.md", "src/**/*.py", "tests/**/*.py")
        for path in ROOT.glob(pattern)
    ]
    for named in re.findall(r"`((?:src/|tests/|docs/)?[\w/]+\.(?:py|md))`", PAGES[page]):
        assert any(f"/{path}".endswith(f"/{named}") for path in known), f"{page}: no {named}"


def test_the_scores_of_the_readme_are_those_of_the_results() -> None:
    results = PAGES["docs/results/benchmarks.md"].split("### Scores")[1]
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", README, flags=re.MULTILINE)
    rows = [(dataset, cells.replace("**", "").split(" | ")) for dataset, cells in rows]
    scores = [(dataset, cells) for dataset, cells in rows if dataset != "dataset"]
    assert len(scores) == 10
    for dataset, cells in scores:
        row = re.search(rf"^\| {dataset} \| .*", results, flags=re.MULTILINE)
        assert row, f"{dataset} is not in the results"
        found = [cell.strip(" •").replace("**", "") for cell in row[0].split("|")]
        assert all(cell in found for cell in cells), f"{dataset}: {cells} are not in {found}"
