"""What an agent is given is a frozen dataclass to all who look, though the module that makes those is not loaded."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from simulator.agent import Request


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    utterance: str
    customer_id: str


REQUEST = Request(utterance="Refund it.", customer_id="customer-1")
MADE = Made("Refund it.", "customer-1")


def test_it_is_a_dataclass_of_the_same_fields() -> None:
    assert dataclasses.is_dataclass(REQUEST)
    assert dataclasses.is_dataclass(Request)
    for ours, made in zip(dataclasses.fields(REQUEST), dataclasses.fields(MADE), strict=True):
        assert (ours.name, ours.type, ours.default, ours.init) == (made.name, made.type, made.default, made.init)
    of_any: Any = REQUEST
    assert dataclasses.asdict(of_any) == dataclasses.asdict(MADE)
    assert dataclasses.astuple(of_any) == dataclasses.astuple(MADE)
    assert dataclasses.replace(of_any, utterance="No.") == Request("No.", "customer-1")


def test_its_values() -> None:
    assert Request("Refund it.", "customer-1") == REQUEST
    assert Request("Refund it.", "customer-2") != REQUEST
    assert REQUEST.__eq__(MADE) is NotImplemented
    assert hash(REQUEST) == hash(MADE)
    assert repr(REQUEST) == repr(MADE).replace("Made", "Request")
    assert Request.__match_args__ == Made.__match_args__
    assert set(Request.__slots__) == set(Made.__slots__)
    for again in (copy.copy(REQUEST), copy.deepcopy(REQUEST), pickle.loads(pickle.dumps(REQUEST))):
        assert again == REQUEST


@pytest.mark.parametrize("of", [REQUEST, MADE], ids=["ours", "made"])
def test_nobody_changes_it(of: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'utterance'"):
        of.utterance = "Keep it."
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'utterance'"):
        del of.utterance
    with pytest.raises(TypeError):
        type(of)("Refund it.")
