"""cellwise decide: the release receipt of a comparison, by the operator's policy."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import typer
from pydantic import ValidationError

from grading.commands import fail, one_matrix, open_store
from grading.comparison import NotComparable, compare_matrix
from grading.decision import BadReceipt, Receipt
from grading.decision import decide as make_decision
from grading.instant import instant
from grading.policy import PACKAGED, load_policy
from grading.visible import visible

LARGEST_RECEIPT = 16 * 2**20
"""Bytes of an earlier receipt."""


def decide(word: str, *, policy: str, at: str | None, receipt: Path | None, store: str, json: bool) -> None:
    now = _clock(at)
    loaded = load_policy(PACKAGED if policy == "packaged" else Path(policy), now)
    earlier = _earlier(receipt) if receipt is not None else None
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        try:
            found = compare_matrix(opened, matrix)
            decided = make_decision(found, loaded, now, earlier)
        except (NotComparable, BadReceipt) as error:
            raise fail(str(error)) from None
    if json:
        print(decided.document().decode())
    else:
        sys.stdout.write(told(decided))
    if decided.exit_status:
        raise typer.Exit(decided.exit_status)


def told(receipt: Receipt) -> str:
    """The receipt for a person: the decision, then every reason."""
    lines = [
        f"{receipt.comparison}: {receipt.candidate} against {receipt.baseline}, policy {receipt.policy}",
        f"{receipt.level} / {receipt.action} / {receipt.authority}",
        f"{receipt.view} view",
        "",
    ]
    marks = {True: "met     ", False: "NOT MET ", None: "open    "}
    lines += [f"  {marks[one.met]} {one.part} {one.name}: {one.detail}" for one in receipt.reasons]
    lines += ["", f"issued {receipt.issued}, expires {receipt.expires}", "components (integrity, not origin):"]
    lines += [f"  {name} {value}" for name, value in receipt.components.items()]
    lines.append(f"receipt {receipt.receipt_hash}")
    return "\n".join(map(visible, lines)) + "\n"


def _clock(at: str | None) -> datetime:
    if at is None:
        return datetime.now(UTC)
    try:
        return instant(at)
    except ValueError as error:
        raise fail(f"--at: {error}") from None


def _earlier(path: Path) -> Receipt:
    try:
        with path.open("rb") as file:
            document = file.read(LARGEST_RECEIPT + 1)
        if len(document) > LARGEST_RECEIPT:
            raise fail(f"{path} is no receipt: it is larger than {LARGEST_RECEIPT // 2**20} MiB")
        return Receipt.model_validate_json(document)
    except OSError as error:
        raise fail(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise fail(f"{path} is no receipt: {where}: {first['msg']}") from None
