"""Publishing a matrix into Phoenix so that, after any sequence of interruptions, it is there exactly once.

Phoenix has no idempotency keys and hardly any constraint, so nothing is remembered about it: each time, what is there
is read, compared with what is desired, and the difference posted. An experiment of ours is known by a key in its
metadata. Whatever a person made is left alone: their experiments, examples, names, tags and annotations.
"""

import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from grading.publisher import outgoing
from grading.publisher.desired import COMPLETED, CONTRACT, COVERAGE, DesiredCondition, DesiredMatrix
from grading.publisher.phoenix import (
    Experiment,
    Phoenix,
    PhoenixGone,
    PhoenixRefused,
    PhoenixUnavailable,
)
from grading.publisher.runs import Changed, Counts, Filling, digest
from simulator.canonical import canonical_hash

KEY = "cellwise"
"""In an experiment's metadata: whose it is, manifest and condition."""
SUPERSEDED = "cellwise_superseded"
"""Instead of ``KEY`` on one that another of ours replaces and that is to be deleted."""
KEPT = "cellwise_kept"
"""Instead of ``SUPERSEDED`` on one that stays because a person annotated it."""
NAME = "cellwise_name"
"""The name that we gave last: where it is another now, a person chose it."""
DIGEST = "cellwise_digest"
TAGGED = "cellwise_baseline_tag"
"""We have set the baseline tag; where it is elsewhere now, a person moved it."""

BASELINE_TAG = "baseline"
OUR_EVALUATIONS = frozenset({CONTRACT, COMPLETED, COVERAGE, "semantic", "joint"})

_TRIES = 4

Progress = Callable[[str, int, int], None]
"""Told the condition, how many of its runs are in place, and how many there will be."""


@dataclass(frozen=True, slots=True)
class Published:
    """Where to look, and what was done."""

    dataset_url: str
    compare_url: str
    """Phoenix's comparison of the conditions, the baseline first."""
    counts: Counts
    notes: tuple[str, ...]
    """What a person should know, such as an annotation that was kept."""
    complete: bool
    """False while a condition is not final or spans are not yet stored: publish again later."""

    def moved(self, url: str, shown_at: str) -> "Published":
        """The same with links that begin with another address of the same Phoenix."""
        at = shown_at.rstrip("/")
        return replace(
            self,
            dataset_url=at + self.dataset_url.removeprefix(url),
            compare_url=at + self.compare_url.removeprefix(url),
        )


