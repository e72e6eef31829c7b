"""Numbers and times, as pages and tables write them."""

from neubay.runs.messages import duration as duration


def number(value: int | float | None) -> str:
    """As few digits as tell the value: 12,345 · 171.7 · 0.161; a dash where there is none."""
    if value is None:
        return "-"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"
