"""Of everything in a packet one place is changed: what follows from something else is refused without any anchor.

The golden file lists the fields that only the expected hash protects; docs/packet.md argues for each group of them.
"""

import json
from pathlib import Path

import pytest
from packet_mutations import Mutations, mutations_of, remembering, survivors
from packets import seal_hashes, small_packet

from grading.arms import ARMS
from grading.commands.run import run
from grading.packet_writing import export
from grading.store import Store, reading

GOLDEN = json.loads((Path(__file__).parent / "golden" / "packet_fields_v1.json").read_text())
KINDS = {name: kind for kind in ("registered", "observed") for name in GOLDEN[kind]}
# Of cases that never met them: a list that is empty there, a refund that nobody made.
KINDS |= dict.fromkeys(GOLDEN["registered_without_effect"], "registered")
ONLY_WHERE_JUDGED = ("artifacts[].judgments", "manifest.judge", "manifest.redaction")


@pytest.mark.parametrize("judged", [False, True])
def test_every_field_of_a_packet_that_holds_every_kind_of_thing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: bool
) -> None:
    mutations = Mutations(seal_hashes(small_packet(judged=judged)), tmp_path)
    with remembering(monkeypatch):
        found = survivors(mutations), survivors(mutations, under=("manifest",), manifest=True)
    # A judgment holds on to what it is on: there is less then that the anchor alone protects.
    for kind, fields in zip(("observed", "registered"), found, strict=True):
        if judged:
            expected = [name for name in GOLDEN[kind] if name not in GOLDEN["contradicted_where_judged"]]
        else:
            expected = [name for name in GOLDEN[kind] if not name.startswith(ONLY_WHERE_JUDGED)]
        assert sorted(fields) == expected


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packets of the packaged study, run for real."""
    folder = tmp_path_factory.mktemp("study")
    store = str(folder / "store.db")
    run("paired-order-resolution", only=None, reuse=None, parallelism=None, phoenix="off", store=store, json=False)
    packets = {}
    with Store.open(store) as opened:
        for matrix in reading.matrices(opened):
            packets[matrix.name] = folder / f"{matrix.name}.json"
            export(opened, matrix, packets[matrix.name])
    return packets


@pytest.mark.parametrize("name", ["paired-first-record", "paired-control"])
def test_every_field_of_the_packaged_comparisons(
    exported: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mutations = mutations_of(exported[name], tmp_path)
    with remembering(monkeypatch):
        observed = survivors(mutations)
        registered = survivors(mutations, under=("manifest",), manifest=True)
    # What the packaged comparisons do not hold (refused calls, incidents, usage) cannot survive in them.
    assert {KINDS.get(field) for field in observed} == {"observed"}, sorted(set(observed) - KINDS.keys())
    assert {KINDS.get(field) for field in registered} == {"registered"}, sorted(set(registered) - KINDS.keys())
    assert [row["arm"] for row in mutations.packet["rows"][:2]] == list(ARMS)
