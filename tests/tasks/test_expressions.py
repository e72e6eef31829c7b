"""Formulas of users: parsed, never run."""

import contextlib
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neubay.errors import TaskError
from neubay.tasks.expressions import LONGEST, parse

X, Y = np.array([-1.5, 0.0, 2.0]), np.array([4.0, 1.0, 0.25])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x + 2 * y", X + 2 * Y),
        ("-x ** 2 / y", -(X**2) / Y),
        ("7 % y", 7 % Y),
        ("abs(x) - sqrt(y)", abs(X) - np.sqrt(Y)),
        ("min(x, y, 0.5)", np.minimum(np.minimum(X, Y), 0.5)),
        ("max(x, y)", np.maximum(X, Y)),
        ("clip(x, -1, 1)", np.clip(X, -1, 1)),
        ("where(x > 0, y, -y)", np.where(X > 0, Y, -Y)),
        ("0 <= x < 2", (X >= 0) & (X < 2)),
        ("-(x < 0) + 2 * (y > 1)", -1.0 * (X < 0) + 2 * (Y > 1)),
        ("x < 0 or not y < 1 and x == 0", (X < 0) | (~(Y < 1) & (X == 0))),
        ("`flow rate` + both[1]", X + Y),
        ("both[-2] - both[0]", 0 * X),
    ],
)
@pytest.mark.parametrize("numpy", [np, jnp])
def test_a_formula_means_what_it_means_in_numpy(text: str, expected: Any, numpy: Any) -> None:
    values = {"x": X, "y": Y, "flow rate": X, "both": np.stack([X, Y], axis=-1)}
    arrays = {name: numpy.asarray(value, numpy.float32) for name, value in values.items()}
    np.testing.assert_allclose(parse(text)(arrays, numpy), expected, rtol=1e-6)


def test_the_names_it_uses_are_known() -> None:
    assert parse("-abs(a - 21) * `flow rate` + s[3]").names == {"a", "flow rate", "s"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("__import__('os').system('true')", "cannot stand in a formula"),
        ("open('x')", "no function 'open'"),
        ("a.b", "cannot stand in a formula"),
        ("x[y]", "an index is a whole number"),
        ("x[0][1]", "cannot stand in a formula"),
        ("x[True]", "an index is a whole number"),
        ("lambda: 1", "cannot stand in a formula"),
        ("[x for x in y]", "cannot stand in a formula"),
        ("x if y else z", "cannot stand in a formula"),
        ("'text'", "cannot stand in a formula"),
        ("x << 2", "cannot stand in a formula"),
        ("x is y", "cannot stand in a formula"),
        ("abs(x, out=y)", "cannot stand in a formula"),
        ("min(1)", "min takes 2 to 9 values, got 1"),
        ("1e31 * x", "a number above 1e"),
        ("9" * 400, "a number above 1e"),
        ("x +", "not a formula"),
        ("x; y", "not a formula"),
        ("(" * 900 + "x" + ")" * 900, "not a formula"),
        ("-" * 200 + "x", "nested too deeply"),
        ("", "1 to 2000 characters"),
        ("x" * (LONGEST + 1), "1 to 2000 characters"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        parse(text)


def test_a_tower_of_powers_does_not_hang() -> None:
    with np.errstate(over="ignore"):
        assert parse("9 ** 9 ** 9")({}, np) == math.inf


@given(st.text(max_size=60))
def test_any_text_is_a_formula_or_a_task_error(text: str) -> None:
    with contextlib.suppress(TaskError):
        parse(text)


def _formulas() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["x", "y", "0.5", "2"])
    return st.recursive(
        leaves,
        lambda part: st.one_of(
            st.builds(lambda a, o, b: f"({a} {o} {b})", part, st.sampled_from("+-*"), part),
            st.builds(lambda f, a: f"{f}({a})", st.sampled_from(["abs", "tanh", "-"]), part),
        ),
        max_leaves=8,
    )


@pytest.mark.slow
@given(_formulas())
def test_random_formulas_agree_with_python(text: str) -> None:
    """The same text, run by Python with NumPy's functions."""
    names = {"x": X, "y": Y, "abs": np.abs, "tanh": np.tanh}
    with np.errstate(all="ignore"):
        expected = eval(text, {"__builtins__": {}}, names)  # noqa: S307  (our own text)
        got = parse(text)({"x": X, "y": Y}, np)
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(expected, np.float64), rtol=1e-6
    )
