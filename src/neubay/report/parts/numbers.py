"""Numbers and times, as pages and tables write them."""


def number(value: float | None) -> str:
    """As few digits as tell the value: 12,345 · 171.7 · 0.161; a dash where there is none."""
    if value is None:
        return "-"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """In the unit that fits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
