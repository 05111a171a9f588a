"""The same scripted trials in inspect_ai: a solver that calls the tools directly, a scorer that is the same grader.

Runs in an environment of its own: ``peer.py REPETITIONS`` prints a line of JSON. Tuned as its documentation says:
no display, no realtime log, samples in parallel, the model never called.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from inspect_ai import Task, eval  # noqa: A004 - its name
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import Generate, TaskState, solver
from ruamel.yaml import YAML

from grading.graders import load_grader
from grading.projection import structural
from simulator.agent import Request
from simulator.agents import load_agent
from simulator.replay import compose, open_session

CASES = Path(__file__).resolve().parents[2] / "grading/studies/order-resolution/cases.yaml"
CONDITIONS = ("descriptive-control", "first-record-mutant")


class DirectTools:
    """The tools of a world, called in this process."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, tool: str) -> Any:
        def call(**arguments: Any) -> Any:
            record = self._session.call(tool, arguments)
            if "error" in record:
                raise PermissionError(record["error"])
            return record["result"]

        return call


@solver
def scripted() -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        assignment = state.metadata["assignment"]
        session, customer = open_session(assignment)
        agent = load_agent(state.metadata["agent"]).function
        output = agent(Request(**assignment["request"]), DirectTools(session))
        state.metadata["content"] = compose(
            assignment, session, customer, output.message, output.claims().model_dump(mode="json"), None
        )
        state.output.completion = output.message
        return state

    return solve


@scorer(metrics=[accuracy()])
def contract() -> Any:
    grader = load_grader("orders")

    async def score(state: TaskState, target: Target) -> Score:
        expectation = grader.Expectation.model_validate(state.metadata["expectation"])
        grade = grader.grade(structural(state.metadata["content"]), expectation)
        return Score(value="C" if grade.verdict == "passed" else "I", explanation=", ".join(grade.failed_checks))

    return score


def main() -> None:
    repetitions = int(sys.argv[1])
    document = YAML(typ="safe").load(CASES)
    tasks = []
    for agent in CONDITIONS:
        samples = [
            sample(document, case, agent, repetition) for repetition in range(repetitions) for case in document["cases"]
        ]
        tasks.append(Task(dataset=samples, solver=scripted(), scorer=contract(), name=agent))
    started = time.monotonic()
    logs = eval(tasks, model="mockllm/model", display="none", log_realtime=False, max_samples=64, max_tasks=2)
    seconds = time.monotonic() - started
    trials = sum(len(log.samples or []) for log in logs)
    assert trials == 8 * repetitions
    passed = [log.results.scores[0].metrics["accuracy"].value for log in logs if log.results]
    assert sorted(passed) == [0.25, 1.0], passed
    print(json.dumps({"what": "inspect_ai", "trials": trials, "trials_per_second": round(trials / seconds, 1)}))


def sample(document: dict[str, Any], case: dict[str, Any], agent: str, repetition: int) -> Sample:
    records = [{**record} for record in case.get("records") or document["records"]]
    for record in records:
        record["amount_cents"] = int(record["amount_cents"])
    assignment = {
        "world": "orders",
        "world_settings": {},
        "request": {"utterance": case["utterance"], "customer_id": case["customer_id"]},
        "records": records[::-1] if repetition % 2 else records,
        "replies": case.get("replies", []),
    }
    return Sample(
        id=f"{case['id']}-{repetition}",
        input=case["utterance"],
        metadata={"assignment": assignment, "agent": agent, "expectation": case["expectation"]},
    )


if __name__ == "__main__":
    main()
