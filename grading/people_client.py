"""The people API of a cluster, as the command line uses it.

Every request may be sent twice: registering, pausing, resuming and cancelling say what is to be, not what is to change.
So a lost connection, an intake that restarts or a token that has run out is waited for, within a time that is given.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from grading import people_protocol as people
from grading.launchers import Reached
from simulator.model import WireModel

Answer = TypeVar("Answer", bound=WireModel)

PATIENCE_SECONDS = 60.0
"""How long a request is tried again while nobody answers."""
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 5.0
_RETRIED = frozenset({429, 502, 503, 504})


class PeopleRefused(Exception):  # noqa: N818 - reads as what happened
    """The cluster answered, and refused what was asked, or who asked. Nothing was changed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PeopleUnavailable(Exception):  # noqa: N818 - named after the condition
    """Nobody answered for as long as it was waited for."""


class PeopleClient:
    """Requests to one cluster's people API.

    Args:
        patience: seconds for which a request is tried again.
        waiting: called with the reason before each new try, and with None once one was answered again.
        sleep, clock: for tests.
    """

    def __init__(
        self,
        reached: Reached,
        *,
        patience: float = PATIENCE_SECONDS,
        waiting: Callable[[str | None], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reached = reached
        self.patience = patience
        self.waiting = waiting
        self._sleep = sleep
        self._clock = clock
        # A port of this machine: what the environment says of proxies is not for it, and certificates need not load.
        self._http = httpx.Client(base_url=reached.url, timeout=_TIMEOUT, trust_env=False, verify=False)  # noqa: S501

    def __enter__(self) -> "PeopleClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def whoami(self) -> people.WhoAmI:
        return self._get(people.WhoAmI, "/v1/whoami")

    def register(self, manifest: dict[str, Any], placement: people.WantedPlacement) -> people.Registered:
        """Registers a matrix and starts it, or resumes the one that is there."""
        asked = people.RegisterRequest(manifest=manifest, placement=placement)
        return self._post(people.Registered, "/v1/matrices", asked)

    def matrices(self) -> list[people.ListedMatrix]:
        """Every matrix, the oldest first."""
        return self._get(people.Matrices, "/v1/matrices").matrices

    def status(self, word: str | int, *, summary: bool = True) -> people.MatrixStatus:
        return self._get(people.MatrixStatus, _path(word), {} if summary else {"summary": "no"})

    def attempts(self, word: str | int, terms: people.CellTerms | None = None) -> people.Attempts:
        """The attempts and launches of some cells, of all of them without terms."""
        asked = terms.model_dump(exclude_none=True) if terms is not None else {}
        return self._get(people.Attempts, f"{_path(word)}/attempts", asked)

    def attempts_of_cell(self, word: str | int, cell_id: int) -> people.Attempts:
        return self._get(people.Attempts, f"{_path(word)}/attempts", {"cell": cell_id})

    def manifest(self, word: str | int) -> bytes:
        """The registered document, as it is stored."""
        return self._send("GET", f"{_path(word)}/manifest", {}, None).content

    def trials(self, word: str | int, *, after: int = -1, limit: int = 200) -> Iterator[people.CopiedTrial]:
        """Every trial of a higher sequence number, in planned order, with what its ended attempts left."""
        while True:
            asked = {"after": after, "limit": limit}
            answer = self._get(people.Ledgers, f"{_path(word)}/ledgers", asked)
            yield from answer.trials
            if not answer.more or not answer.trials:
                return
            after = answer.trials[-1].sequence

    def incidents(self, word: str | int) -> Iterator[people.CopiedIncident]:
        after = 0
        while True:
            answer = self._get(people.Incidents, f"{_path(word)}/incidents", {"after": after})
            yield from answer.incidents
            if not answer.more or not answer.incidents:
                return
            after = answer.incidents[-1].id

    def pause(self, word: str | int) -> people.Changed:
        return self._post(people.Changed, f"{_path(word)}/pause", None)

    def cancel(self, word: str | int) -> people.Changed:
        return self._post(people.Changed, f"{_path(word)}/cancel", None)

    def resume(self, word: str | int, asked: people.ResumeRequest) -> people.Changed:
        return self._post(people.Changed, f"{_path(word)}/resume", asked)

    def _get(self, model: type[Answer], path: str, asked: dict[str, Any] | None = None) -> Answer:
        return _read(model, self._send("GET", path, asked or {}, None))

    def _post(self, model: type[Answer], path: str, asked: WireModel | None) -> Answer:
        body = asked.model_dump_json().encode() if asked is not None else b""
        return _read(model, self._send("POST", path, {}, body))

    def _send(self, method: str, path: str, asked: dict[str, Any], body: bytes | None) -> httpx.Response:
        """The answer, once there is one that says anything."""
        deadline = self._clock() + self.patience
        wait, renew, waited = _FIRST_WAIT, False, False
        while True:
            pause = wait
            try:
                token = self._reached.token(renew=renew)
                answer = self._http.request(
                    method,
                    path,
                    params=asked,
                    content=body,
                    headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
                )
            except httpx.TransportError as error:
                why = self._reached.trouble or _told(error)
            else:
                if answer.is_success:
                    if waited:
                        self.waiting(None)
                    return answer
                if answer.status_code == 401 and not renew:
                    # It may have run out on the way.
                    renew = True
                    continue
                if answer.status_code == 500:
                    raise PeopleUnavailable(f"the cluster's intake failed, its log tells why: {_problem(answer)}")
                if answer.status_code not in _RETRIED:
                    raise _refused(answer)
                why = _problem(answer)
                pause = max(wait, _retry_after(answer))
            if self._clock() + pause > deadline:
                raise PeopleUnavailable(f"the cluster's intake does not answer: {why}")
            waited = True
            self.waiting(why)
            self._sleep(pause)
            wait = min(wait * 2, _LONGEST_WAIT)


def _path(word: str | int) -> str:
    return f"/v1/matrices/{quote(str(word), safe='')}"


def _read(model: type[Answer], answer: httpx.Response) -> Answer:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise PeopleUnavailable(
            f"the cluster's answer is not understood ({place}: {first['msg']}): its version of Cellwise is another one"
        ) from error


def _refused(answer: httpx.Response) -> PeopleRefused:
    told = _problem(answer)
    advice = {
        401: "the cluster does not accept this token",
        403: "you may not do that",
        413: "the manifest is too large",
    }.get(answer.status_code)
    return PeopleRefused(answer.status_code, f"{advice}: {told}" if advice is not None else told)


def _problem(answer: httpx.Response) -> str:
    try:
        problem = people.Problem.model_validate_json(answer.content)
    except ValidationError:
        return f"it answered {answer.status_code} {answer.reason_phrase}"
    return f"{problem.place}: {problem.error}" if problem.place else problem.error


def _retry_after(answer: httpx.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), 30.0) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _told(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def only_terms(terms: Sequence[dict[str, str]]) -> list[people.CellTerms]:
    """What ``--only`` names, as the API has it."""
    return [people.CellTerms(**one) for one in terms]
