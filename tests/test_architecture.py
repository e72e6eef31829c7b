"""The rooms of docs/architecture.md, and the one direction of flow between them."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "neubay"


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


MAX_LINES = 60  # of a function, its signature and docstring counted
MAX_MODULES = 16  # directly in src/neubay


def modules() -> dict[str, Path]:
    """Every module of ours by its name, packages as their `__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, inside functions too; not those for type checkers."""
    waiting: list[ast.AST] = [parsed(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def order(graph: dict[str, set[str]]) -> None:
    """Fails, naming the circle, where no order of the nodes lets each import earlier ones only."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.slow
def test_no_module_imports_itself_through_others_not_even_inside_a_function() -> None:
    order({name: set(imports(path)) - {name} for name, path in MODULES.items()})


def test_no_room_imports_itself_through_others_not_even_inside_a_function() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if name != "neubay":
            room = name.split(".")[1]
            rooms = {other.split(".")[1] for other in imports(path) if other != "neubay"}
            graph.setdefault(room, set()).update(rooms - {room})
    order(graph)


def test_imports_keep_to_the_contracts() -> None:
    """Those of [tool.importlinter] in pyproject.toml.

    In a process of its own: import-linter sets up logging anew, which closes the standard error
    of a process where absl, which comes with JAX, has a handler on it.
    """
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint"]
    command[-1] += "; lint()"
    checked = subprocess.run(
        [*command, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path in MODULES.values()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= MAX_LINES
    }
    assert not long, f"over {MAX_LINES} lines: {sorted(long)}"


def test_every_name_is_defined() -> None:
    """Ruff and mypy are told to pass over undefined names, for the sake of shapes in the types:
    outside of strings there must be none."""
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "F821", "--output-format", "json"]
    settings = ["--isolated", "--no-cache", "--exit-zero"]
    said = subprocess.run(
        [*ruff, *settings, str(PACKAGE)], capture_output=True, text=True, check=True
    )
    found = json.loads(said.stdout)
    assert found, "the shapes in the types are found at least"
    for each in found:
        row, column = each["location"]["row"], each["location"]["column"]
        inside = any(
            (node.lineno, node.col_offset) < (row, column)
            and (row, column) <= (node.end_lineno, node.end_col_offset)
            for node in ast.walk(parsed(Path(each["filename"])))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        assert inside, f"{each['filename']}:{row}: {each['message']}"


def test_few_modules_lie_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_MODULES


def test_algorithm_1_is_short() -> None:
    assert len((PACKAGE / "algorithm.py").read_text(encoding="utf-8").splitlines()) <= 150


def test_tests_lie_as_what_they_test() -> None:
    """A folder of tests is a room of the source; what several files share is in `helpers`."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py")}
    strays = [str(f) for f in folders if f.parts[:1] != ("helpers",) and not (PACKAGE / f).is_dir()]
    assert not strays, f"rooms without a source: {sorted(strays)}"


def test_the_map_names_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z_]+)(?:\.py|/)`", text, flags=re.MULTILINE))
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms <= named, f"not on the map: {sorted(rooms - named)}"


def test_the_map_names_what_is_there() -> None:
    """Where a question is answered by `file.py`: `name`, that file has that name."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    answers = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", text)
    assert len(answers) >= 6
    for file, names in answers:
        source = (PACKAGE / file).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            defined = rf"^\s*(?:def|class) {name.split('.')[-1]}\b"
            assert re.search(defined, source, flags=re.MULTILINE), f"{file} has no {name}"


def test_nothing_is_unpickled() -> None:
    banned = re.compile(
        r"\b(pickle|cloudpickle|joblib|dill|shelve)\b\.|allow_pickle=True|(?<![.\w])(eval|exec)\("
        r"|yaml\.(load|unsafe_load|full_load)\(|shell=True|os\.(system|popen)\("
    )
    for path in PACKAGE.rglob("*.py"):
        found = banned.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found.group(0) if found else ''}"
