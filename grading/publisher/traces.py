"""A trial's trace as it is sent: ids that a resend gives again, and the OTLP form of its spans."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from openinference.semconv.resource import ResourceAttributes
from openinference.semconv.trace import SpanAttributes
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from grading.publisher import outgoing
from grading.publisher.desired import DesiredRun
from grading.publisher.spans import DesiredSpan

SCOPE = "cellwise"


def trace_id(project_name: str, case_id: str, repetition: int) -> str:
    """32 hex digits. Phoenix's ids are global and the first write wins; a project's name is random for each experiment,
    so a resend is dropped and a recreated experiment gets traces of its own."""
    return _digest(project_name, case_id, repetition)[:16].hex()


def span_ids(project_name: str, run: DesiredRun) -> list[str]:
    """16 hex digits for each span of a run, in order."""
    return [_digest(project_name, run.case_id, run.repetition, number)[:8].hex() for number in range(len(run.spans))]


def otlp(project_name: str, runs: Iterable[tuple[DesiredRun, Sequence[int]]]) -> bytes:
    """An OTLP export request (protobuf) with the spans of the given numbers of each run."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.append(_attribute(ResourceAttributes.PROJECT_NAME, project_name))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = SCOPE
    for run, numbers in runs:
        trace = bytes.fromhex(trace_id(project_name, run.case_id, run.repetition))
        ids = [bytes.fromhex(span) for span in span_ids(project_name, run)]
        for number in numbers:
            scope_spans.spans.append(_span(run.spans[number], trace, ids, number))
    encoded: bytes = request.SerializeToString()
    return encoded


def _span(span: DesiredSpan, trace: bytes, ids: Sequence[bytes], number: int) -> Span:
    encoded = Span(
        trace_id=trace,
        span_id=ids[number],
        parent_span_id=b"" if span.parent is None else ids[span.parent],
        name=span.name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.started * 1000,
        end_time_unix_nano=span.ended * 1000,
        status=Status(code=Status.STATUS_CODE_OK)
        if span.error is None
        else Status(code=Status.STATUS_CODE_ERROR, message=outgoing.text(span.error)),
    )
    encoded.attributes.append(_attribute(SpanAttributes.OPENINFERENCE_SPAN_KIND, span.kind))
    encoded.attributes.extend(_attribute(name, value) for name, value in span.attributes.items())
    return encoded


def _attribute(name: str, value: str | int | float | bool) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=name, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _digest(*parts: str | int) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()
