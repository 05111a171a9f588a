"""cellwise show: one trial as a person would read it."""

import json as json_format
from typing import Any

import orjson

from grading.commands import fail, one_matrix, open_store
from grading.results import judge_of, semantics
from grading.semantic import joint
from grading.store import Store, reading
from grading.transcript import Attempt, transcript


def show(word: str, *, matrix: str | None, store: str, json: bool) -> None:
    with open_store(store) as opened:
        of = one_matrix(opened, matrix)
        trial = _find(opened, of, word)
        attempts = reading.attempts(opened, trial.id)
        grades = [_grade(one) for one in trial.grades]
        semantic = _semantic(opened, of, trial)
    ledger = orjson.loads(trial.ledger) if trial.ledger is not None else None
    if json:
        document = {
            "version": 1,
            "trial": {"condition": trial.condition, "case": trial.case_id, "repetition": trial.repetition},
            "sequence": trial.sequence,
            "state": trial.state,
            "ledger": ledger,
            "grades": grades,
            **({"semantic": semantic} if semantic is not None else {}),
            "attempts": [
                {"number": one.number, "state": one.state, "reason": one.reason, "acted": one.after_consequential_call}
                for one in attempts
            ],
        }
        print(json_format.dumps(document))
        return
    from rich.console import Console

    name = f"{trial.condition} / {trial.case_id} / {trial.repetition}"
    tries = [Attempt(one.number, one.state, one.reason, one.after_consequential_call) for one in attempts]
    Console(highlight=False).print(transcript(name, ledger, grades[0] if grades else None, tries, semantic))


def _find(store: Store, matrix: reading.Matrix, word: str) -> reading.Trial:
    """The trial of a planned number or a name. Ids may hold slashes, so that several may share a name."""
    last, numbered, named = 0, list[int](), list[reading.Trial]()
    for trial in reading.trials(store, matrix.id):
        last = max(last, trial.sequence)
        if word == str(trial.sequence):
            numbered.append(trial.id)
        if word == f"{trial.condition}/{trial.case_id}/{trial.repetition}":
            named.append(trial)
    if len(named) > 1:
        numbers = " and ".join(str(trial.sequence) for trial in named)
        raise fail(f"{matrix.name} has several trials called {word}: write a number, {numbers}")
    found = [*numbered, *(trial.id for trial in named)]
    if not found:
        raise fail(f"{matrix.name} has no trial {word}: write a number from 0 to {last}, or condition/case/repetition")
    return reading.find_trial(store, found[0])


def _semantic(store: Store, matrix: reading.Matrix, trial: reading.Trial) -> dict[str, Any] | None:
    configuration = judge_of(store, matrix)
    found = semantics(store, [trial], configuration).get(trial.id) if configuration is not None else None
    if found is None:
        return None
    structural = next((one.verdict for one in trial.grades if one.grader == "structural"), None)
    return {**found.to_json(), "joint": joint(structural or "unscored", found)}


def _grade(one: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "grader": one.grader,
        "grader_version": one.version,
        "verdict": one.verdict,
        "task_completed": one.task_completed,
        "checks": orjson.loads(one.checks),
    }
