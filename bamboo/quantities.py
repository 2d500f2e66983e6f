"""Quantities as short text, each in one form everywhere: time, money, rates, bytes."""


def duration(seconds: float) -> str:
    """`37 ms`, `4.2 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 1:
        return milliseconds(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(seconds: float) -> str:
    """`0:42`, `12:05`, `1:02:03`: for a column that must not jump."""
    whole = max(0, round(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def usd(amount: float) -> str:
    """Dollars with as many digits as the amount needs: `$0.0042`, `$1.37`, `$1,204.10`."""
    if amount == 0 or abs(amount) >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.4f}"


def rate(value: float) -> str:
    """A count per something, with thousands separated: `12,345`; small ones keep a digit."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def number(value: float) -> str:
    """A number of any kind: whole ones whole, small ones with three digits."""
    if value == round(value):
        return f"{value:,.0f}"
    return rate(value) if abs(value) >= 10 else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    """`41 ms`, `0.4 ms`."""
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, `3 nodes`; `plural` where an s is not enough."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def micro_text(micro_usd: int) -> str:
    """Micro-dollars in full: `$0.016145`, `-$0.009687`."""
    sign = "-" if micro_usd < 0 else ""
    return f"{sign}${abs(micro_usd) // 1_000_000:,}.{abs(micro_usd) % 1_000_000:06d}"


def size(count: float, *, digits: int = 1) -> str:
    """Write bytes in binary units: `812 B`, `3.4 MiB`, `1.2 GiB`, `5.0 TiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.{digits}f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
