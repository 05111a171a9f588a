"""A model behind an OpenAI-compatible API as a judge, through the official SDK: its transport, retries and backoff.

429, 5xx, 408, 409, silence and broken connections are tried again by the SDK with backoff and jitter, as Retry-After
says where it is given; after the last try the judge is unavailable. Every answer is read from its bytes by
:mod:`grading.judge.answer`, since the SDK itself lets wrong types through.
"""

import os
import threading
import time
from typing import Any

from grading.cost import NOT_DISPATCHED, UNKNOWN
from grading.judge import Answer, Reservation, Unavailable
from grading.judge.answer import SCHEMA, read
from grading.judge.budget import cost_of
from grading.judge.configuration import JudgeConnection, OpenAIConfiguration
from grading.judge.pace import Pace
from grading.judge.prompt import messages
from grading.judge.rubric import RubricReference, reference, rubric

_ABOUT_THE_REQUEST = {"context_length_exceeded": "ContextLength", "content_filter": "ContentFilter"}
"""Codes of a 400 that are the provider's answer to this very evidence: it would say the same again."""
_LONGEST_HOLD = 120.0
"""Seconds, the same as the SDK waits at most."""
_TEMPLATE_TOKENS = 1_000
"""What a provider may add around messages and schema."""


class JudgeMisconfigured(Exception):  # noqa: N818 - reads as what is so
    """The judge cannot be asked from here; the message says what to change."""


class OpenAIJudge:
    """Asks a model for votes.

    Raises:
        JudgeMisconfigured: the key is not in the environment, or the rubric is not the registered one.
    """

    dispatches = True

    def __init__(self, configuration: OpenAIConfiguration, connection: JudgeConnection) -> None:
        self._configuration = configuration
        self._prices = connection.prices
        self._rubric = _registered_text(configuration.rubric)
        key = api_key(connection)
        self.votes = configuration.votes

        self._tries = _Tries()

        import openai

        self._openai = openai
        self._client = openai.OpenAI(
            api_key=key,
            base_url=configuration.base_url,
            timeout=float(connection.timeout_seconds),
            max_retries=connection.retries,
            http_client=_http_client(Pace(connection.requests_per_minute), self._tries),
        )

    def close(self) -> None:
        self._client.close()

    def refuses(self, request: bytes) -> str | None:
        return "TooLong" if len(request) > self._configuration.longest_request else None

    def most(self, request: bytes) -> Reservation:
        # A token is at least a byte of what is sent.
        sent = sum(len(message["content"].encode()) for message in messages(self._rubric, request))
        tokens_in, tokens_out = sent + _TEMPLATE_TOKENS, self._configuration.output_tokens
        return Reservation(tokens_in + tokens_out, cost_of(self._prices, tokens_in, tokens_out).micro_dollars)

    def vote(self, request: bytes, index: int) -> Answer:
        started = _now()
        self._tries.unsettled = 0
        try:
            body = self._ask(request, index)
        except self._openai.APIConnectionError as error:
            raise self._unavailable(error, started, hopeless=False) from error
        except self._openai.APIStatusError as error:
            about = _ABOUT_THE_REQUEST.get(str(error.code)) if error.status_code == 400 else None
            if about is not None:
                told = f"the provider refuses the request: {about}"
                cost = UNKNOWN if self._tries.unsettled else NOT_DISPATCHED
                return Answer("abstain", told, about, None, None, None, cost, started, _now())
            passing = error.status_code in (408, 409, 429) or error.status_code >= 500
            raise self._unavailable(error, started, hopeless=not passing) from error
        answer = read(body)
        cost = cost_of(self._prices, answer.input_tokens, answer.output_tokens)
        if self._tries.unsettled:
            # An earlier try went unanswered and may be on the bill all the same.
            cost = UNKNOWN
        return Answer(
            answer.verdict,
            answer.explanation,
            answer.error,
            answer.model,
            answer.input_tokens,
            answer.output_tokens,
            cost,
            started,
            _now(),
        )

    def _ask(self, request: bytes, index: int) -> bytes:
        configuration = self._configuration
        arguments: dict[str, Any] = {
            "model": configuration.model,
            "messages": messages(self._rubric, request),
            "temperature": float(configuration.temperature),
            "seed": configuration.seed + index,
            configuration.limit_field: configuration.output_tokens,
            "n": 1,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "judgment", "strict": True, "schema": SCHEMA},
            },
        }
        response = self._client.chat.completions.with_raw_response.create(**arguments)
        content: bytes = response.http_response.content
        return content

    def _unavailable(self, error: Exception, started: int, *, hopeless: bool) -> Unavailable:
        told = f"{type(error).__name__}: {error}"
        return Unavailable(
            type(error).__name__,
            told[:500],
            dispatched=self._tries.unsettled > 0,
            hopeless=hopeless,
            started=started,
            ended=_now(),
        )


class _Tries(threading.local):
    """Of one thread's call: the tries that may have been worked on, and billed, without an answer."""

    unsettled = 0


def _http_client(pace: Pace, tries: _Tries) -> Any:
    """The SDK's HTTP client, which sends at a pace and counts what became of each try."""
    import httpx2
    import openai

    class Client(openai.DefaultHttpxClient):
        def send(self, *arguments: Any, **settings: Any) -> Any:
            pace.wait()
            try:
                response = super().send(*arguments, **settings)
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
                raise
            except httpx2.RequestError:
                tries.unsettled += 1
                raise
            if response.status_code == 429:
                pace.hold(_seconds(response.headers.get("retry-after")))
            elif response.status_code >= 500 or response.status_code == 408:
                tries.unsettled += 1
            return response

    return Client()


def _seconds(retry_after: str | None) -> float:
    """A pause that one call is asked for is a pause for all. A date is waited for by that call alone, in the SDK."""
    try:
        return min(max(float(retry_after or 0), 0.0), _LONGEST_HOLD)
    except ValueError:
        return 0.0


def api_key(connection: JudgeConnection) -> str:
    """The key from the environment.

    Raises:
        JudgeMisconfigured: it is not there.
    """
    if connection.api_key_env is None:
        return "none"
    key = os.environ.get(connection.api_key_env, "").strip()
    if not key:
        raise JudgeMisconfigured(
            f"the judge's key is not in the environment: set {connection.api_key_env}, "
            "or write api_key_env: null where the server asks for none"
        )
    if not (key.isascii() and key.isprintable()):
        raise JudgeMisconfigured(f"{connection.api_key_env} holds characters that no key has: set it again")
    return key


def _registered_text(registered: RubricReference) -> str:
    if reference(registered.id) != registered:
        raise JudgeMisconfigured(
            f"the rubric {registered.id} here is not the one that was registered: judge with the version of Cellwise "
            "that registered it, or register a new judge"
        )
    return rubric(registered.id)


def _now() -> int:
    return time.time_ns() // 1000
