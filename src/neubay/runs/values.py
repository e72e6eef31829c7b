"""Nested plain values, as JSON has them."""

import math
from typing import Any, TypeGuard


def flat(tree: dict[str, Any], separator: str = ".") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}; tuples become lists, as in JSON."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            inner = flat(value, separator)
            leaves |= {f"{name}{separator}{below}": leaf for below, leaf in inner.items()}
        else:
            leaves[name] = list(value) if isinstance(value, tuple) else value
    return leaves


def finite(value: Any) -> Any:
    """A nested value with None in the place of each number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_number(value: Any) -> TypeGuard[int | float]:
    """An integer or a float; True and False are neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)
