"""Formulas that a user writes down: a reward from columns of a log, a rule that ends an episode.

    reward:       -abs(temperature - 21) - 0.01 * power
    termination:  next_state[0] < 0.7 or abs(next_state[1]) > 0.2

The text is parsed and its meaning computed here, node by node; it is never run as Python. Numbers,
names, + - * / % **, comparisons, `and`, `or`, `not`, brackets, indices such as `state[2]` and the
functions below are all there is.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from neubay.errors import TaskError

LONGEST = 2000
"""Characters of a formula: more is not a formula."""

DEEPEST = 50
"""Brackets within brackets."""

LARGEST = 1e30
"""The largest number that may stand in a formula: what it yields is kept in float32."""

FUNCTIONS: dict[str, tuple[int, int]] = {
    "abs": (1, 1),
    "sqrt": (1, 1),
    "exp": (1, 1),
    "log": (1, 1),
    "sin": (1, 1),
    "cos": (1, 1),
    "tanh": (1, 1),
    "sign": (1, 1),
    "isfinite": (1, 1),
    "min": (2, 9),
    "max": (2, 9),
    "clip": (3, 3),
    "where": (3, 3),
}
"""Name -> fewest and most arguments; `min` and `max` are elementwise."""

_RENAMED = {"min": "minimum", "max": "maximum"}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_QUOTED = re.compile(r"`([^`]*)`")


@dataclass(frozen=True)
class Expression:
    """A parsed formula. Names that are no Python names are written in backticks: `flow rate`."""

    text: str
    _tree: ast.expr
    _quoted: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """The names it uses."""
        return frozenset(name for name, _ in self.places)

    @property
    def places(self) -> frozenset[tuple[str, int | None]]:
        """Every name with the index it is used with; none where it is used whole."""
        found: set[tuple[str, int | None]] = set()
        waiting: list[ast.AST] = [self._tree]
        while waiting:
            match waiting.pop():
                case ast.Subscript(value=ast.Name(id=name), slice=index):
                    found.add((self._quoted.get(name, name), _index(index)))
                case ast.Name(id=name):
                    found.add((self._quoted.get(name, name), None))
                case ast.Call(args=arguments):
                    waiting += arguments
                case node:
                    waiting += ast.iter_child_nodes(node)
        return frozenset(found)

    def __call__(self, values: Mapping[str, Any], numpy: Any) -> Any:
        """Its value for arrays by name; `numpy` is NumPy or jax.numpy."""
        return self._value(self._tree, values, numpy)

    def _value(self, node: ast.expr, values: Mapping[str, Any], numpy: Any) -> Any:
        def of(part: ast.expr) -> Any:
            return self._value(part, values, numpy)

        def number(part: ast.expr) -> Any:
            """What is true counts as 1, what is not as 0."""
            value = of(part)
            return value.astype(numpy.float32) if value.dtype == bool else value

        match node:
            case ast.Constant(value=bool() | int() | float() as constant):
                return numpy.asarray(constant, dtype=numpy.float32)
            case ast.Name(id=name):
                return values[self._quoted.get(name, name)]
            case ast.Subscript(value=array, slice=index):
                return of(array)[..., _index(index)]
            case ast.BinOp(left=left, op=sign, right=right):
                return _BINARY[type(sign)](number(left), number(right))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return numpy.logical_not(of(part))
            case ast.UnaryOp(op=sign, operand=part):
                return -number(part) if isinstance(sign, ast.USub) else number(part)
            case ast.BoolOp(op=sign, values=parts):
                both = numpy.logical_and if isinstance(sign, ast.And) else numpy.logical_or
                return reduce(both, map(of, parts))
            case ast.Compare(left=left, ops=signs, comparators=rest):
                sides = [number(side) for side in (left, *rest)]
                pairs = zip(signs, sides[:-1], sides[1:], strict=True)
                return reduce(
                    numpy.logical_and, (_COMPARISONS[type(sign)](a, b) for sign, a, b in pairs)
                )
            case ast.Call(func=ast.Name(id=name), args=arguments):
                function = getattr(numpy, _RENAMED.get(name, name))
                parts = [of(argument) for argument in arguments]
                return reduce(function, parts) if name in _RENAMED else function(*parts)
        raise AssertionError(f"{ast.dump(node)} was let through")  # pragma: no cover


def parse(text: str) -> Expression:
    """Read a formula; what it cannot be is an error that says so."""
    if not text.strip() or len(text) > LONGEST:
        raise TaskError(f"a formula has 1 to {LONGEST} characters, this one has {len(text)}")
    quoted: dict[str, str] = {}

    def plain(found: re.Match[str]) -> str:
        name = f"quoted_{len(quoted)}_"
        quoted[name] = found.group(1)
        return name

    try:
        tree = ast.parse(_QUOTED.sub(plain, text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        reason = problem.msg if isinstance(problem, SyntaxError) else "it is nested too deeply"
        raise TaskError(f"'{text}' is not a formula: {reason}") from None
    _check(tree, text, 0)
    return Expression(text, tree, quoted)


def _check(node: ast.AST, text: str, depth: int) -> None:
    """Refuse everything but what the module's text names."""
    if depth > DEEPEST:
        raise TaskError(f"'{text}' is not a formula: it is nested too deeply")
    parts: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            if abs(number) > LARGEST:
                raise TaskError(f"'{text[:60]}': a number above {LARGEST:g}")
        case ast.Name():
            pass
        case ast.Subscript(value=ast.Name() as array, slice=index):
            _index(index, text)
            parts = [array]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            parts = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=part):
            parts = [part]
        case ast.BoolOp(values=parts):
            pass
        case ast.Compare(left=left, ops=signs, comparators=rest) if all(
            type(sign) in _COMPARISONS for sign in signs
        ):
            parts = [left, *rest]
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in FUNCTIONS:
            fewest, most = FUNCTIONS[name]
            if not fewest <= len(parts) <= most:
                wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
                raise TaskError(f"'{text}': {name} takes {wanted} values, got {len(parts)}")
        case ast.Call(func=ast.Name(id=name)) if name not in FUNCTIONS:
            known = ", ".join(FUNCTIONS)
            raise TaskError(f"'{text}': there is no function '{name}'; known: {known}")
        case _:
            what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise TaskError(
                f"'{text}': '{what}' cannot stand in a formula; numbers, names, + - * / % **, "
                f"comparisons, and, or, not, and {', '.join(FUNCTIONS)} can"
            )
    for part in parts:
        _check(part, text, depth + 1)


def _index(node: ast.expr, text: str = "") -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return -number
    raise TaskError(f"'{text}': an index is a whole number, such as state[0]")
