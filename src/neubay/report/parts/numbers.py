"""Numbers and times, as pages and tables write them."""

from collections.abc import Mapping
from typing import Any

from neubay.runs.messages import duration as duration


def number(value: int | float | None) -> str:
    """As few digits as tell the value: 12,345 · 171.7 · 0.161; a dash where there is none."""
    if value is None:
        return "-"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def shown(value: int | float | None, form: str) -> str:
    """A number in some format; a dash where there is none."""
    return "-" if value is None else f"{value:{form}}"


def percent(share: int | float | None, form: str = ".3g") -> str:
    """A share in percent; a dash where there is none."""
    return "-" if share is None else f"{100 * share:{form}} %"


def rounded(value: Any, digits: int) -> Any:
    """A nested value with so many digits of each number: more would fill a file and say nothing."""
    if isinstance(value, Mapping):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
