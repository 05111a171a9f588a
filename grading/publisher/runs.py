"""Brings the runs, evaluations and traces of one experiment to what is desired, posting only what differs.

Order within a batch: runs, then their evaluations (replacing an errored run deletes them), then spans; a batch's spans
are read back after the next batch was sent, because being accepted by Phoenix is not being stored.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from grading.publisher import outgoing, traces
from grading.publisher.desired import DesiredCondition, DesiredEvaluation, DesiredRun
from grading.publisher.phoenix import Experiment, Phoenix, PhoenixConflict, PhoenixRefused, PhoenixUnavailable
from simulator.canonical import canonical, canonical_hash

FORMAT = 1
"""Raised when the same ledger and grade are shown differently: everything is then compared again."""

_BATCH_RUNS = 50
_BATCH_SPANS = 400
_SPANS_A_REQUEST = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Key = tuple[str, int]
"""Node id of the example, Phoenix's repetition number."""


class Changed(Exception):  # noqa: N818 - a turn of events, caught by the caller that recreates the experiment
    """A run is there that Phoenix cannot change to what is desired: only a new experiment can show it."""


@dataclass(slots=True)
class Counts:
    """What publishing did."""

    runs_posted: int = 0
    evaluations_posted: int = 0
    spans_sent: int = 0
    spans_unconfirmed: int = 0
    experiments_created: int = 0
    experiments_removed: int = 0


@dataclass(slots=True)
class _Actual:
    id: str
    digest: str
    errored: bool
    evaluations: dict[str, str | None] = field(default_factory=dict)
    """Digest by name; None for one that a person gave, which is never replaced."""


def digest(condition: DesiredCondition) -> str:
    """A hash over all that is shown of a condition, and the number of its runs.

    Where the one kept in Phoenix is equal, there is nothing to do.
    """
    head = [FORMAT, condition.name, condition.final, condition.baseline, condition.description]
    seen = hashlib.sha256(canonical([*head, outgoing.json(dict(condition.metadata))]))
    runs = 0
    for run in condition.runs():
        _add(seen, run)
        runs += 1
    return f"{FORMAT}:{seen.hexdigest()}:{runs}"


