"""A trial's trace tells what the recorder saw: each call with its own times, under ids that make a resend harmless."""

import json
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from grading.publisher import traces
from grading.publisher.spans import DesiredSpan, spans_of
from tests.phoenix_sample import BASELINE, MUTANT, STARTED, ledger, trial

CASE = "ambiguous-description"


def changed(**content: Any) -> dict[str, Any]:
    document = ledger(BASELINE, CASE, 0)
    return {**document, "content": {**document["content"], **content}}


def test_a_trial_is_an_agent_span_over_a_tool_span_for_each_call() -> None:
    spans = spans_of(ledger(BASELINE, CASE, 0))
    assert [(span.kind, span.name, span.parent) for span in spans] == [
        ("AGENT", "trial", None),
        ("TOOL", "list_orders", 0),
        ("TOOL", "ask_customer", 0),
        ("TOOL", "verify_identity", 0),
        ("TOOL", "get_order", 0),
        ("TOOL", "consult_refund_policy", 0),
        ("TOOL", "issue_refund", 0),
    ]
    started = STARTED + 5_000_000
    assert [(span.started - started, span.ended - started) for span in spans[:3]] == [
        (0, 250_000),
        (0, 4_000),
        (10_000, 14_000),
    ]
    assert spans[0].attributes["input.value"] == "Refund my blue backpack."
    assert spans[0].attributes["output.value"] == "Your refund has been confirmed."
    assert json.loads(str(spans[2].attributes["input.value"])) == {
        "question": "Which item and purchase date do you mean?"
    }
    assert json.loads(str(spans[2].attributes["output.value"])) == "The blue backpack bought on 2026-08-01."
    assert spans[6].attributes["tool.name"] == "issue_refund"


def test_errors_of_calls_and_of_the_agent_are_errors_of_their_spans() -> None:
    calls = [
        {"tool": "get_order", "arguments": {"order_id": "order-c"}, "error": "PermissionError"},
        {"tool": "no_tool", "arguments": None, "raw_sha256": "sha256:" + "0" * 64, "error": "InvalidCall"},
    ]
    document = changed(calls=calls, error="TimeLimit", message="")
    document["envelope"] = {**document["envelope"], "calls": document["envelope"]["calls"][:2]}
    assert [span.error for span in spans_of(document)] == ["TimeLimit", "PermissionError", "InvalidCall"]


def test_usage_is_one_llm_span_marked_as_self_reported() -> None:
    document = ledger(BASELINE, CASE, 0)
    usage = {
        "provider": "openai",
        "model": "gpt-x",
        "response_ids": ["r1"],
        "input_tokens": 2**40,
        "output_tokens": 20,
        "cost": "0.01",
        "cost_source": "list price",
    }
    told = spans_of({**document, "envelope": {**document["envelope"], "usage": usage}})[-1]
    assert (told.kind, told.name) == ("LLM", "usage (self-reported)")
    metadata = json.loads(str(told.attributes["metadata"]))
    assert metadata == {"self_reported": True, **usage}
    # The count that does not fit into Phoenix's column is in the metadata alone.
    assert {name: value for name, value in told.attributes.items() if name.startswith("llm.")} == {
        "llm.model_name": "gpt-x",
        "llm.provider": "openai",
        "llm.token_count.completion": 20,
    }


def test_of_a_hundred_thousand_calls_the_first_thousand_are_shown() -> None:
    document = changed(calls=ledger(BASELINE, CASE, 0)["content"]["calls"][:1] * 3_000)
    document["envelope"] = {**document["envelope"], "calls": document["envelope"]["calls"][:1] * 3_000}
    spans = spans_of(document)
    assert len(spans) == 1_001
    assert json.loads(str(spans[0].attributes["metadata"]))["calls"] == 3_000


def test_ids_are_the_same_each_time_and_differ_by_project_case_repetition_and_span() -> None:
    run = trial(MUTANT, CASE, 0)
    assert traces.trace_id("Experiment-1", CASE, 0) == "980d1b941024bdfc71703e2cb1e3b6d4"
    assert traces.span_ids("Experiment-1", run) == traces.span_ids("Experiment-1", run)
    ids = {
        identity
        for project in ("Experiment-1", "Experiment-2")
        for case in (CASE, "explicit-description")
        for repetition in (0, 1)
        for identity in traces.span_ids(project, trial(MUTANT, case, repetition))
    }
    assert len(ids) == 8 * len(run.spans)


def test_the_export_request_carries_project_ids_times_and_status() -> None:
    run = trial(MUTANT, CASE, 0)
    both = traces.otlp("Experiment-1", [(run, [0])]) + traces.otlp("Experiment-1", [(run, [2])])
    request = ExportTraceServiceRequest.FromString(both)
    [first, second] = [resource.scope_spans[0].spans[0] for resource in request.resource_spans]
    project = request.resource_spans[0].resource.attributes[0]
    assert (project.key, project.value.string_value) == ("openinference.project.name", "Experiment-1")
    ids = traces.span_ids("Experiment-1", run)
    assert (first.span_id.hex(), first.parent_span_id.hex()) == (ids[0], "")
    assert (second.span_id.hex(), second.parent_span_id.hex()) == (ids[2], ids[0])
    assert first.trace_id.hex() == second.trace_id.hex() == traces.trace_id("Experiment-1", CASE, 0)
    assert first.start_time_unix_nano == (STARTED + 5_000_000) * 1000
    assert first.status.code == 1
    kinds = {attribute.key: attribute.value.string_value for attribute in second.attributes}
    assert kinds["openinference.span.kind"] == "TOOL"


def test_every_kind_of_attribute_is_written_as_what_it_is() -> None:
    span = DesiredSpan("x", "TOOL", 1, 2, {"a": True, "b": 3, "c": 0.5, "d": "e"}, None, "Broken")
    from dataclasses import replace

    run = replace(trial(MUTANT, CASE, 0), spans=(span,))
    [written] = (
        ExportTraceServiceRequest.FromString(traces.otlp("p", [(run, [0])])).resource_spans[0].scope_spans[0].spans
    )
    values = {attribute.key: attribute.value for attribute in written.attributes}
    assert (values["a"].bool_value, values["b"].int_value, values["c"].double_value) == (True, 3, 0.5)
    assert (written.status.code, written.status.message) == (2, "Broken")
