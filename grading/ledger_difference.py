"""What two ledgers of the same case and repetition differ in: calls, final states, answer."""

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from simulator.canonical import canonical

_ABSENT = object()


class LedgerDifference(NamedTuple):
    """One place. Values are canonical JSON; None where that side has nothing there."""

    where: str
    baseline: str | None
    candidate: str | None


def ledger_differences(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[LedgerDifference]:
    """The places where two ledgers' contents differ, the business first. Both are JSON values.

    Both arms of a repetition are presented the same records in the same order, so records are held against each other
    by their position.
    """
    found = []
    for path, before, after in _leaves(baseline["objects"], candidate["objects"], "record"):
        found.append(LedgerDifference(path, _shown(before), _shown(after)))
    found += _calls(baseline["calls"], candidate["calls"])
    for part in ("message", "claims", "error"):
        for path, before, after in _leaves(baseline[part], candidate[part], part):
            found.append(LedgerDifference(path, _shown(before), _shown(after)))
    return found


def _calls(baseline: list[Any], candidate: list[Any]) -> Iterator[LedgerDifference]:
    before, after = ([canonical(call).decode() for call in calls] for calls in (baseline, candidate))
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        for step in range(max(b - a, d - c)):
            old, new = a + step, c + step
            yield LedgerDifference(
                f"call {(old if old < b else new) + 1}",
                before[old] if old < b else None,
                after[new] if new < d else None,
            )


def _leaves(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _leaves(before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            old = before[index] if index < len(before) else _ABSENT
            new = after[index] if index < len(after) else _ABSENT
            yield from _leaves(old, new, f"{path} {index + 1}")
    elif before is _ABSENT or after is _ABSENT or canonical(before) != canonical(after):
        yield path, before, after


def _shown(value: Any) -> str | None:
    return None if value is _ABSENT else canonical(value).decode()