def publish(
    desired: DesiredMatrix,
    client: Phoenix,
    *,
    progress: Progress | None = None,
    lease: Callable[[], None] | None = None,
    thorough: bool = False,
    patience: float = 20.0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Published:
    """Brings Phoenix to the desired state. Repeating it is harmless, and quick where there is nothing to do.

    Args:
        lease: called before writing; raises when this process may no longer publish the matrix. Two publishers of one
            matrix at once would create experiments twice.
        thorough: reads everything back even where the digest in Phoenix says that nothing is to be done.
        patience: seconds to wait for accepted spans to be stored.

    Raises:
        PhoenixUnavailable: Phoenix is away or failing; what was published stays, publishing again goes on from there.
        PhoenixRefused: Phoenix said no; the message says what to do.
    """
    vanished: PhoenixGone | None = None
    for _ in range(_TRIES):
        publishing = _Publishing(desired, client, progress, lease, thorough, patience, sleep, clock)
        try:
            return publishing.publish()
        except PhoenixGone as gone:
            # Someone deleted what we were filling, or the database is another now: start from what is there.
            vanished = gone
    raise PhoenixUnavailable(f"what is being published keeps vanishing from {client.url}: {vanished}")


class _Publishing:
    """One try, with what was read in it; ids of Phoenix are never kept for longer."""

    def __init__(
        self,
        desired: DesiredMatrix,
        client: Phoenix,
        progress: Progress | None,
        lease: Callable[[], None] | None,
        thorough: bool,
        patience: float,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._desired = desired
        self._client = client
        self._progress = progress or (lambda condition, done, total: None)
        self._lease = lease or (lambda: None)
        self._thorough = thorough
        self._patience = patience
        self._sleep = sleep
        self._clock = clock
        self._counts = Counts()
        self._notes: dict[str, None] = {}
        self._name = outgoing.text(desired.name)
        self._total = len(desired.cases) * desired.repetitions

    def publish(self) -> Published:
        dataset_id, nodes, version_id = self._dataset()
        shown: dict[str, str] = {}
        complete = True
        for condition in sorted(self._desired.conditions, key=lambda condition: not condition.baseline):
            experiment, stored = self._condition(condition, dataset_id, version_id, nodes)
            shown[condition.name] = experiment.id
            complete = complete and stored and condition.final
        self._remove_superseded(dataset_id)
        dataset_url = f"{self._client.url}/datasets/{dataset_id}"
        compare = urlencode([("experimentId", experiment_id) for experiment_id in shown.values()])
        return Published(
            dataset_url=f"{dataset_url}/experiments",
            compare_url=f"{dataset_url}/compare?{compare}",
            counts=self._counts,
            notes=tuple(self._notes),
            complete=complete,
        )

    # The dataset

    def _dataset(self) -> tuple[str, Mapping[str, str], str]:
        """The dataset's id, the node id of each case, and a version that holds the cases as they are desired."""
        examples = [
            {
                "id": case.case_id,
                "input": outgoing.json(dict(case.input)),
                "output": outgoing.json(dict(case.output)),
                "metadata": outgoing.json(dict(case.metadata)),
            }
            for case in self._desired.cases
        ]
        wanted = {example["id"]: _content(example) for example in examples}
        dataset_id = self._client.dataset(self._name)
        if dataset_id is not None:
            found = self._version(dataset_id, wanted)
            if found is not None:
                return dataset_id, *found
        self._lease()
        description = outgoing.text(
            f"{self._desired.description}\n\nCellwise matrix {self._desired.manifest_hash}".strip()
        )
        self._client.append_examples(self._name, description, examples)
        dataset_id = self._client.dataset(self._name)
        found = self._version(dataset_id, wanted) if dataset_id is not None else None
        if dataset_id is None or found is None:
            raise PhoenixGone(f"the dataset {self._name!r} is not there after it was uploaded")
        return dataset_id, *found

    def _version(self, dataset_id: str, wanted: Mapping[str, str]) -> tuple[Mapping[str, str], str] | None:
        """The newest version with every case as desired. What a person edited or added since stays as it is."""
        ours = False
        for version_id in self._client.dataset_versions(dataset_id):
            there = self._client.examples(dataset_id, version_id)
            ours = ours or not wanted.keys().isdisjoint(there)
            shown = {
                case_id: _content({"input": example.input, "output": example.output, "metadata": example.metadata})
                for case_id, example in there.items()
                if case_id in wanted
            }
            if shown == wanted:
                return {case_id: there[case_id].node_id for case_id in wanted}, version_id
        if not ours:
            raise PhoenixRefused(
                f"Phoenix at {self._client.url} has another dataset named {self._name!r}, with none of these cases: "
                "rename it there, then publish again"
            )
        return None

    # One condition

    def _condition(
        self, condition: DesiredCondition, dataset_id: str, version_id: str, nodes: Mapping[str, str]
    ) -> tuple[Experiment, bool]:
        """The condition's experiment, filled, and whether all its spans are stored."""
        wanted = digest(condition)
        for _ in range(_TRIES):
            experiment = self._experiment(condition, dataset_id, version_id)
            if experiment.metadata.get(DIGEST) == wanted and not self._thorough:
                runs = int(wanted.rpartition(":")[2])
                if experiment.successful_runs + experiment.failed_runs == runs:
                    self._progress(condition.name, runs, self._total)
                    return experiment, True
            try:
                unconfirmed = self._fill(condition, experiment, nodes)
            except Changed as changed:
                self._notes[f"{condition.name}: the experiment was made anew, because {changed}"] = None
                self._supersede(experiment)
                continue
            self._tag(condition, experiment, dataset_id)
            self._patch(experiment, condition, {} if unconfirmed else {DIGEST: wanted})
            if unconfirmed:
                self._notes[f"{condition.name}: {unconfirmed} spans are not stored yet; publish again"] = None
            return experiment, not unconfirmed
        raise PhoenixUnavailable(f"the experiment of {condition.name!r} keeps changing: is another publisher at work?")

    def _experiment(self, condition: DesiredCondition, dataset_id: str, version_id: str) -> Experiment:
        """The one experiment of a condition. Of several, left by lost answers, the fullest stays."""
        key = self._key(condition)
        failure: PhoenixUnavailable | None = None
        for _ in range(_TRIES):
            ours = [found for found in self._client.experiments(dataset_id) if found.metadata.get(KEY) == key]
            if ours:
                ours.sort(key=lambda found: (-found.successful_runs - found.failed_runs, _row(found.id)))
                for duplicate in ours[1:]:
                    self._supersede(duplicate)
                return ours[0]
            self._lease()
            body = {
                "name": _shown_name(condition),
                "description": outgoing.text(condition.description) or None,
                "metadata": self._metadata(condition),
                "version_id": version_id,
                "repetitions": self._desired.repetitions,
            }
            try:
                self._client.create_experiment(dataset_id, body)
                self._counts.experiments_created += 1
            except PhoenixUnavailable as unknown:
                # It may be there nevertheless: the next listing tells.
                failure = unknown
                self._sleep(1.0)
        raise failure or PhoenixGone(f"the experiment of {condition.name!r} vanishes")

    def _fill(self, condition: DesiredCondition, experiment: Experiment, nodes: Mapping[str, str]) -> int:
        if DIGEST in experiment.metadata:
            # It no longer holds once the first run is posted.
            self._patch(experiment, condition, {})
        before = self._counts.spans_unconfirmed

        def guard() -> None:
            self._guard(experiment)

        filling = Filling(
            self._client,
            experiment,
            nodes,
            self._counts,
            guard=guard,
            note=lambda text: self._notes.setdefault(f"{condition.name}: {text}"),
            progress=lambda done: self._progress(condition.name, done, self._total),
            patience=self._patience,
            sleep=self._sleep,
            clock=self._clock,
        )
        filling.fill(condition)
        return self._counts.spans_unconfirmed - before

    def _guard(self, experiment: Experiment) -> Experiment:
        """The experiment as it is now. SQLite gives the id of a deleted one to the next, which may be a person's; a
        project's name is random and tells them apart."""
        self._lease()
        now = self._client.experiment(experiment.id)
        if now.project_name != experiment.project_name:
            raise PhoenixGone(f"the experiment {experiment.name!r} was replaced by another one")
        return now

    def _patch(self, experiment: Experiment, condition: DesiredCondition, ours: Mapping[str, Any]) -> None:
        """Sets our part of the metadata and, unless a person renamed it, the name."""
        now = self._guard(experiment)
        metadata = {name: value for name, value in now.metadata.items() if name != DIGEST}
        metadata |= self._metadata(condition) | dict(ours)
        changes: dict[str, Any] = {"metadata": metadata}
        if now.name == now.metadata.get(NAME):
            changes["name"] = _shown_name(condition)
        self._client.patch_experiment(experiment.id, **changes)

    def _metadata(self, condition: DesiredCondition) -> dict[str, Any]:
        return {
            **outgoing.json(dict(condition.metadata)),
            "condition": outgoing.text(condition.name),
            "state": "complete" if condition.final else "partial",
            KEY: self._key(condition),
            NAME: _shown_name(condition),
        }

    def _key(self, condition: DesiredCondition) -> str:
        return outgoing.text(f"{self._desired.manifest_hash} {condition.name}")

    # The baseline

    def _tag(self, condition: DesiredCondition, experiment: Experiment, dataset_id: str) -> None:
        """Marks the baseline once. A tag that a person moved, removed, or set on an experiment of theirs stays so."""
        now = self._guard(experiment)
        if not condition.baseline or now.metadata.get(TAGGED):
            return
        for other in self._client.experiments(dataset_id):
            ours = any(name in other.metadata for name in (KEY, SUPERSEDED))
            if not ours and BASELINE_TAG in self._client.tags(other.id):
                self._notes[
                    f"the baseline tag is on {other.name!r} and stays there; {condition.name!r} is this one's"
                ] = None
                return
        self._client.set_tag(experiment.id, BASELINE_TAG, "the baseline of the Cellwise matrix")
        self._client.patch_experiment(experiment.id, metadata={**now.metadata, TAGGED: True})

    # What is replaced

    def _supersede(self, experiment: Experiment) -> None:
        """Takes an experiment out of use; it is deleted once the one that replaces it is filled."""
        now = self._guard(experiment)
        metadata = {name: value for name, value in now.metadata.items() if name not in (KEY, DIGEST, TAGGED)}
        metadata |= {SUPERSEDED: now.metadata.get(KEY, ""), "state": "superseded"}
        self._client.patch_experiment(experiment.id, name=f"{now.name} (superseded)", metadata=metadata)

    def _remove_superseded(self, dataset_id: str) -> None:
        prefix = outgoing.text(f"{self._desired.manifest_hash} ")
        for experiment in list(self._client.experiments(dataset_id)):
            if not str(experiment.metadata.get(SUPERSEDED, "")).startswith(prefix):
                continue
            now = self._guard(experiment)
            if self._holds_what_a_person_made(now):
                self._notes[f"{now.name!r} is replaced but kept, because a person annotated it"] = None
                metadata = {name: value for name, value in now.metadata.items() if name != SUPERSEDED}
                metadata[KEPT] = now.metadata[SUPERSEDED]
                self._client.patch_experiment(now.id, metadata=metadata)
                continue
            try:
                self._client.delete_experiment(now.id)
                self._counts.experiments_removed += 1
            except PhoenixGone:
                continue
            except PhoenixUnavailable:
                # Done or not: where it is still there, the next publication removes it.
                self._notes[f"{now.name!r} could not be deleted yet"] = None

    def _holds_what_a_person_made(self, experiment: Experiment) -> bool:
        if self._client.tags(experiment.id) - {BASELINE_TAG}:
            return True
        for run in self._client.evaluated_runs(experiment.id):
            for shown in run["annotations"]:
                if shown["annotator_kind"] == "HUMAN" or shown["name"] not in OUR_EVALUATIONS:
                    return True
        found = [run["trace_id"] for run in self._client.runs(experiment.id) if run["trace_id"]]
        return any(
            self._client.trace_annotations(experiment.project_name, found[at : at + 50])
            for at in range(0, len(found), 50)
        )


def _shown_name(condition: DesiredCondition) -> str:
    return outgoing.name(condition.name if condition.final else f"{condition.name} (PARTIAL)")


def _content(example: Mapping[str, Any]) -> str:
    return canonical_hash([example["input"], example["output"], example["metadata"]])


def _row(experiment_id: str) -> tuple[int, str]:
    """Ids are base64 of ``Experiment:12``: the lowest number is the oldest."""
    try:
        return int(b64decode(experiment_id).decode().rpartition(":")[2]), experiment_id
    except (NotBase64, UnicodeDecodeError, ValueError):
        return 0, experiment_id
