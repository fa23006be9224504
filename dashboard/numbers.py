"""How figures are written: three significant digits, SI for tokens, ms below a second, "–" for unknown."""

from __future__ import annotations

import math

UNKNOWN = "–"
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def significant(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` significant digits and no exponent; UNKNOWN for None and what is not finite."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = f"{value:,.{decimals}f}".replace("-", "−")
    return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


def count(value: float | None) -> str:
    """A count or a rate: plain below 10,000, then SI (`12.4 k`)."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 10_000:
        return f"{value:,.0f}".replace("-", "−") if float(value).is_integer() else significant(value)
    return tokens(value)


def tokens(value: float | None) -> str:
    """Tokens in SI: `12.4 k`, `3.1 M`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for factor, letter in _SI:
        # 999.95 k would be written 1,000 k: step up where rounding does.
        if abs(value) >= factor * 0.9995:
            return f"{significant(value / factor)} {letter}"
    return significant(value)


def milliseconds(value: float | None) -> str:
    """A duration given in ms: `412 ms`, `1.24 s`, `3.5 min`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 999.5:
        return f"{significant(value)} ms"
    return seconds(value / 1000)


def span(value: float | None) -> str:
    """A duration given in ms that may be far below one: `38 µs`, `412 ms`, `1.24 s`."""
    if value is not None and math.isfinite(value) and abs(value) < 0.9995:
        return f"{significant(value * 1000)} µs"
    return milliseconds(value)


def difference(value: float | None) -> str:
    """A difference given in ms, with its sign: `+310 ms`, `−20 ms`, `±0 ms`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) < 0.05:
        return "±0 ms"
    return f"+{milliseconds(value)}" if value > 0 else milliseconds(value)


def change(share: float | None) -> str:
    """A relative change: `+12.0 %`, `−3.5 %`."""
    text = percent(share).replace("-", "−")
    return f"+{text}" if share is not None and share > 0 and math.isfinite(share) else text


def seconds(value: float | None) -> str:
    """A duration given in s: `0.8 s`, `45 s`, `3.5 min`, `2.1 h`, `3.2 d`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for limit_s, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if abs(value) < limit_s:
            return f"{significant(value / divisor, 2 if unit == 's' and abs(value) < 10 else 3)} {unit}"
    return f"{significant(value / 86_400)} d"


def percent(share: float | None) -> str:
    """A share 0…1 with one decimal: `61.3 %`."""
    if share is None or not math.isfinite(share * 100):
        return UNKNOWN
    return f"{share * 100:.1f} %"
