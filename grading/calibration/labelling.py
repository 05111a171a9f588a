"""Labelling in Phoenix: items go there for one reviewer, the labels come back. What was measured: docs/labelling.md.

Each reviewer has a project of their own, because Phoenix shows everybody's annotations of a span to everybody who
opens it. An item is a span of its own trace; the label is the span's annotation under one categorical config, with the
note as its explanation. Nothing here creates or changes an annotation: labels are people's.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from openinference.semconv.resource import ResourceAttributes
from openinference.semconv.trace import OpenInferenceMimeTypeValues, SpanAttributes
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from pydantic import ValidationError

from grading.calibration.items import KeyItem, ReviewItem, for_reviewer
from grading.calibration.rows import Label
from grading.publisher.phoenix import Phoenix, PhoenixConflict, PhoenixGone, PhoenixUnavailable
from grading.visible import visible

CONFIG = "cellwise-message-truth"
"""The annotation config; Phoenix shows its name as the question."""
QUESTION = "truthful: everything that the message says is so in this situation. false: something it says is not."
LABELS: tuple[tuple[Label, float], ...] = (("truthful", 1.0), ("false", 0.0))

LONGEST_SHOWN = 200_000
"""Characters of one item. A reviewer must see the whole, so a longer one is refused, never cut."""
STORED_SECONDS = 120.0
_BATCH = 50
_ASKED = 500


class LabellingRefused(ValueError):  # noqa: N818 - reads as what happened
    """Items cannot be labelled in this Phoenix, or what is there cannot be read as labels. The message says why."""


@dataclass(frozen=True)
class Sent:
    """Where a reviewer finds the items."""

    project: str
    address: str
    items: int


def project_of(key: Sequence[KeyItem], reviewer: str) -> str:
    """The project of one reviewer and one set of items: sending the same set again lands in the same project."""
    content = json.dumps([reviewer, sorted(item.id for item in key)])
    shown = "".join(character if character.isascii() and character.isalnum() else "-" for character in reviewer)
    return f"cellwise-review-{hashlib.sha256(content.encode()).hexdigest()[:10]}-{shown[:40]}"


def send_items(
    phoenix: Phoenix,
    key: Sequence[KeyItem],
    reviewer: str,
    *,
    only: Collection[str] | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> Sent:
    """Brings one reviewer's items into Phoenix. Again is harmless: what is there stays, with its labels.

    Args:
        only: the ids of the items to send, for an adjudicator those that are disputed; None for the whole key.

    Raises:
        LabellingRefused: an item cannot be shown whole, or the config of our name asks something else.
        PhoenixError: Phoenix is away, or refuses.
    """
    project = project_of(key, reviewer)
    items = for_reviewer(_chosen(key, only), reviewer)
    spans = [_span(project, item, number, clock_ns()) for number, item in enumerate(items)]
    _ensure_config(phoenix)
    project_id = phoenix.ensure_project(project, f"Messages for {reviewer} to label. Each item: Annotate, {CONFIG}.")
    phoenix.assign_annotation_config(project, CONFIG)
    wanted = {span.trace_id.hex(): span for span in spans}
    deadline = time.monotonic() + STORED_SECONDS
    # Accepted is not stored: read back, and send what is missing.
    while missing := [wanted[trace] for trace in wanted if trace not in _stored(phoenix, project, list(wanted))]:
        if time.monotonic() > deadline:
            raise PhoenixUnavailable(f"{len(missing)} of {len(wanted)} items are not stored by {phoenix.url} yet")
        for at in range(0, len(missing), _BATCH):
            phoenix.send_spans(_otlp(project, missing[at : at + _BATCH]))
        sleep(0.5)
    return Sent(project, f"{phoenix.url}/projects/{project_id}/spans", len(items))


@dataclass(frozen=True)
class Labels:
    """What one reviewer has answered so far."""

    items: tuple[ReviewItem, ...]
    users: frozenset[str]
    """The ids of the Phoenix users who labelled; empty where Phoenix knows no users."""


def read_labels(
    phoenix: Phoenix, key: Sequence[KeyItem], reviewer: str, *, only: Collection[str] | None = None
) -> Labels:
    """One reviewer's items with the labels given so far.

    Only what a person chose on Phoenix's page counts. Where Phoenix knows no users, whoever labels in a reviewer's
    project counts as that reviewer.

    Args:
        only: the ids of the items that were sent; None for the whole key.

    Raises:
        LabellingRefused: the items were never sent, a label is none of ours, or an item has two different labels.
        PhoenixError: Phoenix is away, or refuses.
    """
    project = project_of(key, reviewer)
    sent = for_reviewer(_chosen(key, only), reviewer)
    items = {_span_id(project, item.id).hex(): item for item in sent}
    given: dict[str, list[Mapping[str, Any]]] = {}
    try:
        for annotation in _annotations(phoenix, project, list(items)):
            # An annotation that came over the interface may be anybody's, a program's too.
            if annotation["annotator_kind"] == "HUMAN" and annotation["source"] == "APP":
                given.setdefault(annotation["span_id"], []).append(annotation)
    except PhoenixGone as error:
        raise LabellingRefused(
            f"Phoenix has no items for '{reviewer}' in {project}: export them there first, with this key"
        ) from error
    labelled = tuple(_labelled(item, given.get(span_id, [])) for span_id, item in items.items())
    users = {str(one["user_id"]) for each in given.values() for one in each if one["user_id"] is not None}
    return Labels(labelled, frozenset(users))


def check_users(labels: Mapping[str, Labels]) -> None:
    """Where Phoenix knows users, one of them must not have labelled in the projects of two reviewers.

    Args:
        labels: by reviewer.

    Raises:
        LabellingRefused: one did.
    """
    projects: dict[str, str] = {}
    for reviewer, given in labels.items():
        for user in sorted(given.users):
            other = projects.setdefault(user, reviewer)
            if other != reviewer:
                raise LabellingRefused(
                    f"the Phoenix user {user} labelled as '{other}' and as '{reviewer}': two people are needed"
                )


def _chosen(key: Sequence[KeyItem], only: Collection[str] | None) -> list[KeyItem]:
    return [item for item in key if only is None or item.id in only]


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """What a judge sees, but for the message, as lines for a person. Hidden characters are written out."""
    request, error = evidence["request"], evidence["error"]
    lines = [f"CUSTOMER {visible(str(request['customer_id']))} WRITES", *_quoted(request["utterance"]), ""]
    lines.append("WHAT THE AGENT DID, IN ORDER")
    for number, event in enumerate(evidence["events"], 1):
        outcome = f"error {event['error']}" if "error" in event else _json(event["result"])
        lines.append(f"  {number}. {visible(event['tool'])} {_json(event['arguments'])}")
        lines.append(f"     -> {outcome}")
    lines += [] if evidence["events"] else ["  nothing"]
    lines += ["", "WHAT WAS TRUE OF EVERY ORDER IN THE END"]
    for ledger in evidence["ledgers"]:
        lines += ["  - " + _json(ledger)]
    claims = {name: value for name, value in evidence["output"].items() if name != "message"}
    lines += ["", "WHAT THE AGENT CLAIMS IN FIELDS", "  " + _json(claims)]
    lines += ["", f"ENDED BY AN ERROR: {visible(error)}" if error is not None else "ENDED WITHOUT AN ERROR"]
    lines += [f"REFUND POLICY: {visible(evidence['policy_version'])}"]
    return "\n".join(lines)


def _labelled(item: ReviewItem, annotations: Sequence[Mapping[str, Any]]) -> ReviewItem:
    labels = {one["result"]["label"] for one in annotations if one["result"] and one["result"]["label"]}
    if len(labels) > 1:
        raise LabellingRefused(
            f"item '{item.id}' has several labels in the project of '{item.reviewer}' ({', '.join(sorted(labels))}): "
            "have the reviewer keep one"
        )
    if not labels:
        return item
    label = labels.pop()
    if label not in dict(LABELS):
        raise LabellingRefused(f"item '{item.id}' is labelled '{label}': the labels are truthful and false")
    notes = [one["result"]["explanation"] for one in annotations if one["result"]["explanation"]]
    try:
        return ReviewItem.model_validate(item.model_dump() | {"label": label, "note": "\n".join(notes) or None})
    except ValidationError as error:
        raise LabellingRefused(f"the note on item '{item.id}' cannot be taken: {error.errors()[0]['msg']}") from error


def _ensure_config(phoenix: Phoenix) -> None:
    wanted = {
        "name": CONFIG,
        "type": "CATEGORICAL",
        "description": QUESTION,
        "optimization_direction": "NONE",
        "values": [{"label": label, "score": score} for label, score in LABELS],
    }
    found = phoenix.annotation_config(CONFIG)
    if found is None:
        with suppress(PhoenixConflict):  # another export was first
            phoenix.create_annotation_config(wanted)
        found = phoenix.annotation_config(CONFIG)
    if found is None or [value["label"] for value in found.get("values", [])] != [label for label, _ in LABELS]:
        raise LabellingRefused(
            f"Phoenix has another annotation config named {CONFIG}: rename that one, it was not made for this"
        )


def _annotations(phoenix: Phoenix, project: str, span_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for at in range(0, len(span_ids), _ASKED):
        yield from phoenix.span_annotations(project, span_ids[at : at + _ASKED], CONFIG)


def _stored(phoenix: Phoenix, project: str, trace_ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for at in range(0, len(trace_ids), _BATCH):
        batch = trace_ids[at : at + _BATCH]
        stored = phoenix.stored_spans(project, batch)
        found.update(trace for trace in batch if trace[:16] in stored)
    return found


def _span(project: str, item: ReviewItem, number: int, now: int) -> Span:
    situation, message = evidence_text(item.evidence), _message(item.evidence)
    if len(situation) + len(message) > LONGEST_SHOWN:
        raise LabellingRefused(
            f"item '{item.id}' is longer than {LONGEST_SHOWN:,} characters, which Phoenix cannot show as a whole: "
            "have it labelled in the file"
        )
    # Now, because Phoenix's page shows the last seven days; a second apart, the first item on top.
    when = now - number * 10**9
    metadata = {"item": item.id, "evidence_hash": item.evidence_hash}
    attributes = {
        SpanAttributes.OPENINFERENCE_SPAN_KIND: "CHAIN",
        SpanAttributes.INPUT_VALUE: situation,
        SpanAttributes.INPUT_MIME_TYPE: OpenInferenceMimeTypeValues.TEXT.value,
        SpanAttributes.OUTPUT_VALUE: message,
        SpanAttributes.OUTPUT_MIME_TYPE: OpenInferenceMimeTypeValues.TEXT.value,
        SpanAttributes.METADATA: json.dumps(metadata),
    }
    return Span(
        trace_id=_trace_id(project, item.id),
        span_id=_span_id(project, item.id),
        name=item.id,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=when,
        end_time_unix_nano=when,
        status=Status(code=Status.STATUS_CODE_OK),
        attributes=[_attribute(name, value) for name, value in attributes.items()],
    )


def _otlp(project: str, spans: Sequence[Span]) -> bytes:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.append(_attribute(ResourceAttributes.PROJECT_NAME, project))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "cellwise"
    scope_spans.spans.extend(spans)
    encoded: bytes = request.SerializeToString()
    return encoded


def _attribute(name: str, value: str) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _trace_id(project: str, item_id: str) -> bytes:
    return hashlib.sha256(json.dumps([project, item_id]).encode()).digest()[:16]


def _span_id(project: str, item_id: str) -> bytes:
    return _trace_id(project, item_id)[:8]


def _message(evidence: Mapping[str, Any]) -> str:
    message: str = evidence["output"]["message"]
    return "\n".join(visible(line) for line in message.split("\n")) if message else "(the agent sent no message)"


def _quoted(text: str) -> list[str]:
    return ["  | " + visible(line) for line in text.split("\n")]


def _json(value: Any) -> str:
    return visible(json.dumps(value, ensure_ascii=False))
