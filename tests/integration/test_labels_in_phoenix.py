"""Labels that people give in Phoenix come back as they were given, and nothing else comes back as a label."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from grading.calibration.items import KeyItem, ReviewItem, Source, items_of
from grading.calibration.labelling import (
    CONFIG,
    LabellingRefused,
    Labels,
    check_users,
    project_of,
    read_labels,
    send_items,
)
from grading.calibration.rows import Scope
from grading.phoenix_server import EmbeddedPhoenix
from grading.publisher.phoenix import Phoenix
from tests.integration.phoenix_fixture import phoenix_server

__all__ = ["phoenix_server"]

SCOPE = Scope(criterion="multi_order_customer_message_truth_v1", policy_version="policy-1", world="orders")
CREATE = """mutation($input: [CreateSpanAnnotationInput!]!) {
  createSpanAnnotations(input: $input) { spanAnnotations { id } } }"""


def key_of(batch: str, *messages: str) -> list[KeyItem]:
    """A key of a test's own: evidence, and so item and project, differ between tests."""
    sources = [
        Source(
            trial=f"secret-condition/secret-case/{number}",
            case="secret-case",
            customer=f"customer-{number}",
            slices={"feature": "secret-slice"},
            evidence={
                "policy_version": "policy-1",
                "request": {"utterance": f"{batch}: refund my backpack", "customer_id": "customer-1"},
                "output": {"message": message, "claimed_outcome": "refunded"},
                "events": [{"tool": "list_orders", "arguments": {"customer_id": "customer-1"}, "result": []}],
                "ledgers": [{"order_id": "order-a", "refund_transaction_count": 1}],
                "error": None,
            },
        )
        for number, message in enumerate(messages)
    ]
    return items_of(sources, scope=SCOPE, grouping="customer", synthetic=False)


@pytest.fixture
def phoenix(phoenix_server: EmbeddedPhoenix) -> Iterator[Phoenix]:
    with Phoenix(phoenix_server.url) as client:
        yield client


