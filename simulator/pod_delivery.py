"""A pod's ledgers on their way to the intake, and the next trials that its answers bring.

A trial in between takes one request, a turn: its ledger goes with the beginning of the trial after it, which the pod
runs before it has a lease for it. Nothing comes of that but calls that change nothing: a consequential one is not
answered before the intake has the ledger, has given out the trial and has all of the journal. Where it gives out none,
what was begun is thrown away.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from simulator.canonical import NotCanonicalizable, canonical_hash
from simulator.json_text import dumps, loads
from simulator.pod_intake import Away, Intake, IntakeLost, Refused, Reply, reason
from simulator.recorder import Lease

LARGEST_KEPT = 256 * 1024
"""Bytes of a ledger that waits for the next trial's beginning."""

_TAKEN = ("accepted", "repeated")

Told = Callable[[dict[str, Any], str], None]
"""Takes what is to be said of a trial, and what became of its ledger."""


class NotFollowed(Exception):  # noqa: N818 - reads as what happened
    """The intake has not given out the trial that was begun: it is not to go on."""


class _Kept(NamedTuple):
    attempt: int
    document: bytes
    said: dict[str, Any]


class Delivery:
    """The ledgers of one pod, one after the other.

    Args:
        brings_next: whether an answer may bring the next trial. Not where the agent has a container: that one is looked
            at before a trial is asked for.
        told: called for each ledger once it is known what became of it.
    """

    def __init__(self, intake: Intake, *, brings_next: bool, told: Told) -> None:
        self._intake = intake
        self._brings_next = brings_next
        self._takes_turns = brings_next
        self._told = told
        self._kept: _Kept | None = None
        self._begun: dict[str, Any] = {}
        self._checked: dict[str, bytes] = {}
        self._known: dict[str, dict[str, Any]] = {}
        """Assignments by hash: the repetitions of a cell have one, or two in turn."""
        self.next: dict[str, Any] | None = None
        """A trial that came with an answer, until somebody takes it."""
        self.refused: str | None = None
        """What became of a ledger that was not taken in: the pod is to end."""

    @property
    def is_kept(self) -> bool:
        """Whether a finished trial's ledger waits for the beginning of the next trial."""
        return self._kept is not None

    def hand_over(self, assigned: dict[str, Any], document: bytes, said: dict[str, Any]) -> None:
        """Delivers a ledger, or keeps it for the turn where another trial like it follows."""
        self._kept = _Kept(assigned["attempt"], document, said)
        agent, after = assigned["assignment"]["agent"], assigned.get("after")
        may_wait = assigned["more"] and self._takes_turns and agent["reuse"] and len(document) <= LARGEST_KEPT
        if not (may_wait and after in self._known):
            self.deliver(more=assigned["more"])

    def deliver(self, *, more: bool = True) -> None:
        """Delivers the ledger that is here."""
        attempt, document, _ = self._here()
        asked = "&next=1" if more and self._brings_next else ""
        answer = self._took(self._intake.ask(f"/v1/ledger?attempt={attempt}{asked}", document))
        self.next = self._assigned(answer)

    def begin(self, assigned: dict[str, Any]) -> dict[str, Any]:
        """The trial after one whose ledger is here, as far as it is known before the turn."""
        after = assigned["after"]
        given = {"attempt": 0, "number": 0, "trial": "", "more": True}
        self._begun = {**given, "hash": after, "assignment": self._known[after]}
        return self._begun

    def turn(self, lines: Sequence[bytes], seconds: float | None) -> Lease:
        """Delivers the ledger that is here with the first lines of the trial that was begun, and fills that one in.

        Args:
            seconds: for how long this is tried, once; None for as long as the intake may be away.

        Raises:
            NotFollowed: the ledger is delivered or refused, and the trial is not the pod's.
            Away, IntakeLost: it may be given again, or was for long enough.
        """
        if self._kept is None:
            raise NotFollowed
        attempt, document, _ = self._kept
        path = f"/v1/turn?attempt={attempt}"
        body = b'%b\n{"version":1,"entries":[%b]}' % (document, b",".join(b"{%b}" % members for members in lines))
        reply = self._intake.ask(path, body) if seconds is None else self._intake.ask_once(path, body, seconds)
        if reply.status not in (200, 410):
            # An intake of the release before, or one that refuses these lines: that is no fault of the ledger.
            self._takes_turns = False
            self.deliver()
            raise NotFollowed
        answer = self._took(reply)
        given = self._assigned(answer)
        if given is None or answer.get("begun") is not True or given["hash"] != self._begun["hash"]:
            self.next = given
            raise NotFollowed
        self._begun.update(given)
        return Lease(given["attempt"], given["number"], given["trial"], secret="")

    def last_words(self, seconds: float) -> bool:
        """Sends a ledger that is still here, once; whether there is none left to send."""
        if self._kept is None:
            return True
        attempt, document, said = self._kept
        try:
            self._took(self._intake.ask_once(f"/v1/ledger?attempt={attempt}", document, seconds))
        except (Away, IntakeLost):
            self._kept = None
            self._told(said, "lost")
            return False
        return self.refused is None

    def assigned(self, reply: Reply) -> dict[str, Any]:
        """The trial in an answer that is one."""
        return self._learnt(_object(reply.body))

    def _here(self) -> _Kept:
        assert self._kept is not None
        return self._kept

    def _took(self, reply: Reply) -> dict[str, Any]:
        """An answer about the ledger that is here; ``refused`` says where it was not taken in."""
        answer: dict[str, Any] = {}
        if reply.status == 410:
            outcome: Any = "fenced"
        elif reply.status == 200:
            answer = _object(reply.body)
            outcome = answer.get("outcome")
        else:
            outcome = None
        if not isinstance(outcome, str):
            outcome = f"refused, {reason(reply)}"
        _, _, said = self._here()
        self._kept = None
        self.refused = None if outcome in _TAKEN else outcome
        self._told(said, outcome)
        return answer if self.refused is None else {}

    def _assigned(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        following = answer.get("next")
        return self._learnt(following) if isinstance(following, dict) else None

    def _learnt(self, given: dict[str, Any]) -> dict[str, Any]:
        assigned = assigned_of(given, self._checked)
        self._known.setdefault(assigned["hash"], assigned["assignment"])
        return assigned


def assigned_of(assigned: dict[str, Any], checked: dict[str, bytes] | None = None) -> dict[str, Any]:
    """The same, if its members are those of simulator/pod_protocol.py's Assigned, as far as this pod acts on them.

    The assignment was checked before it was registered; its hash shows that it is still the same.

    Args:
        checked: assignments whose hash was found right, by that hash; this one is added. Repetitions have the same.

    Raises:
        IntakeLost: it is none.
        Refused: it is of another version.
    """
    assignment = assigned.get("assignment")
    if assigned.get("version") != 1:
        raise Refused("the assignment is of a version that this pod's image does not know: use the chart's own image")
    kinds = {"attempt": int, "number": int, "trial": str, "hash": str, "assignment": dict, "more": bool}
    for name, kind in kinds.items():
        if type(assigned.get(name)) is not kind:
            raise IntakeLost(f"the assignment is malformed: {name}")
    try:
        document = dumps(assignment)
        if checked is not None and checked.get(assigned["hash"]) == document:
            return assigned
        found = canonical_hash(assignment)
    except (NotCanonicalizable, TypeError) as error:
        raise IntakeLost("the assignment is malformed: it has no canonical JSON") from error
    if found != assigned["hash"]:
        raise IntakeLost("the assignment is not the one that its hash names")
    if checked is not None:
        checked[found] = document
    return assigned


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise IntakeLost("answered with no JSON object")
    return value
