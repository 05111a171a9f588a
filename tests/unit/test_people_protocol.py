"""What the command line and a cluster's intake say to each other: version 1, as the golden file has it."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grading import people_protocol as people
from simulator.model import WireModel

GOLDEN = Path(__file__).parent / "golden" / "people_v1.json"
HASH = "sha256:" + "0" * 64
COUNTS = people.TrialCounts(open=1, leased=2, delivered=0, graded=4, missing=1)
IMAGE = "registry.example:5000/team/agent:v1@sha256:" + "a" * 64

DOCUMENTS: list[WireModel] = [
    people.RegisterRequest(
        manifest={"version": 1, "name": "refunds"},
        placement=people.WantedPlacement(
            trials_per_pod=4,
            parallelism=10,
            queue="team-queue",
            images={"candidate": IMAGE},
            providers={"candidate": "openai"},
            only=[people.CellTerms(case="hat", condition="candidate"), people.CellTerms(case="coat")],
            reuse="refunds",
        ),
    ),
    people.ResumeRequest(only=[people.CellTerms(condition="candidate")], parallelism=3),
    people.WhoAmI(
        actor="system:serviceaccount:cellwise:cellwise-editor",
        cellwise="0.1.0",
        simulator=people.Simulator(version="0.1.0", source=HASH),
        cells_namespace="cellwise-cells",
    ),
    people.Registered(
        id=3, manifest=HASH, created=True, state="running", changes=["repetitions 2 -> 4"], previous=2, reused=8
    ),
    people.Changed(id=3, name="refunds", state="paused", changed=True),
    people.Matrices(
        matrices=[people.ListedMatrix(id=3, name="refunds", manifest=HASH, state="running", counts=COUNTS)]
    ),
    people.MatrixStatus(
        id=3,
        name="refunds",
        manifest=HASH,
        state="running",
        counts=COUNTS,
        placed=COUNTS,
        running=2,
        lost=[people.LostAttempts(reason="node_lost", count=2)],
        failed_cells=[people.FailedCell(condition="candidate", case="hat", reason="ImagePullBackOff")],
        waiting=[people.WaitingCell(condition="candidate", case="coat", why="Unschedulable: 0/2 nodes are available")],
        incidents=[people.IncidentLine(kind="hash_mismatch", detail="content_hash")],
        publications=[people.PublicationLine(target="http://phoenix:6006", state="published", compare="http://p/1")],
        on_cluster=True,
        actor="system:serviceaccount:cellwise:cellwise-editor",
        trials_per_pod=1,
        parallelism=None,
        queue=None,
        phoenix="http://p/1",
        summary={"version": 1, "complete": False, "conditions": []},
        plain="condition  trials\n",
    ),
    people.Attempts(
        matrix=3,
        name="refunds",
        cells_namespace="cellwise-cells",
        attempts=[
            people.AttemptLine(
                condition="candidate",
                case="hat",
                repetition=0,
                number=2,
                state="lost",
                reason="node_lost",
                pod="cw-0123456789-7-g1-0-abcde",
                node="node-2",
                launch="4b1f",
                index=0,
                leased=1_790_000_000_000_000,
                started=1_790_000_000_100_000,
                ended=None,
                acted=True,
            )
        ],
        launches=[
            people.LaunchLine(
                id="4b1f",
                condition="candidate",
                case="hat",
                generation=1,
                job="cw-0123456789-7-g1",
                state="created",
                reason=None,
                waiting=None,
            )
        ],
        more=False,
    ),
    people.Ledgers(
        trials=[
            people.CopiedTrial(
                sequence=5,
                condition="candidate",
                case="hat",
                repetition=0,
                assignment=HASH,
                state="graded",
                evidence=2,
                attempts=[
                    people.CopiedAttempt(
                        number=1,
                        state="lost",
                        reason="node_lost",
                        budget="uncharged",
                        owner=people.CopiedOwner(
                            id="uid", host="node-2/pod", boot="kubernetes", namespace="cellwise-cells"
                        ),
                        leased=1,
                        started=2,
                        ended=3,
                        acted=True,
                        origin=None,
                        ledger=None,
                        journal="e30K",
                        grades=[],
                    ),
                    people.CopiedAttempt(
                        number=2,
                        state="delivered",
                        reason=None,
                        budget=None,
                        owner=None,
                        leased=4,
                        started=5,
                        ended=6,
                        acted=False,
                        origin=people.Origin(manifest=HASH, sequence=5, number=1),
                        ledger="{}",
                        journal=None,
                        grades=[people.CopiedGrade(grader="structural", version=HASH, verdict="passed")],
                    ),
                ],
            )
        ],
        more=True,
    ),
    people.Incidents(
        incidents=[
            people.CopiedIncident(
                id=1, sequence=5, number=1, kind="hash_mismatch", detail="x", created=7, document="e30="
            )
        ],
        more=False,
    ),
    people.Problem(error="there is no such case", place="placement.only.0.case"),
]


def test_every_document_is_the_golden_one() -> None:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    assert list(golden) == [type(one).__name__ for one in DOCUMENTS]
    for one in DOCUMENTS:
        written = golden[type(one).__name__]
        assert one.model_dump(mode="json") == written
        assert type(one).model_validate_json(json.dumps(written)) == one


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: type(one).__name__)
def test_another_version_or_an_unknown_field_is_refused(document: WireModel) -> None:
    members = document.model_dump(mode="json")
    for other in ({"version": 2}, {"version": True}, {"version": 1.0}, {"more_of_it": None}):
        with pytest.raises(ValidationError):
            type(document).model_validate_json(json.dumps(members | other))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trials_per_pod", 0),
        ("trials_per_pod", 1001),
        ("trials_per_pod", 1.0),
        ("parallelism", 0),
        ("queue", "Team_Queue"),
        ("queue", "q" * 254),
        ("images", {"candidate": "registry.example/agent:latest"}),
        ("images", {"candidate": "registry.example/agent@sha256:" + "A" * 64}),
        ("images", {"candidate": "registry.example/agent@sha256:" + "a" * 64 + "\n"}),
        ("images", {"c" * 201: IMAGE}),
        ("providers", {"candidate": "open ai"}),
        ("only", [{}]),
        ("only", [{"case": "c" * 201}]),
        ("only", [{"case": "a", "condition": "b", "repetition": "0"}]),
        ("only", [{"case": "a"}] * 1001),
        ("reuse", ""),
        ("reuse", "r" * 201),
    ],
)
def test_placements_that_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        people.WantedPlacement.model_validate_json(json.dumps({field: value}))
    assert caught.value.errors()[0]["loc"][0] == field


def test_names_of_200_characters_and_images_of_every_form_are_accepted() -> None:
    name = "x" * 200
    for image in ("a/b@sha256:" + "0" * 64, "localhost:5000/a/b_c:T-1.x@sha256:" + "f" * 64, IMAGE):
        placed = people.WantedPlacement.model_validate_json(
            json.dumps({"images": {name: image}, "only": [{"case": name, "condition": name}]})
        )
        assert placed.images == {name: image}