class Pages:
    """What Phoenix's page sends and shows, without the code under test."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def exists(self, project: str) -> bool:
        return self._http.get(f"/v1/projects/{project}").status_code == 200

    def spans(self, project: str) -> dict[str, dict[str, Any]]:
        found = self._http.get(f"/v1/projects/{project}/spans", params={"limit": 1000}).raise_for_status()
        return {span["name"]: span for span in found.json()["data"]}

    def choose(self, span: dict[str, Any], label: str, explanation: str | None = None, **changes: Any) -> None:
        """As choosing a label on the page."""
        one = {
            "name": CONFIG, "label": label, "score": 0, "spanId": span["id"], "annotatorKind": "HUMAN",
            "explanation": explanation, "source": "APP", "metadata": {},
        }  # fmt: skip
        answer = self._http.post("/graphql", json={"query": CREATE, "variables": {"input": [one | changes]}})
        assert "errors" not in answer.raise_for_status().json(), answer.text

    def configs(self, project: str) -> list[str]:
        found = self._http.get(f"/v1/projects/{project}/annotation_configs").raise_for_status()
        return [config["name"] for config in found.json()["data"]]


@pytest.fixture
def pages(phoenix_server: EmbeddedPhoenix) -> Iterator[Pages]:
    opened = Pages(phoenix_server.url)
    yield opened
    opened.close()


def labels_of(given: Labels) -> dict[str, tuple[str | None, str | None]]:
    return {item.id: (item.label, item.note) for item in given.items}


def test_labels_come_back_to_their_items(phoenix: Phoenix, pages: Pages) -> None:
    key = key_of("back", "Your money has arrived.", "Your refund has been confirmed.", "Wait.")
    for reviewer in ("alice", "bob"):
        assert send_items(phoenix, key, reviewer).items == 3
    alice = pages.spans(project_of(key, "alice"))
    one, two, three = (item.id for item in key)
    pages.choose(alice[one], "false", "nothing was settled")
    pages.choose(alice[two], "truthful")
    assert labels_of(read_labels(phoenix, key, "alice")) == {
        one: ("false", "nothing was settled"),
        two: ("truthful", None),
        three: (None, None),
    }
    assert set(labels_of(read_labels(phoenix, key, "bob")).values()) == {(None, None)}
    pages.choose(alice[one], "truthful")  # a person thinks again: Phoenix keeps the last
    assert labels_of(read_labels(phoenix, key, "alice"))[one] == ("truthful", None)
    assert all(isinstance(item, ReviewItem) for item in read_labels(phoenix, key, "alice").items)


def test_sending_again_adds_nothing_and_keeps_the_labels(phoenix: Phoenix, pages: Pages) -> None:
    key = key_of("again", "One.", "Two.")
    project = send_items(phoenix, key, "alice").project
    before = pages.spans(project)
    pages.choose(before[key[0].id], "false")
    assert send_items(phoenix, key, "alice").project == project
    assert pages.spans(project) == before
    assert pages.configs(project) == [CONFIG]
    assert labels_of(read_labels(phoenix, key, "alice"))[key[0].id] == ("false", None)


def test_a_reviewer_sees_nothing_that_could_sway_them(phoenix: Phoenix, pages: Pages) -> None:
    key = key_of("blind", "Your money\u202e has arrived.")
    (span,) = pages.spans(send_items(phoenix, key, "alice").project).values()
    assert "secret" not in str(span)
    assert span["attributes"]["output.value"] == "Your money⟨U+202E⟩ has arrived."
    assert set(span["attributes"]) == {
        "input.value", "input.mime_type", "output.value", "output.mime_type", "metadata.item", "metadata.evidence_hash",
    }  # fmt: skip
    assert "  | blind: refund my backpack" in span["attributes"]["input.value"]


def test_only_what_was_chosen_on_the_page_is_a_label(phoenix: Phoenix, pages: Pages) -> None:
    key = key_of("page", "One.", "Two.", "Three.")
    spans = pages.spans(send_items(phoenix, key, "alice").project)
    pages.choose(spans[key[0].id], "false", annotatorKind="LLM")
    pages.choose(spans[key[1].id], "false", source="API")
    pages.choose(spans[key[2].id], "false", name="another-question")
    assert set(labels_of(read_labels(phoenix, key, "alice")).values()) == {(None, None)}


def test_what_is_no_clear_label_is_refused(phoenix: Phoenix, pages: Pages) -> None:
    key = key_of("unclear", "One.", "Two.")
    spans = pages.spans(send_items(phoenix, key, "alice").project)
    pages.choose(spans[key[0].id], "perhaps")
    with pytest.raises(LabellingRefused, match=f"item '{key[0].id}' is labelled 'perhaps'"):
        read_labels(phoenix, key, "alice")
    pages.choose(spans[key[0].id], "false")
    pages.choose(spans[key[0].id], "truthful", identifier="somebody-else")
    with pytest.raises(LabellingRefused, match=r"has several labels in the project of 'alice' \(false, truthful\)"):
        read_labels(phoenix, key, "alice")


def test_items_that_were_never_sent_are_told(phoenix: Phoenix) -> None:
    with pytest.raises(LabellingRefused, match="no items for 'alice'"):
        read_labels(phoenix, key_of("never", "One."), "alice")


def test_an_adjudicator_gets_the_disputed_items_alone(phoenix: Phoenix, pages: Pages) -> None:
    key = key_of("disputed", "One.", "Two.", "Three.")
    sent = send_items(phoenix, key, "carol", only=[key[1].id])
    assert list(pages.spans(sent.project)) == [key[1].id]
    pages.choose(pages.spans(sent.project)[key[1].id], "false", "because")
    assert labels_of(read_labels(phoenix, key, "carol", only=[key[1].id])) == {key[1].id: ("false", "because")}
    # A later dispute joins it in the same project.
    assert send_items(phoenix, key, "carol", only=[key[1].id, key[2].id]).project == sent.project
    assert set(pages.spans(sent.project)) == {key[1].id, key[2].id}


def test_an_item_too_long_to_be_shown_whole_is_not_sent(phoenix: Phoenix, pages: Pages) -> None:
    key = key_of("long", "x" * 300_000)
    with pytest.raises(LabellingRefused, match="have it labelled in the file"):
        send_items(phoenix, key, "alice")
    assert not pages.exists(project_of(key, "alice"))


def test_a_long_message_is_shown_to_its_last_letter(phoenix: Phoenix, pages: Pages) -> None:
    message = "x" * 150_000 + " end"
    key = key_of("whole", message)
    (span,) = pages.spans(send_items(phoenix, key, "alice").project).values()
    assert span["attributes"]["output.value"] == message


def test_one_phoenix_user_is_not_two_reviewers() -> None:
    with pytest.raises(LabellingRefused, match="the Phoenix user U1 labelled as 'alice' and as 'bob'"):
        check_users({"alice": Labels((), frozenset({"U1"})), "bob": Labels((), frozenset({"U1", "U2"}))})
    check_users({"alice": Labels((), frozenset({"U1"})), "bob": Labels((), frozenset({"U2"}))})
