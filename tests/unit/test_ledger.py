"""The ledger document: one format, pinned byte for byte, and hashes that cover all of it."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError
from sealed_ledger import document, members, parts

from simulator.canonical import canonical, canonical_hash
from simulator.ledger import Ledger
from simulator.sealing import seal

GOLDEN = Path(__file__).parent / "golden" / "ledger_v1.json"

CONTENT_HASH = "sha256:9fc558720834fec7714a5c9727a7289d69c844e1724872ff6fb497f14f9deabb"
LEDGER_HASH = "sha256:a9a216951a369bf06f06f47890b3b1e00a81861a8e4ad9e945492a4919e9f4c0"


def test_the_golden_document() -> None:
    """Whoever changes this format gives it a new version: documents of this one are in stores."""
    assert document() == GOLDEN.read_bytes()


def test_the_golden_hashes() -> None:
    golden = orjson.loads(GOLDEN.read_bytes())
    assert (golden["content_hash"], golden["ledger_hash"]) == (CONTENT_HASH, LEDGER_HASH)
    assert canonical_hash(golden["content"]) == CONTENT_HASH
    assert canonical_hash({"content_hash": CONTENT_HASH, "envelope": golden["envelope"]}) == LEDGER_HASH


def test_the_document_is_canonical_and_of_the_model() -> None:
    golden = GOLDEN.read_bytes()
    assert canonical(orjson.loads(golden)) == golden
    assert canonical(Ledger.model_validate_json(golden).model_dump(mode="json")) == golden


def test_the_content_hash_is_that_of_what_was_done_alone() -> None:
    content, envelope = parts()
    other = orjson.loads(seal(content, {**envelope, "attempt": 3, "ended": envelope["ended"] + 1}))
    assert other["content_hash"] == CONTENT_HASH
    assert other["ledger_hash"] != LEDGER_HASH


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in members()["content"].items() if key != name}


@pytest.mark.parametrize("name", members()["content"])
def test_no_member_may_be_missing(name: str) -> None:
    if name == "version":
        return
    with pytest.raises(ValidationError):
        Ledger.model_validate({**members(), "content": _without(name)})


def test_no_member_may_be_added() -> None:
    for changed in (
        members() | {"more": 1},
        members() | {"content": members()["content"] | {"more": 1}},
        members() | {"envelope": members()["envelope"] | {"more": 1}},
    ):
        with pytest.raises(ValidationError):
            Ledger.model_validate_json(orjson.dumps(changed))
