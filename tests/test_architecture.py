"""The rooms of docs/architecture.md, and the one direction of flow between them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "neubay"

# What a room may import of ours. A room that is not listed here fails the test: add it to the
# map in docs/architecture.md and give it its place.
FOUNDATION = {"errors", "config", "tape"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "tape": set(),
    "published": {"errors"},
    "tasks": {"errors", "config", "published"},
    "runs": {"errors"},
    "data": FOUNDATION | {"tasks", "published", "runs"},
    "world": FOUNDATION | {"tasks", "data", "runs"},
    "imagination": FOUNDATION | {"tasks", "data"},
    "replay": FOUNDATION | {"data", "imagination"},
    "agents": FOUNDATION,
    "experience": FOUNDATION | {"tasks", "data", "world", "imagination", "replay", "agents"},
    "evaluation": FOUNDATION | {"tasks"},
    "preflight": FOUNDATION | {"data", "agents", "replay", "world", "runs"},
    "algorithm": FOUNDATION
    | {"tasks", "data", "world", "agents", "experience", "evaluation", "runs"},
    "policy": FOUNDATION | {"agents", "tasks", "runs"},
    "experiment": FOUNDATION
    | {"tasks", "data", "world", "imagination", "experience", "algorithm", "policy", "runs"}
    | {"preflight"},
    "studies": FOUNDATION
    | {"tasks", "published", "data", "world", "imagination", "experience", "algorithm"}
    | {"agents", "evaluation", "policy", "experiment", "runs"},
    "bench": FOUNDATION
    | {"tasks", "data", "world", "imagination", "replay", "agents", "algorithm", "runs"},
    "film": {"errors", "tasks", "policy"},
    "report": {"errors", "published", "runs"},
}


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neubay"):
            parts = (node.module or "").split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("neubay.")}
    return rooms


SOURCES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if room_of(path) not in {"__init__", "__main__", "cli", "commands"}
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_comes_before_it(path: Path) -> None:
    room = room_of(path)
    assert room in ALLOWED, f"{room} has no place on the map"
    strays = imported_rooms(path) - ALLOWED[room] - {room, "__version__"}
    assert not strays, f"{path.relative_to(ROOT)} imports {sorted(strays)} against the flow"


def test_the_map_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z_]+)(?:\.py|/)`", text, flags=re.MULTILINE))
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms <= named, f"not on the map: {sorted(rooms - named)}"


def test_nothing_is_unpickled() -> None:
    banned = re.compile(
        r"\b(pickle|cloudpickle|joblib|dill|shelve)\b\.|allow_pickle=True|(?<![.\w])(eval|exec)\("
        r"|yaml\.(load|unsafe_load|full_load)\(|shell=True|os\.(system|popen)\("
    )
    for path in PACKAGE.rglob("*.py"):
        found = banned.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found.group(0) if found else ''}"
