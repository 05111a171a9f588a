"""A comparison's bounds and intervals drawn over one axis, as the numbers of a small SVG picture."""

from dataclasses import dataclass

from grading.statistics.paired import Comparison

WIDTH = 640
_LEFT, _RIGHT = 150, 20


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    start: float
    end: float
    """Pixels."""
    decides: bool


@dataclass(frozen=True, slots=True)
class IntervalChart:
    width: int
    height: int
    bars: tuple[Bar, ...]
    point: float
    zero: float
    margin: float
    ticks: tuple[tuple[float, str], ...]
    """Pixels and label."""
    words: str
    """The same for whoever cannot see the picture."""


def interval_chart(found: Comparison | None) -> IntervalChart | None:
    """None where there are no bounds to draw."""
    if found is None or found.lower is None or found.upper is None or found.difference is None:
        return None
    spans = [("decision bounds", found.lower, found.upper, True)]
    for label, interval in (("normal", found.normal), ("cluster bootstrap", found.bootstrap)):
        if interval is not None:
            spans.append((label, interval.lower, interval.upper, False))
    reach = max(0.01, found.rule.margin, *(abs(value) for _, start, end, _ in spans for value in (start, end)))
    reach = min(1.0, reach * 1.15)

    def x(value: float) -> float:
        return round(_LEFT + (value + reach) / (2 * reach) * (WIDTH - _LEFT - _RIGHT), 1)

    ticks = tuple((x(share * reach), f"{share * reach:+.3f}".replace("+0.000", "0")) for share in (-1, -0.5, 0, 0.5, 1))
    words = "; ".join(f"{label} from {start:+.3f} to {end:+.3f}" for label, start, end, _ in spans)
    return IntervalChart(
        width=WIDTH,
        height=40 + 26 * len(spans),
        bars=tuple(Bar(label, x(start), x(end), decides) for label, start, end, decides in spans),
        point=x(found.difference),
        zero=x(0.0),
        margin=x(-found.rule.margin),
        ticks=ticks,
        words=f"difference {found.difference:+.3f}; {words}; margin {-found.rule.margin:+.3f}",
    )
