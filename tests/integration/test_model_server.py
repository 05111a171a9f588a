"""A real model behind an OpenAI-compatible API, as a judge: that the wire is right, not that the model is any good.

CELLWISE_TEST_LLM_SERVE names an executable that takes a port, prints "ready URL" and serves until it is ended.
"""

import os
import selectors
import socket
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from grading.cost import Cost
from grading.judge.configuration import Prices, WrittenOpenAIJudge, registered
from grading.judge.openai import OpenAIJudge
from simulator.canonical import canonical

READY_SECONDS = 600


@pytest.fixture(scope="session")
def model_server() -> Iterator[str]:
    executable = os.environ.get("CELLWISE_TEST_LLM_SERVE")
    if not executable:
        pytest.skip("CELLWISE_TEST_LLM_SERVE names no model server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [executable, str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            yield _ready(server)
        finally:
            server.terminate()


def _ready(server: "subprocess.Popen[str]") -> str:
    deadline = time.monotonic() + READY_SECONDS
    assert server.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(server.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(1.0):
                line = server.stdout.readline()
                if line.startswith("ready "):
                    return line.split()[1]
                if not line:
                    break
            if server.poll() is not None:
                break
    server.terminate()
    pytest.fail(f"the model server that CELLWISE_TEST_LLM_SERVE names was not ready within {READY_SECONDS} s")


def test_a_real_server_answers_with_a_verdict_or_an_abstention_with_usage_and_the_name_of_its_model(
    model_server: str,
) -> None:
    known = httpx.get(f"{model_server}/models", timeout=60).json()["data"][0]["id"]
    asked = registered(
        WrittenOpenAIJudge(
            type="openai",
            model=known,
            base_url=model_server,
            api_key_env=None,
            output_tokens=96,
            timeout_seconds=400,
            retries=0,
            prices=Prices(input="1", output="2"),
        ),
        "orders",
    )
    assert asked.configuration.type == "openai"
    assert asked.connection is not None
    judge = OpenAIJudge(asked.configuration, asked.connection)
    request = canonical({"output": {"message": "Your money has arrived."}, "events": [], "ledgers": [], "error": None})
    try:
        answer = judge.vote(request, 0)
    finally:
        judge.close()
    # The schema is enforced while it writes, so what is whole is a verdict; what is cut off is none.
    assert answer.error in (None, "Truncated"), answer
    assert (answer.verdict == "abstain") or answer.error is None
    assert answer.returned_model == known
    assert answer.input_tokens is not None
    assert answer.output_tokens is not None
    assert 0 < answer.output_tokens <= 96
    assert 500 < answer.input_tokens < judge.most(request).tokens
    assert answer.cost == Cost("known", answer.input_tokens + 2 * answer.output_tokens)
    assert answer.ended > answer.started
