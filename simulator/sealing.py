"""How a ledger is sealed, and the errors that only the sealer may name.

The ledger's wire format is in simulator/ledger.py, which a recorder never loads: its start is to cost little.
"""

from collections.abc import Callable
from typing import Any

from simulator.canonical import canonical, sha256

ATTEMPT_LOST = "AttemptLost"
"""The execution error of a ledger that was sealed from the journal of a lost attempt."""

DISK_LIMIT = "DiskLimit"
"""The execution error of an agent that used more of the disk than it may: named by its recorder, or, where a cluster
ended both for it, in a ledger that is sealed from their journal."""

LIMIT_ERRORS = frozenset({"TimeLimit", "CallLimit", "TokenLimit", "MoneyLimit", "MemoryLimit", DISK_LIMIT})
"""Execution errors that say which limit ended the trial: the check ``budget``, not ``execution_error``."""


def seal(content: dict[str, Any], envelope: dict[str, Any], *, canonical: Callable[[Any], bytes] = canonical) -> bytes:
    """The ledger document of a content and an envelope, both as JSON values.

    Written member by member, in RFC 8785's order, so that the content is made canonical once, not twice.

    Args:
        canonical: ``canonical_of_parsed`` where both hold nothing but what came out of a JSON parser or was checked.
    """
    content_bytes, envelope_bytes = canonical(content), canonical(envelope)
    content_hash = sha256(content_bytes).encode()
    ledger_hash = sha256(b'{"content_hash":"%b","envelope":%b}' % (content_hash, envelope_bytes)).encode()
    return b'{"content":%b,"content_hash":"%b","envelope":%b,"ledger_hash":"%b","version":1}' % (
        content_bytes,
        content_hash,
        envelope_bytes,
        ledger_hash,
    )
