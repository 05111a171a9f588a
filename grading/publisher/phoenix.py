"""A thin client of Phoenix's REST interface: only what publishing uses, as measured on arize-phoenix 20.26.

Phoenix's own client costs eight seconds to import where the server is installed beside it, and reads settings from the
environment; this one knows a URL and a key.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

Json = Any
_PAGE = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 3.0
_ATTEMPTS_AT_500 = 4
"""A 500 is often a lost race, for which a retry helps, and sometimes an id that does not exist, for which none does."""


class PhoenixError(Exception):
    """Publishing did not succeed. What was run and graded is safe in the store."""


class PhoenixUnavailable(PhoenixError):  # noqa: N818 - named after the condition
    """Phoenix cannot be reached, or fails: publishing again later catches up."""


class PhoenixRefused(PhoenixError):  # noqa: N818 - named after the condition
    """Phoenix understood and said no: a key, a right, a name, a version. The message says what to do."""


class PhoenixGone(PhoenixError):  # noqa: N818 - named after the condition
    """Something that was there a moment ago is not: deleted by a person, or a database that was wiped."""


class PhoenixConflict(PhoenixError):  # noqa: N818 - named after the condition
    """It exists already, and Phoenix never changes it."""


@dataclass(frozen=True, slots=True)
class Experiment:
    id: str
    dataset_id: str
    version_id: str
    name: str
    project_name: str
    metadata: Mapping[str, Json]
    successful_runs: int
    failed_runs: int


@dataclass(frozen=True, slots=True)
class Example:
    case_id: str
    node_id: str
    input: Json
    output: Json
    metadata: Json


class Phoenix:
    """One Phoenix server.

    Args:
        url: its address, with a path where it is served below one.
        api_key: a key or token, sent as bearer; never logged.
        patience: seconds for which one request is tried again while Phoenix is away, restarting or overloaded.

    Raises:
        PhoenixRefused: where the URL is none.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        patience: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise PhoenixRefused(f"{url!r} is no address of a Phoenix: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.host:
            raise PhoenixRefused(f"{url!r} is no address of a Phoenix: it begins with http:// or https://")
        self.url = url.rstrip("/")
        self._loopback = parts.host in ("127.0.0.1", "localhost", "::1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._patience = patience
        self._transport = transport
        self._sleep = sleep
        self._clock = clock
        self._http = self._connect()

    def __enter__(self) -> "Phoenix":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def check(self) -> None:
        """Asks for something small: that it answers, as Phoenix does, and accepts the key."""
        self._json("GET", "/v1/datasets", params={"limit": 1})

    # Datasets

    def dataset(self, name: str) -> str | None:
        """The id of the dataset of exactly this name."""
        for found in self._pages("/v1/datasets", {"name": name}):
            if found["name"] == name:
                return str(found["id"])
        return None

    def dataset_versions(self, dataset_id: str) -> Iterator[str]:
        """The dataset's versions, newest first."""
        for version in self._pages(f"/v1/datasets/{_part(dataset_id)}/versions"):
            yield str(version["version_id"])

    def examples(self, dataset_id: str, version_id: str) -> dict[str, Example]:
        """The examples of one version, by external id."""
        path = f"/v1/datasets/{_part(dataset_id)}/examples"
        data = self._json("GET", path, params={"version_id": version_id})["data"]
        return {
            found["id"]: Example(found["id"], found["node_id"], found["input"], found["output"], found["metadata"])
            for found in data["examples"]
        }

    def append_examples(self, name: str, description: str, examples: Sequence[Mapping[str, Json]]) -> None:
        """Creates the dataset if need be, adds what is new, revises what changed, deletes nothing; again is harmless.

        With ``sync`` because otherwise errors reach the server's log alone.
        """
        body = {
            "action": "append",
            "name": name,
            "description": description,
            "example_ids": [example["id"] for example in examples],
            "inputs": [example["input"] for example in examples],
            "outputs": [example["output"] for example in examples],
            "metadata": [example["metadata"] for example in examples],
        }
        self._request("POST", "/v1/datasets/upload", params={"sync": "true"}, json=body)

    # Experiments

    def experiments(self, dataset_id: str) -> Iterator[Experiment]:
        for found in self._pages(f"/v1/datasets/{_part(dataset_id)}/experiments"):
            yield _experiment(found)

    def experiment(self, experiment_id: str) -> Experiment:
        return _experiment(self._json("GET", f"/v1/experiments/{_part(experiment_id)}")["data"])

    def create_experiment(self, dataset_id: str, body: Mapping[str, Json]) -> None:
        """Tried once: Phoenix has no idempotency key, so the caller lists and decides whatever this answers."""
        self._request("POST", f"/v1/datasets/{_part(dataset_id)}/experiments", json=body, again=False)

    def patch_experiment(self, experiment_id: str, **changes: Json) -> None:
        """Replaces ``name``, ``description`` or ``metadata``, the last one whole."""
        self._request("PATCH", f"/v1/experiments/{_part(experiment_id)}", json=changes)

    def delete_experiment(self, experiment_id: str) -> None:
        """Deletes an experiment with its runs and its project, which would otherwise be left behind.

        Tried once: SQLite gives the id of what was deleted to the next one, which could be a person's.
        """
        path = f"/v1/experiments/{_part(experiment_id)}"
        self._request("DELETE", path, params={"delete_project": "true"}, again=False)

    def tags(self, experiment_id: str) -> set[str]:
        return {tag["name"] for tag in self._json("GET", f"/v1/experiments/{_part(experiment_id)}/tags")["data"]}

    def set_tag(self, experiment_id: str, name: str, description: str) -> None:
        """Moves the tag here; it is unique in a dataset."""
        body = {"name": name, "description": description}
        self._request("POST", f"/v1/experiments/{_part(experiment_id)}/tags", json=body)

    # Runs and evaluations

    def runs(self, experiment_id: str) -> Iterator[Mapping[str, Json]]:
        return self._pages(f"/v1/experiments/{_part(experiment_id)}/runs")

    def post_run(self, experiment_id: str, body: Mapping[str, Json]) -> str:
        """The id of the run that is now there.

        Raises:
            PhoenixConflict: where a run without an error is there already: it stays for ever.
        """
        path = f"/v1/experiments/{_part(experiment_id)}/runs"
        return str(self._json("POST", path, json=body)["data"]["id"])

    def evaluated_runs(self, experiment_id: str) -> list[Mapping[str, Json]]:
        """Every run with its evaluations' values; the only place that shows them."""
        try:
            found = self._json("GET", f"/v1/experiments/{_part(experiment_id)}/json")
        except PhoenixGone:
            return []  # also what it answers for an experiment without runs
        return list(found)

    def post_evaluation(self, body: Mapping[str, Json]) -> None:
        """Sets a run's evaluation of that name, all of its fields."""
        self._request("POST", "/v1/experiment_evaluations", json=body)

    # Traces

    def send_spans(self, request: bytes) -> None:
        """An OTLP export request. Being accepted is not being stored: read back."""
        headers = {"Content-Type": "application/x-protobuf"}
        self._request("POST", "/v1/traces", content=request, headers=headers)

    def stored_spans(self, project_name: str, trace_ids: Sequence[str]) -> set[str]:
        """The ids of the spans of some traces that are stored."""
        path = f"/v1/projects/{_part(project_name)}/spans"
        try:
            return {str(span["context"]["span_id"]) for span in self._pages(path, {"trace_id": list(trace_ids)})}
        except PhoenixGone:
            return set()

    def trace_annotations(self, project_name: str, trace_ids: Sequence[str]) -> bool:
        """Whether any of some traces, or of their spans, carries an annotation."""
        project = f"/v1/projects/{_part(project_name)}"
        span_ids = sorted(self.stored_spans(project_name, trace_ids))
        asked = [("trace_annotations", "trace_ids", list(trace_ids))]
        asked += [("span_annotations", "span_ids", span_ids[at : at + 100]) for at in range(0, len(span_ids), 100)]
        for kind, parameter, ids in asked:
            try:
                if self._json("GET", f"{project}/{kind}", params={parameter: ids, "limit": 1})["data"]:
                    return True
            except PhoenixGone:
                continue
        return False

    # Labelling

    def annotation_config(self, name: str) -> Mapping[str, Json] | None:
        """The annotation config of that name."""
        try:
            found: Mapping[str, Json] = self._json("GET", f"/v1/annotation_configs/{_part(name)}")["data"]
        except PhoenixGone:
            return None
        return found

    def create_annotation_config(self, body: Mapping[str, Json]) -> None:
        """Raises PhoenixConflict where the name is taken."""
        self._request("POST", "/v1/annotation_configs", json=body)

    def ensure_project(self, name: str, description: str) -> str:
        """The id of the project of that name, which is created if need be.

        Looked for first: Phoenix answers 500 to a name that is taken, and whoever lost that race finds it then.
        """
        path = f"/v1/projects/{_part(name)}"
        try:
            return str(self._json("GET", path)["data"]["id"])
        except PhoenixGone:
            pass
        try:
            body = {"name": name, "description": description}
            return str(self._json("POST", "/v1/projects", json=body, again=False)["data"]["id"])
        except PhoenixUnavailable:
            return str(self._json("GET", path)["data"]["id"])

    def assign_annotation_config(self, project_name: str, config_name: str) -> None:
        """Offers the config on the project's page; again is harmless."""
        self._request("PUT", f"/v1/projects/{_part(project_name)}/annotation_configs/{_part(config_name)}")

    def span_annotations(
        self, project_name: str, span_ids: Sequence[str], annotation_name: str
    ) -> Iterator[Mapping[str, Json]]:
        """The annotations of that name on some spans, at most a thousand spans at a time.

        Raises:
            PhoenixGone: where the project or every one of the spans does not exist.
        """
        asked = {"span_ids": list(span_ids), "include_annotation_names": [annotation_name]}
        return self._pages(f"/v1/projects/{_part(project_name)}/span_annotations", asked)

    # Requests

    def _pages(self, path: str, params: Mapping[str, Json] | None = None) -> Iterator[Mapping[str, Json]]:
        cursor = None
        while True:
            page = self._json(
                "GET", path, params={**(params or {}), "limit": _PAGE, **({"cursor": cursor} if cursor else {})}
            )
            yield from page["data"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def _json(self, method: str, path: str, **request: Any) -> Json:
        response = self._request(method, path, **request)
        try:
            return response.json()
        except ValueError as error:
            raise PhoenixRefused(
                f"{self.url} does not answer as Phoenix does ({method} {path}): is another service there, "
                "or is Phoenix served below a path?"
            ) from error

    def _request(self, method: str, path: str, *, again: bool = True, **request: Any) -> httpx.Response:
        deadline = self._clock() + self._patience
        pause, failures = _FIRST_PAUSE, 0
        while True:
            try:
                response = self._http.request(method, self.url + path, **request)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if response.status_code < 300:
                    return response
                self._refuse(response, method, path)
                reason = f"status {response.status_code} {_detail(response)}"
                failures += response.status_code == 500
            # After a 500 Phoenix may go on answering 500 on the same connection.
            self._http.close()
            self._http = self._connect()
            if not again or failures == _ATTEMPTS_AT_500 or self._clock() + pause > deadline:
                raise PhoenixUnavailable(f"Phoenix at {self.url} is not available ({method} {path}): {reason}")
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _refuse(self, response: httpx.Response, method: str, path: str) -> None:
        """Raises for an answer that trying again does not change."""
        status, detail = response.status_code, _detail(response)
        if status >= 500 or status in (408, 425, 429):
            return
        if status == 401:
            raise PhoenixRefused(f"Phoenix at {self.url} refuses the API key ({detail}): give a valid one")
        if status == 403:
            raise PhoenixRefused(
                f"Phoenix at {self.url} lets this API key only read ({detail}): give a key that may write"
            )
        if status == 404:
            raise PhoenixGone(f"{method} {path}: {detail}")
        if status == 409:
            raise PhoenixConflict(detail)
        if status < 400:
            where = response.headers.get("location", "elsewhere")
            raise PhoenixRefused(f"{self.url} sends to {where}: give Phoenix's own address")
        raise PhoenixRefused(
            f"Phoenix at {self.url} refuses {method} {path} with status {status}: {detail} "
            "(written for arize-phoenix 20.26; is this another version?)"
        )

    def _connect(self) -> httpx.Client:
        # A proxy of the environment is not meant for a server on this machine.
        return httpx.Client(
            headers=self._headers,
            timeout=httpx.Timeout(60.0, connect=5.0),
            transport=self._transport,
            trust_env=not self._loopback,
        )


def _experiment(found: Mapping[str, Json]) -> Experiment:
    return Experiment(
        id=found["id"],
        dataset_id=found["dataset_id"],
        version_id=found["dataset_version_id"],
        name=found["name"],
        project_name=found["project_name"] or "",
        metadata=found["metadata"],
        successful_runs=found["successful_run_count"],
        failed_runs=found["failed_run_count"],
    )


def _part(value: str) -> str:
    return quote(value, safe="")


def _detail(response: httpx.Response) -> str:
    return " ".join(response.text.split())[:300]
