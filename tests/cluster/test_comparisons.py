"""The packaged comparisons, run on a cluster: the same figures as on one machine, from run to replay."""

from pathlib import Path
from typing import Any

import pytest
from conftest import NAMESPACE, Cellwise, Installed

from grading.studies import find_study

MATRICES = {
    "native-semantic": ("native-false-settlement", "native-first-record", "native-control"),
    "paired-order-resolution": ("paired-control", "paired-first-record"),
    "order-resolution": ("order-resolution",),
}
SAME = {
    "clarification=required": ("4/4", "4/4"),
    "clarification=not required": ("4/4", "4/4"),
    "target=known": ("6/6", "6/6"),
    "target=unresolved": ("2/2", "2/2"),
}
FIRST_RECORD = {
    "clarification=required": ("4/4", "0/4"),
    "clarification=not required": ("4/4", "2/4"),
    "target=known": ("6/6", "2/6"),
    "target=unresolved": ("2/2", "0/2"),
}


@pytest.fixture(scope="module")
def store(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Cellwise, str]:
    """A copy on this machine of what ran on the cluster."""
    folder: Path = tmp_path_factory.mktemp("comparisons")
    cellwise = Cellwise(installed.cluster, folder)
    pulled = str(folder / "pulled.db")
    for study, matrices in MATRICES.items():
        ran = cellwise("run", study, "--on", "kubernetes", "--namespace", NAMESPACE, "--phoenix", "off", timeout=400)
        assert ran.status == 0, ran.err
        for matrix in matrices:
            copied = cellwise("pull", matrix, "--namespace", NAMESPACE, "--store", pulled)
            assert copied.status == 0, copied.err
            if study == "native-semantic":
                # The release names no registry, so that nothing was judged there: it is here, of what was copied.
                registry = str(find_study(study).parent / "registry.yaml")
                judged = cellwise("judge", matrix, "--registry", registry, "--store", pulled)
                assert judged.status == 0, judged.err
    return cellwise, pulled


def compared(cellwise: Cellwise, store: str, name: str, *options: str) -> dict[str, Any]:
    answer = cellwise("compare", name, "--json", "--view", "structural", *options, "--store", store)
    assert answer.status == 0, answer.err
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    ("name", "figures", "regressed", "slices"),
    [
        ("native-false-settlement", (8, 6), 0, SAME),
        ("native-first-record", (2, 3), 6, FIRST_RECORD),
        ("native-control", (8, 6), 0, SAME),
    ],
)
def test_structural_columns_and_slices(
    store: tuple[Cellwise, str],
    name: str,
    figures: tuple[int, int],
    regressed: int,
    slices: dict[str, tuple[str, str]],
) -> None:
    found = compared(*store, name, "--slices", "native-semantic")
    baseline, candidate = found["conditions"]
    assert (baseline["contract"]["passed"], baseline["completed"]["passed"]) == (8, 6)
    assert (candidate["contract"]["passed"], candidate["completed"]["passed"]) == figures
    assert found["candidates"][0]["structural"]["regressed"] == regressed
    assert {
        one["slice"]: tuple(f"{one[arm]['passed']}/{one[arm]['planned']}" for arm in ("baseline", "of_candidate"))
        for one in found["candidates"][0]["slices"]["slices"]
    } == slices


@pytest.mark.parametrize("name", [name for names in MATRICES.values() for name in names])
def test_from_compare_to_replay(store: tuple[Cellwise, str], name: str, tmp_path: Path) -> None:
    cellwise, pulled = store
    found = compared(cellwise, pulled, name)
    assert [one["contract"]["planned"] for one in found["conditions"]] == [8, 8]
    if name != "order-resolution":
        decided = cellwise("decide", name, "--policy", "packaged", "--json", "--store", pulled)
        assert decided.status == 11, decided.err
        assert (decided.json()["action"], decided.json()["authority"]) == ("block", "none")
    packet = tmp_path / f"{name}.json"
    exported = cellwise("export", name, str(packet), "--store", pulled)
    assert exported.status == 0, exported.err
    replayed = cellwise("replay", str(packet), "--json")
    assert replayed.status == 0, replayed.err + replayed.out
    assert replayed.json()["trials"] == 16
