"""Tests check types: of every function, and shapes where a function names any."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import pytest
from jaxtyping import Array, Float, PyTree, TypeCheckError

from helpers.type_checks import _may_have_shape
from neubay.agents.learning import Kinds, mixture_weights
from neubay.runs.values import flat

Row = Float[Array, "rows"]
Bound = TypeVar("Bound", bound=Row)


def test_a_wrong_type_is_an_error() -> None:
    with pytest.raises(TypeCheckError):
        flat(3)  # type: ignore[arg-type]


def test_a_wrong_shape_is_an_error() -> None:
    rows = jax.device_put(np.ones(3, bool))
    mixture_weights(Kinds(rows, rows), jax.device_put(np.float32(0.5)))
    with pytest.raises(TypeCheckError):
        mixture_weights(Kinds(rows, rows), jax.device_put(np.ones(2, np.float32)))


@pytest.mark.parametrize(
    "annotation",
    [
        Row,
        PyTree,
        "Row",
        Row | None,
        dict[str, list[Row]],
        tuple[int, Row],
        Callable[[Row], int],
        Callable[[int], Row],
        Bound,
        list["Row"],
    ],
)
def test_shapes_are_seen_wherever_they_are(annotation: Any) -> None:
    assert _may_have_shape(annotation)


@pytest.mark.parametrize(
    "annotation", [int, None, Any, str | None, dict[str, Any], Callable[..., int], TypeVar("T")]
)
def test_what_has_none_is_left_to_the_type_checker(annotation: Any) -> None:
    assert not _may_have_shape(annotation)
