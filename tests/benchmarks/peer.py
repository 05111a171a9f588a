"""The same scripted trials in inspect_ai: a solver that calls the tools directly, a scorer that is the same grader.

Runs in an environment of its own: ``peer.py REPETITIONS [CONDITION]`` prints a line of JSON. Tuned, each by measuring:
no display, no scores while it runs, no realtime log and no servers to look into it, one write of the log, the model
never called, nothing in a sample but its identity, what was done logged once, as the score's metadata (in the solver's
state it would be compared and copied), agents looked up once. What a trial leaves is in its log, as in our store.
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
from simulator.answer import answer_of
from simulator.replay import compose, open_session

CASES = Path(__file__).resolve().parents[2] / "grading/studies/order-resolution/cases.yaml"
RATES = {"descriptive-control": 1.0, "first-record-mutant": 0.25}
CONDITIONS = tuple(RATES)


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


class Trials:
    """What samples are of, and what was done in them, by their ids: samples that carried it would be copied often."""

    def __init__(self, agent: str) -> None:
        self.agent = load_agent(agent).function
        self.assignments: dict[int | str, dict[str, Any]] = {}
        self.expectations: dict[int | str, Any] = {}
        self.contents: dict[int | str, dict[str, Any]] = {}


@solver
def scripted(trials: Trials) -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        assignment = trials.assignments[state.sample_id]
        session, customer = open_session(assignment)
        answer = answer_of(trials.agent(Request(**assignment["request"]), DirectTools(session)))
        trials.contents[state.sample_id] = compose(
            assignment, session, customer, answer.message, answer.claims, answer.error
        )
        state.output.completion = answer.message
        return state

    return solve


@scorer(metrics=[accuracy()])
def contract(trials: Trials) -> Any:
    grader = load_grader("orders")

    async def score(state: TaskState, target: Target) -> Score:
        content = trials.contents.pop(state.sample_id)
        grade = grader.grade(structural(content), trials.expectations[state.sample_id])
        return Score(
            value="C" if grade.verdict == "passed" else "I",
            explanation=", ".join(grade.failed_checks),
            metadata={"content": content},
        )

    return score


def main() -> None:
    repetitions, conditions = int(sys.argv[1]), tuple(sys.argv[2:]) or CONDITIONS
    document = YAML(typ="safe").load(CASES)
    tasks = [task(document, agent, repetitions) for agent in conditions]
    started = time.monotonic()
    logs = eval(
        tasks,
        model="mockllm/model",
        display="none",
        score_display=False,
        log_realtime=False,
        log_buffer=1_000_000,
        ctl_server=False,
        acp_server=False,
        max_samples=8,
        max_tasks=1,
    )
    seconds = time.monotonic() - started
    trials = sum(len(log.samples or []) for log in logs)
    assert trials == 4 * len(conditions) * repetitions
    passed = {log.eval.task: log.results.scores[0].metrics["accuracy"].value for log in logs if log.results}
    assert passed == {name: rate for name, rate in RATES.items() if name in conditions}, passed
    found = {
        "what": "inspect_ai",
        "trials": trials,
        "seconds": round(seconds, 2),
        "trials_per_second": round(trials / seconds, 1),
        "processor_ms_per_trial": round(time.process_time() / trials * 1000, 2),
    }
    print(json.dumps(found))


def task(document: dict[str, Any], agent: str, repetitions: int) -> Task:
    trials = Trials(agent)
    grader = load_grader("orders")
    samples = []
    for repetition in range(repetitions):
        for case in document["cases"]:
            sample = Sample(id=f"{case['id']}-{repetition}", input=case["utterance"])
            trials.assignments[sample.id or ""] = assignment(document, case, repetition)
            trials.expectations[sample.id or ""] = grader.Expectation.model_validate(case["expectation"])
            samples.append(sample)
    return Task(dataset=samples, solver=scripted(trials), scorer=contract(trials), name=agent)


def assignment(document: dict[str, Any], case: dict[str, Any], repetition: int) -> dict[str, Any]:
    records = [{**record} for record in case.get("records") or document["records"]]
    for record in records:
        record["amount_cents"] = int(record["amount_cents"])
    return {
        "world": "orders",
        "world_settings": {},
        "request": {"utterance": case["utterance"], "customer_id": case["customer_id"]},
        "records": records[::-1] if repetition % 2 else records,
        "replies": case.get("replies", []),
    }


if __name__ == "__main__":
    main()
