"""Access to the Kubernetes API: authentication by the kubernetes client, documents as plain JSON values.

The controller shares its machine with the pods that it watches, so nothing is made into models that is only looked at.
Every request has a time limit; what may pass is tried again with backoff and jitter, for a limited time.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import orjson
import urllib3
from kubernetes import client, config

Document = dict[str, Any]
Query = Sequence[tuple[str, str]]

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 20.0
_WATCH_SECONDS = 300
"""The API server ends a watch after this time, and"""
_SILENCE_SECONDS = 150.0
"""sends a bookmark about every minute: a connection that is silent for longer is dead."""
_PAGE = 500
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
_PASSING = frozenset({429, 500, 502, 503, 504})


class ApiError(Exception):
    """The API server's refusal.

    ``status`` is the HTTP status, 0 where it could not be reached; ``reason`` its word for it, such as AlreadyExists.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{reason or status}: {message}" if message else reason or str(status))
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered later."""
        return self.status == 0 or self.status in _PASSING


class Expired(Exception):  # noqa: N818 - reads as what happened
    """The API server no longer knows what changed since that version: list again."""


class Api:
    """A connection to an API server. Threads may share it.

    Args:
        patience_seconds: how long a request is tried again at most, all tries together.
    """

    def __init__(
        self,
        configuration: client.Configuration,
        *,
        patience_seconds: float = 30.0,
        sleep: Callable[[float], object] = time.sleep,
        watch_seconds: int = _WATCH_SECONDS,
    ) -> None:
        # Tries again in one place, below: not for each connection, too.
        configuration.retries = False
        configuration.connection_pool_maxsize = 16
        self._client = client.ApiClient(configuration)
        self._patience = patience_seconds
        self._sleep = sleep
        self._watch_seconds = watch_seconds
        self.calls = 0
        """Requests sent, the repeated ones too."""

    @classmethod
    def of_this_pod(cls) -> Self:
        """By the pod's own account; outside of a cluster by the kubeconfig file.

        Raises:
            kubernetes.config.ConfigException: where there is neither.
        """
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            config.load_kube_config(client_configuration=configuration)
        return cls(configuration)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, query: Query = ()) -> Document:
        return self.request("GET", path, query=query)

    def find(self, path: str) -> Document | None:
        """What is there; None where nothing is."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, body: Mapping[str, Any]) -> Document:
        """Raises ApiError with the status 409 where there is one of that name: possibly by an earlier try of this."""
        return self.request("POST", path, body=body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Document:
        return self.request("PUT", path, body=body)

    def merge(self, path: str, patch: Mapping[str, Any]) -> Document:
        return self.request("PATCH", path, body=patch, content_type="application/merge-patch+json")

    def delete(self, path: str, uid: str) -> bool:
        """Deletes what has this uid and no other, with all that belongs to it. False where that was gone."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            self.request("DELETE", path, body=options)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def list_all(self, path: str, query: Query = ()) -> tuple[list[Document], str]:
        """Everything there, a page at a time, and the version that a watch goes on from."""
        while True:
            with suppress(Expired):
                return self._pages(path, query)

    def watch(self, path: str, version: str, query: Query = ()) -> Iterator[tuple[str, Document]]:
        """What changes after a version, as ``(type, object)``, until the connection ends; bookmarks are among them.

        Raises:
            Expired: the version is too old.
            ApiError: for any other refusal, and where the connection breaks.
        """
        asked = [
            *query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(self._watch_seconds)),
        ]
        response = self._send("GET", path, asked, None, "application/json", _SILENCE_SECONDS)
        try:
            if response.status != 200:
                raise _expired_or(_refused(response, response.read(decode_content=True)))
            for line in _lines(response):
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    raise _expired_or(_error_of(event["object"], int(event["object"].get("code") or 500), None))
                yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, orjson.JSONDecodeError, KeyError) as error:
            raise ApiError(0, "Unreachable", f"the watch of {path} broke: {error}") from error
        finally:
            # Not given back to the pool: it may still be sending.
            response.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        patience_seconds: float | None = None,
    ) -> Document:
        """One request and its answer, tried again while that may help.

        Raises:
            ApiError: the last refusal.
        """
        patience = self._patience if patience_seconds is None else patience_seconds
        deadline = time.monotonic() + patience
        wait = _FIRST_WAIT
        while True:
            try:
                return self._once(method, path, query, body, content_type)
            except ApiError as error:
                if not error.may_pass:
                    raise
                pause = error.retry_after if error.retry_after is not None else random.uniform(wait / 2, wait)  # noqa: S311
                if time.monotonic() + pause > deadline:
                    raise
                wait = min(wait * 2, _LONGEST_WAIT)
                self._sleep(pause)

    def _pages(self, path: str, query: Query) -> tuple[list[Document], str]:
        found: list[Document] = []
        asked = [*query, ("limit", str(_PAGE))]
        while True:
            try:
                page = self.request("GET", path, query=asked)
            except ApiError as error:
                raise _expired_or(error) from error
            found += page.get("items") or ()
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return found, str(metadata["resourceVersion"])
            asked = [*query, ("limit", str(_PAGE)), ("continue", metadata["continue"])]

    def _once(
        self, method: str, path: str, query: Query, body: Mapping[str, Any] | None, content_type: str
    ) -> Document:
        response = self._send(method, path, query, body, content_type, _READ_SECONDS)
        try:
            data = response.read(decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            response.close()
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error
        response.release_conn()
        if not 200 <= response.status <= 299:
            raise _refused(response, data)
        try:
            answer: Document = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: the answer is no JSON") from error
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: Mapping[str, Any] | None,
        content_type: str,
        read_seconds: float,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        encoded = None if body is None else orjson.dumps(body).decode()
        method, url, headers, _, _ = self._client.param_serialize(
            method, path, query_params=list(query), header_params=headers, auth_settings=["BearerToken"]
        )
        self.calls += 1
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=read_seconds)
        pool: urllib3.PoolManager = self._client.rest_client.pool_manager
        try:
            return pool.request(
                method, url, body=encoded, headers=headers, timeout=timeout, preload_content=False, redirect=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Whole lines as they arrive; what a broken connection leaves of one is dropped."""
    rest = b""
    for chunk in response.stream(2**16, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)


def _refused(response: urllib3.BaseHTTPResponse, data: bytes) -> ApiError:
    retry_after: float | None = None
    with suppress(TypeError, ValueError):
        retry_after = min(60.0, max(0.0, float(response.headers.get("Retry-After"))))  # type: ignore[arg-type]
    try:
        status = orjson.loads(data)
    except orjson.JSONDecodeError:
        status = {"message": data[:300].decode(errors="replace")}
    return _error_of(status if isinstance(status, dict) else {}, response.status, retry_after)


def _error_of(status: Document, code: int, retry_after: float | None) -> ApiError:
    return ApiError(code, str(status.get("reason") or ""), str(status.get("message") or ""), retry_after)


def _expired_or(error: ApiError) -> Exception:
    return Expired(str(error)) if error.status == 410 else error