class Filling:
    """One pass over one experiment.

    Args:
        nodes: Phoenix's node id for each case id.
        guard: called before each batch of writes; raises when the lease is lost or the experiment is no longer ours.
        note: called with what a person should know.
        progress: called with the number of runs that are in place.
        patience: seconds without any further span being stored after which a batch's spans are given up for now.
    """

    def __init__(
        self,
        client: Phoenix,
        experiment: Experiment,
        nodes: Mapping[str, str],
        counts: Counts,
        *,
        guard: Callable[[], None],
        note: Callable[[str], None],
        progress: Callable[[int], None],
        patience: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._experiment = experiment
        self._project = experiment.project_name
        self._nodes = nodes
        self._counts = counts
        self._guard = guard
        self._note = note
        self._progress = progress
        self._patience = patience
        self._sleep = sleep
        self._clock = clock
        self._actual: dict[Key, _Actual] = {}

    def fill(self, condition: DesiredCondition) -> None:
        """Posts what is missing.

        Raises:
            Changed: where the experiment must be made anew.
        """
        self._actual = self._read()
        known, seen, done = bool(self._actual), set[Key](), 0
        previous: list[DesiredRun] = []
        for batch in _batches(condition.runs()):
            self._guard()
            self._post_batch(batch, seen)
            stored = self._stored(batch) if known else set()
            self._send(batch, stored)
            self._confirm(previous)
            previous, done = batch, done + len(batch)
            self._progress(done)
        self._confirm(previous)
        if self._actual.keys() - seen:
            raise Changed(f"{len(self._actual.keys() - seen)} runs are shown that are no longer in the store")

    def _post_batch(self, batch: list[DesiredRun], seen: set[Key]) -> None:
        for run in batch:
            key = (self._nodes[run.case_id], run.repetition + 1)
            if key in seen:
                raise ValueError(f"repetition {run.repetition} of {run.case_id} is desired twice")
            seen.add(key)
            try:
                self._post(run, key)
            except PhoenixUnavailable:
                # An experiment, example or run that is gone answers 500 too.
                self._guard()
                raise

    def _read(self) -> dict[Key, _Actual]:
        actual = {}
        for run in self._client.runs(self._experiment.id):
            key = (run["dataset_example_id"], run["repetition_number"])
            actual[key] = _Actual(run["id"], _run_digest(run), run["error"] is not None)
        if actual:
            for run in self._evaluated_runs():
                found = actual.get((run["example_id"], run["repetition_number"]))
                if found is not None:
                    found.evaluations = {
                        shown["name"]: None if shown["annotator_kind"] == "HUMAN" else _evaluation_digest(shown)
                        for shown in run["annotations"]
                    }
        return actual

    def _evaluated_runs(self) -> list[Mapping[str, Any]]:
        try:
            return self._client.evaluated_runs(self._experiment.id)
        except PhoenixUnavailable as error:
            name = self._client.experiment(self._experiment.id).name
            if name == outgoing.name(name):
                raise
            raise PhoenixRefused(
                f"Phoenix cannot export an experiment named {name!r} (it puts the name into an HTTP header), so its "
                "evaluations cannot be read back: rename it there with Latin letters, then publish again"
            ) from error

    def _post(self, run: DesiredRun, key: Key) -> None:
        body = _run_body(run, key, self._project)
        wanted = _run_digest(body)
        there = self._actual.get(key)
        if there is None or there.digest != wanted:
            if there is not None and not there.errored:
                raise Changed(f"repetition {run.repetition} of {run.case_id} has other evidence than is shown")
            human = {name: None for name, shown in (there.evaluations if there else {}).items() if shown is None}
            there = self._actual[key] = self._posted(body, key, wanted)
            there.evaluations = {**there.evaluations, **human}
            self._counts.runs_posted += 1
        for evaluation in run.evaluations:
            self._evaluate(run, evaluation, there)

    def _posted(self, body: Mapping[str, Any], key: Key, wanted: str) -> _Actual:
        try:
            run_id = self._client.post_run(self._experiment.id, body)
        except PhoenixConflict:
            # Ours, from a request whose answer was lost, or another publisher's: what is there decides.
            there = self._read().get(key)
            if there is None or there.digest != wanted:
                raise Changed("another run was published in its place") from None
            return there
        return _Actual(run_id, wanted, body["error"] is not None)

    def _evaluate(self, run: DesiredRun, evaluation: DesiredEvaluation, there: _Actual) -> None:
        body = _evaluation_body(run, evaluation)
        wanted = _evaluation_digest(body | body["result"])
        shown = there.evaluations.get(evaluation.name, "")
        if shown is None:
            self._note(
                f"{evaluation.name} of {run.case_id}, repetition {run.repetition}, was given by a person and is kept"
            )
        elif shown != wanted:
            self._client.post_evaluation({"experiment_run_id": there.id, **body})
            there.evaluations[evaluation.name] = wanted
            self._counts.evaluations_posted += 1

    def _stored(self, runs: Iterable[DesiredRun]) -> set[str]:
        ids = [traces.trace_id(self._project, run.case_id, run.repetition) for run in runs if run.spans]
        return self._client.stored_spans(self._project, ids) if ids else set()

    def _send(self, runs: Iterable[DesiredRun], stored: set[str]) -> None:
        request, spans = b"", 0
        for run in runs:
            numbers = [n for n, span in enumerate(traces.span_ids(self._project, run)) if span not in stored]
            for at in range(0, len(numbers), _SPANS_A_REQUEST):
                part = numbers[at : at + _SPANS_A_REQUEST]
                # Protobuf messages of one type merge when they are concatenated.
                request += traces.otlp(self._project, [(run, part)])
                spans += len(part)
                if spans >= _SPANS_A_REQUEST:
                    self._client.send_spans(request)
                    self._counts.spans_sent += spans
                    request, spans = b"", 0
        if request:
            self._client.send_spans(request)
            self._counts.spans_sent += spans

    def _confirm(self, runs: list[DesiredRun]) -> None:
        wanted = {span for run in runs for span in traces.span_ids(self._project, run)}
        pause, best = 0.05, -1
        progressed = sent = self._clock()
        while wanted:
            stored = self._stored(runs)
            missing = wanted - stored
            if not missing:
                return
            now = self._clock()
            if len(stored) > best:
                best, progressed = len(stored), now
            elif now - progressed > self._patience:
                self._counts.spans_unconfirmed += len(missing)
                return
            elif now - max(progressed, sent) > self._patience / 4:
                # Accepted, and lost with the process that held them in memory.
                self._send(runs, stored)
                sent = now
            self._sleep(pause)
            pause = min(2 * pause, 0.5)


def _batches(runs: Iterator[DesiredRun]) -> Iterator[list[DesiredRun]]:
    batch: list[DesiredRun] = []
    spans = 0
    for run in runs:
        batch.append(run)
        spans += len(run.spans)
        if len(batch) >= _BATCH_RUNS or spans >= _BATCH_SPANS:
            yield batch
            batch, spans = [], 0
    if batch:
        yield batch


def _run_body(run: DesiredRun, key: Key, project_name: str) -> dict[str, Any]:
    return {
        "dataset_example_id": key[0],
        "repetition_number": key[1],
        "output": outgoing.json(run.output),
        "error": None if run.error is None else outgoing.text(run.error),
        "start_time": _iso(run.started),
        "end_time": _iso(run.ended),
        "trace_id": traces.trace_id(project_name, run.case_id, run.repetition) if run.spans else None,
    }


def _run_digest(run: Mapping[str, Any]) -> str:
    times = [_microseconds(run[name]) for name in ("start_time", "end_time")]
    return canonical_hash([run["output"], run["error"], run["trace_id"], *times])


def _evaluation_body(run: DesiredRun, evaluation: DesiredEvaluation) -> dict[str, Any]:
    # Times are the run's end: when a grader happened to run says nothing, and a repeat must find the same.
    return {
        "name": evaluation.name,
        "annotator_kind": evaluation.annotator_kind,
        "start_time": _iso(run.ended),
        "end_time": _iso(run.ended),
        "result": {
            "label": outgoing.text(evaluation.label),
            "score": evaluation.score,
            "explanation": outgoing.text(evaluation.explanation) or None,
        },
        "metadata": outgoing.json(dict(evaluation.metadata)),
    }


def _evaluation_digest(shown: Mapping[str, Any]) -> str:
    names = ("annotator_kind", "label", "score", "explanation", "metadata")
    return canonical_hash([shown[name] for name in names])


def _add(seen: Any, run: DesiredRun) -> None:
    seen.update(
        canonical(
            [
                _run_digest(_run_body(run, ("", 0), "")),
                run.case_id,
                run.repetition,
                [_evaluation_body(run, evaluation) for evaluation in run.evaluations],
                [asdict(span) for span in run.spans],
            ]
        )
    )


def _iso(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()


def _microseconds(iso: str) -> int:
    return (datetime.fromisoformat(iso) - _EPOCH) // timedelta(microseconds=1)
