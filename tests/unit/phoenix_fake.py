"""Phoenix as measured (arize-phoenix 20.26 on SQLite), in memory, with the accidents that a network and a kill bring.

No idempotency, no unique names, a success that stays for ever, an errored run that is replaced and loses its
evaluations, the id of what was deleted given to the next, spans that are accepted and kept in memory until stored.
"""

import copy
import json
import re
from base64 import b64encode
from collections.abc import Callable
from itertools import count
from typing import Any
from urllib.parse import unquote

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ACCIDENTS = (
    "publisher killed before",
    "publisher killed after",
    "500 before",
    "500 after",
    "answer lost",
    "effect late",
    "no connection",
    "spans lost",
    "wiped",
)
LATE = 3
"""Requests after which the effect of a request without an answer shows."""


class PublisherKilled(BaseException):
    """Ends the publisher where it stands: nothing of it may run on."""


class FakePhoenix:
    """Use ``transport``; ``accidents`` says what happens at which of the following requests."""

    def __init__(self) -> None:
        self.accidents: dict[int, str] = {}
        self.requests = 0
        self.writes = 0
        self.now = 0.0
        self._projects_made = count(1)
        self._late: list[tuple[int, httpx.Request]] = []
        self.transport = httpx.MockTransport(self._serve)
        self.wipe()

    def wipe(self) -> None:
        self.datasets: dict[str, dict[str, Any]] = {}
        self.experiments: dict[int, dict[str, Any]] = {}
        self.tags: dict[str, int] = {}
        self.spans: dict[str, tuple[str, str]] = {}
        self.accepted: list[tuple[str, str, str]] = []
        self.annotated_traces: set[str] = set()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now

    def schedule(self, accidents: dict[int, str]) -> None:
        self.requests, self.accidents = 0, accidents

    def _serve(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        for due, late in [entry for entry in self._late if entry[0] <= self.requests]:
            self._late.remove((due, late))
            self._answer(late)
        accident = self.accidents.pop(self.requests, None)
        if accident == "publisher killed before":
            raise PublisherKilled
        if accident == "500 before":
            return httpx.Response(500, text="Internal Server Error")
        if accident == "no connection":
            raise httpx.ConnectError("Connection refused", request=request)
        if accident == "effect late":
            if request.method != "GET":
                self._late.append((self.requests + LATE, request))
            raise httpx.ReadTimeout("timed out", request=request)
        if accident == "spans lost":
            self.accepted.clear()
        if accident == "wiped":
            self.wipe()
        response = self._answer(request)
        if accident == "publisher killed after":
            raise PublisherKilled
        if accident == "answer lost":
            raise httpx.ReadTimeout("timed out", request=request)
        return httpx.Response(500, text="Internal Server Error") if accident == "500 after" else response

    def settle(self) -> None:
        """Lets what is under way arrive."""
        for _, late in self._late:
            self._answer(late)
        self._late.clear()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.writes += request.method != "GET"
        for method, pattern, handler in self._routes():
            matched = re.fullmatch(pattern, request.url.path)
            if matched and method == request.method:
                body = request.content
                if request.headers.get("content-type") == "application/json":
                    body = json.loads(body)
                return handler(*map(unquote, matched.groups()), body=body, query=request.url.params)
        raise AssertionError(f"Phoenix has no {request.method} {request.url.path}")

    def _routes(self) -> list[tuple[str, str, Callable[..., httpx.Response]]]:
        part = "([^/]+)"
        return [
            ("GET", "/v1/datasets", self._list_datasets),
            ("POST", "/v1/datasets/upload", self._upload),
            ("GET", f"/v1/datasets/{part}/versions", self._versions),
            ("GET", f"/v1/datasets/{part}/examples", self._examples),
            ("GET", f"/v1/datasets/{part}/experiments", self._list_experiments),
            ("POST", f"/v1/datasets/{part}/experiments", self._create),
            ("GET", f"/v1/experiments/{part}", self._experiment),
            ("PATCH", f"/v1/experiments/{part}", self._patch),
            ("DELETE", f"/v1/experiments/{part}", self._delete),
            ("GET", f"/v1/experiments/{part}/tags", self._list_tags),
            ("POST", f"/v1/experiments/{part}/tags", self._tag),
            ("GET", f"/v1/experiments/{part}/runs", self._runs),
            ("POST", f"/v1/experiments/{part}/runs", self._run),
            ("GET", f"/v1/experiments/{part}/json", self._export),
            ("POST", "/v1/experiment_evaluations", self._evaluate),
            ("POST", "/v1/traces", self._traces),
            ("GET", f"/v1/projects/{part}/spans", self._list_spans),
            ("GET", f"/v1/projects/{part}/trace_annotations", self._trace_annotations),
            ("GET", f"/v1/projects/{part}/span_annotations", self._span_annotations),
        ]

    # Datasets: one version is a whole copy of the examples.

    def _list_datasets(self, body: Any, query: httpx.QueryParams) -> httpx.Response:
        found = [dataset for dataset in self.datasets.values() if dataset["name"] == query["name"]]
        return _page([{"id": dataset["id"], "name": dataset["name"]} for dataset in found])

    def _upload(self, body: Any, query: httpx.QueryParams) -> httpx.Response:
        assert (query["sync"], body["action"]) == ("true", "append")
        for dataset in self.datasets.values():
            if dataset["name"] == body["name"]:
                break
        else:
            dataset = {"id": _id("Dataset", len(self.datasets) + 1), "name": body["name"], "versions": []}
            self.datasets[dataset["id"]] = dataset
        before = dataset["versions"][-1] if dataset["versions"] else {}
        after = copy.deepcopy(before)
        for at, external in enumerate(body["example_ids"]):
            node = after[external]["node_id"] if external in after else _id("DatasetExample", len(after) + 1)
            content = {name: body[names][at] for name, names in _COLUMNS.items()}
            after[external] = {"id": external, "node_id": node, **content}
        if after != before:
            dataset["versions"].append(after)
        return httpx.Response(200, json={"data": {"dataset_id": dataset["id"]}})

    def _versions(self, dataset: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        if dataset not in self.datasets:
            return _gone()
        numbers = range(len(self.datasets[dataset]["versions"]), 0, -1)
        return _page([{"version_id": f"v{number}"} for number in numbers])

    def _examples(self, dataset: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        if dataset not in self.datasets:
            return _gone()
        version = self.datasets[dataset]["versions"][int(query["version_id"][1:]) - 1]
        return httpx.Response(200, json={"data": {"examples": list(version.values())}})

    # Experiments

    def _list_experiments(self, dataset: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        if dataset not in self.datasets:
            return _gone()
        found = [row for row, shown in self.experiments.items() if shown["dataset_id"] == dataset]
        limit, start = 1, int(query.get("cursor", 0))  # pages of one, so that paging is exercised
        rows = sorted(found, reverse=True)[start : start + limit]
        cursor = str(start + limit) if start + limit < len(found) else None
        return httpx.Response(200, json={"data": [self._told(row) for row in rows], "next_cursor": cursor})

    def _create(self, dataset: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        if dataset not in self.datasets:
            return _gone()
        row = max(self.experiments, default=0) + 1  # SQLite: the id of a deleted one may come again
        self.experiments[row] = {
            "dataset_id": dataset,
            "dataset_version_id": body.get("version_id"),
            "name": body["name"],
            "metadata": body["metadata"],
            "project_name": f"Experiment-{next(self._projects_made)}",
            "runs": {},
        }
        return httpx.Response(200, json={"data": self._told(row)})

    def _experiment(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        return _gone() if row is None else httpx.Response(200, json={"data": self._told(row)})

    def _patch(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        if row is None:
            return _gone()
        self.experiments[row].update(body)
        return httpx.Response(200, json={"data": self._told(row)})

    def _delete(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        if row is None:
            return _gone()
        assert query["delete_project"] == "true"
        project = self.experiments.pop(row)["project_name"]
        self.spans = {span: kept for span, kept in self.spans.items() if kept[1] != project}
        self.tags = {tag: owner for tag, owner in self.tags.items() if owner != row}
        return httpx.Response(204)

    def _list_tags(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        return _gone() if row is None else _page([{"name": tag} for tag, owner in self.tags.items() if owner == row])

    def _tag(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        if row is None:
            return _gone()
        self.tags[body["name"]] = row
        return httpx.Response(200, json={"data": {"name": body["name"]}})

    # Runs and evaluations

    def _runs(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        if row is None:
            return _page([])
        return _page([_without(run, "annotations") for run in self.experiments[row]["runs"].values()])

    def _run(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        if row is None:
            return httpx.Response(500, text="Internal Server Error")
        runs = self.experiments[row]["runs"]
        key = (body["dataset_example_id"], body["repetition_number"])
        kept: dict[str, Any] = {}
        if key in runs:
            if runs[key]["error"] is None:
                return httpx.Response(409, text="Experiment run already exists with a successful result")
            given = runs[key]["annotations"]
            kept = {name: shown for name, shown in given.items() if shown["annotator_kind"] == "HUMAN"}
        identity = _id("ExperimentRun", row * 1000 + (list(runs).index(key) if key in runs else len(runs)))
        runs[key] = {**body, "id": identity, "annotations": kept}
        return httpx.Response(200, json={"data": {"id": identity}})

    def _export(self, experiment: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        row = self._row(experiment)
        runs = self.experiments[row]["runs"].values() if row is not None else []
        if not runs:
            return httpx.Response(404, text="Experiment has no runs")
        exported = [
            {**run, "example_id": run["dataset_example_id"], "annotations": list(run["annotations"].values())}
            for run in runs
        ]
        return httpx.Response(200, json=exported)

    def _evaluate(self, body: Any, query: httpx.QueryParams) -> httpx.Response:
        for experiment in self.experiments.values():
            for run in experiment["runs"].values():
                if run["id"] == body["experiment_run_id"]:
                    run["annotations"][body["name"]] = {**_without(body, "result"), **body["result"]}
                    return httpx.Response(200, json={"data": {"id": "1"}})
        return httpx.Response(500, text="Internal Server Error")

    # Traces

    def _traces(self, body: bytes, query: httpx.QueryParams) -> httpx.Response:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            [project] = [
                attribute.value.string_value
                for attribute in resource.resource.attributes
                if attribute.key == "openinference.project.name"
            ]
            for scope in resource.scope_spans:
                self.accepted += [(span.span_id.hex(), span.trace_id.hex(), project) for span in scope.spans]
        return httpx.Response(200)

    def _list_spans(self, project: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        for span, trace, of in self.accepted:
            self.spans.setdefault(span, (trace, of))
        self.accepted.clear()
        asked = set(query.get_list("trace_id"))
        found = [span for span, (trace, of) in self.spans.items() if of == project and trace in asked]
        return _page([{"context": {"span_id": span}} for span in found])

    def _trace_annotations(self, project: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        return _page(sorted(self.annotated_traces & set(query.get_list("trace_ids"))))

    def _span_annotations(self, project: str, body: Any, query: httpx.QueryParams) -> httpx.Response:
        return _page([])

    def _row(self, experiment: str) -> int | None:
        return next((row for row in self.experiments if _id("Experiment", row) == experiment), None)

    def _told(self, row: int) -> dict[str, Any]:
        shown = self.experiments[row]
        errors = [run["error"] is not None for run in shown["runs"].values()]
        counts = {"successful_run_count": errors.count(False), "failed_run_count": errors.count(True)}
        return {**_without(shown, "runs"), "id": _id("Experiment", row), **counts}


_COLUMNS = {"input": "inputs", "output": "outputs", "metadata": "metadata"}


def _id(kind: str, row: int) -> str:
    return b64encode(f"{kind}:{row}".encode()).decode()


def _page(data: list[Any]) -> httpx.Response:
    return httpx.Response(200, json={"data": data, "next_cursor": None})


def _gone() -> httpx.Response:
    return httpx.Response(404, text="not found")


def _without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}
