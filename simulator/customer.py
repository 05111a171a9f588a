"""The customer an agent talks to: scripted replies, given in order whatever the question."""

from collections.abc import Sequence


class Customer:
    """Gives the scripted replies one after the other, then nothing."""

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies = replies
        self.turns: list[dict[str, str | None]] = []

    def ask(self, question: str) -> str | None:
        """The next reply, None when none is left. Question quality is ignored (behaviour: orders world)."""
        asked = len(self.turns)
        reply = self._replies[asked] if asked < len(self._replies) else None
        self.turns.append({"question": question, "reply": reply})
        return reply
