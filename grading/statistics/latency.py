"""Latency percentiles.

Convention: nearest rank, the inverse of the empirical distribution (type 1 of Hyndman and Fan, "Sample quantiles in
statistical packages", The American Statistician 50, 1996): the least observed value that at least the wanted share of
values does not exceed. The result is always a latency that some trial had; up to 19 values p95 is the maximum.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds, of the trials whose latency is known; ``None`` where it is of none."""

    known: int
    unknown: int
    p50: int | None
    p95: int | None


def latency(milliseconds: Iterable[int | None]) -> Latency:
    """The percentiles of some trials; ``None`` is a latency that was not measured, and is no zero.

    Raises:
        ValueError: a negative latency.
    """
    listed = list(milliseconds)
    known = sorted(value for value in listed if value is not None)
    if known and known[0] < 0:
        raise ValueError(f"a latency is never negative: got {known[0]} ms")
    return Latency(
        known=len(known),
        unknown=len(listed) - len(known),
        p50=percentile(known, 50) if known else None,
        p95=percentile(known, 95) if known else None,
    )


def percentile(ascending: list[int], percent: int) -> int:
    """The nearest-rank percentile of sorted values, in whole numbers: 0.95 * 20 is not left to rounding.

    Raises:
        ValueError: no values, or a percent outside 1 to 100.
    """
    if not ascending or not 1 <= percent <= 100:
        raise ValueError(f"a percentile needs a value and a percent from 1 to 100: got {len(ascending)}, {percent}")
    return ascending[-(-percent * len(ascending) // 100) - 1]
