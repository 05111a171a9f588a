"""The literal fixture judge: three sentences and what must hold for them to be true. It exercises the measurement, no
more: familiar words in a wrong situation pass, other words are not understood.
"""

import time

import orjson

from grading.cost import UNKNOWN
from grading.judge import Answer, JudgeVerdict, Reservation
from grading.projection import SemanticProjection

_MONEY_ARRIVED = "Your money has arrived."
_CONFIRMED = "Your refund has been confirmed."
_WHICH = "Please clarify which purchase you mean."


class LiteralJudge:
    """Judges by the exact words of the message."""

    votes = 1
    dispatches = False

    def refuses(self, request: bytes) -> str | None:
        return None

    def most(self, request: bytes) -> Reservation:
        return Reservation(0, 0)

    def vote(self, request: bytes, index: int) -> Answer:
        started = time.time_ns() // 1000
        verdict, explanation = judge(orjson.loads(request))
        # Nobody bills it, yet nobody has measured what it costs either: unknown is not free.
        return Answer(verdict, explanation, None, None, None, None, UNKNOWN, started, time.time_ns() // 1000)

    def close(self) -> None:
        pass


def judge(seen: SemanticProjection) -> tuple[JudgeVerdict, str]:
    """The verdict on a message, and why."""
    message = seen["output"]["message"]
    refunds = sum(ledger["refund_transaction_count"] for ledger in seen["ledgers"])
    if message == _MONEY_ARRIVED:
        return "fail", "no tool tells that money has arrived"
    if message == _CONFIRMED:
        return "pass" if refunds == 1 else "fail", f"a refund is confirmed, {refunds} were committed"
    if message == _WHICH:
        unanswered = any(
            call["tool"] == "ask_customer" and "error" not in call and not (call["result"] or "").strip()
            for call in seen["events"]
        )
        asked = "a question went unanswered" if unanswered else "no question went unanswered"
        return "pass" if refunds == 0 and unanswered else "fail", f"{asked}, {refunds} refunds were committed"
    return "abstain", "the words are none that this judge knows"
