"""What two ledgers of the same case and repetition differ in: calls, final states, answer."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from simulator.canonical import canonical

_ABSENT = object()


class LedgerDifference(NamedTuple):
    """One place. Values are readable text of canonical JSON; None where that side has nothing there."""

    where: str
    baseline: str | None
    candidate: str | None


def ledger_differences(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[LedgerDifference]:
    """The places where two ledgers' contents differ, the business first. Both are JSON values.

    Both arms of a repetition are presented the same records in the same order, so records are held against each other
    by their position.
    """
    found = []
    for position in range(max(len(baseline["objects"]), len(candidate["objects"]))):
        before, after = (_at(side["objects"], position) for side in (baseline, candidate))
        name = f"record {position + 1}{_named(before if before is not _ABSENT else after)}"
        for path, *values in _leaves(before, after, ""):
            found.append(LedgerDifference(f"{name} {path}".rstrip(), *map(_shown, values)))
    found += _calls(baseline["calls"], candidate["calls"])
    for part in ("message", "claims", "error"):
        for path, *values in _leaves(baseline[part], candidate[part], part):
            found.append(LedgerDifference(path, *map(_shown, values)))
    return found


def _calls(baseline: list[Any], candidate: list[Any]) -> Iterator[LedgerDifference]:
    before, after = ([_call(call) for call in calls] for calls in (baseline, candidate))
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


def _call(call: Mapping[str, Any]) -> str:
    answer = call["error"] if "error" in call else _json(call["result"])
    return f"{call['tool']} {_json(call['arguments'])} → {answer}"


def _named(state: Any) -> str:
    """A record's first id, where it has one: a position alone says little to a person."""
    record: Any = next((value for value in state.values() if isinstance(value, Mapping)), {})
    name = next((value for key, value in record.items() if key.endswith("_id") and key != "customer_id"), None)
    return f" ({name})" if isinstance(name, str) else ""


def _leaves(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            inner = f"{path}.{key}" if path else key
            yield from _leaves(before.get(key, _ABSENT), after.get(key, _ABSENT), inner)
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            yield from _leaves(_at(before, index), _at(after, index), f"{path} {index + 1}")
    elif before is _ABSENT or after is _ABSENT or canonical(before) != canonical(after):
        yield path, before, after


def _at(items: Sequence[Any], index: int) -> Any:
    return items[index] if index < len(items) else _ABSENT


def _shown(value: Any) -> str | None:
    if value is _ABSENT:
        return None
    if isinstance(value, dict) and {"tool", "status", "details"} <= value.keys():
        return f"{value['tool']}: {value['status']} {_json(value['details'])}"
    return _json(value)


def _json(value: Any) -> str:
    return canonical(value).decode()
