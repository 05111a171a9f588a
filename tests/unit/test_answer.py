"""An agent's answer as its recorder takes it: the fast way in says what the model says, or nothing."""

import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import answer
from simulator.answer import Answer, answer_of, failure, plain, unanswered
from simulator.output import Claims, Output

_WORDS = sorted(set().union(*answer.WORDS.values()))
TEXTS = st.text(max_size=4) | st.sampled_from([*_WORDS, "", "\ud800", "Done."])
VALUES = (
    TEXTS
    | st.none()
    | st.booleans()
    | st.integers(-2, 40_000)
    | st.floats(allow_nan=False)
    | st.lists(TEXTS, max_size=1)
    | st.fixed_dictionaries({}, optional={"model": TEXTS, "input_tokens": st.integers(-1, 5), "cost": TEXTS})
)
RIGHT: dict[str, Any] = {
    "message": st.just("Done."),
    "claimed_outcome": st.sampled_from(get_args(Claims.model_fields["claimed_outcome"].annotation)),
}
CLAIMS = {name: st.sampled_from(sorted(words)) for name, words in answer.WORDS.items()}
NAMES = [*Output.model_fields, "another"]
ANSWERS = st.fixed_dictionaries(
    {}, optional={name: RIGHT[name] | VALUES if name in RIGHT else VALUES for name in NAMES}
)


def by_the_model(value: Any) -> Answer:
    return answer._checked(value)


@settings(max_examples=1500, deadline=None)
@given(ANSWERS | VALUES)
def test_the_fast_way_in_says_what_the_model_says_or_nothing(value: Any) -> None:
    found = plain(value)
    assert found is None or found == by_the_model(value)
    assert answer_of(value) == by_the_model(value)


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries(
        {"message": st.text(st.characters(exclude_categories=["Cs"]), min_size=1), **CLAIMS},
        optional={"arrival_commitment_days": st.integers(0, 36_500) | st.none(), "usage": st.none()},
    )
)
def test_what_agents_usually_answer_takes_the_fast_way(value: dict[str, Any]) -> None:
    assert plain(value) == by_the_model(value)


def test_the_words_and_defaults_are_the_models() -> None:
    for name, words in answer.WORDS.items():
        assert words == set(get_args(Claims.model_fields[name].annotation))
    defaults = Claims(claimed_outcome="needs_review").model_dump(mode="json")
    assert list(answer.UNSET) == list(defaults)
    assert defaults | {"claimed_outcome": None} == answer.UNSET
    of_unanswered = Claims(claimed_outcome="needs_review", settlement_status_claim="unknown")
    assert unanswered() == of_unanswered.model_dump(mode="json")
    assert failure("TimeLimit") == Answer("", unanswered(), None, "TimeLimit")


@pytest.mark.parametrize("value", [None, [], {}, {"message": "x"}, {"message": "", "claimed_outcome": "refunded"}])
def test_what_is_no_answer_is_an_invalid_output(value: Any) -> None:
    assert answer_of(value) == failure("InvalidOutput")


def test_usage_is_the_models_business() -> None:
    value = {"message": "x", "claimed_outcome": "refunded", "usage": {"model": "m", "input_tokens": 3}}
    assert plain(value) is None
    found = answer_of(value)
    assert found.usage is not None
    assert (found.usage["model"], found.usage["input_tokens"], found.usage["cost"]) == ("m", 3, None)


def test_what_a_pod_of_a_packaged_agent_never_loads() -> None:
    """Pydantic would double what the pod's whole life costs, orjson and what comes with it would add a third."""
    code = (
        "import sys, simulator.pod, simulator.worlds.orders\n"
        "from simulator.agents import load_agent, packaged_agents\n"
        "[load_agent(name) for name in packaged_agents()]\n"
        "heavy = {'pydantic', 'pydantic_core', 'httpx', 'orjson', 'rfc8785', 'dataclasses', 'inspect', 'uuid'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
