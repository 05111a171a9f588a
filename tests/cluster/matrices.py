"""Matrix files for the tests on a cluster."""

from pathlib import Path

CASES = Path(__file__).resolve().parents[2] / "grading/studies/order-resolution/cases.yaml"


def study(folder: Path, name: str, conditions: str, *, repetitions: int = 1, cases: int = 4, more: str = "") -> Path:
    """A matrix file of the packaged cases (or as many copies of them), with its cases beside it.

    Args:
        conditions: YAML in flow style, one condition a line.
    """
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    packaged = yaml.load(CASES)
    listed = packaged["cases"]
    packaged["cases"] = [
        {**listed[number % 4], "id": listed[number % 4]["id"] + (f"-{number}" if cases > 4 else "")}
        for number in range(cases)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}-cases.yaml").open("w") as file:
        yaml.dump(packaged, file)
    path = folder / f"{name}.yaml"
    path.write_text(
        f"version: 1\nname: {name}\ncases: {name}-cases.yaml\nrepetitions: {repetitions}\nconditions:\n"
        + "".join(f"  - {line.strip()}\n" for line in conditions.strip().splitlines())
        + more
    )
    return path


CONTROL = "{name: control, agent: descriptive-control}"
SLOW = "{name: slow, agent: overrunning, settings: {seconds: %d}}"
"""Takes so many seconds, then works as the control."""
REFUNDS_THEN_WAITS = "{name: hasty, agent: overrunning, settings: {seconds: %d, after_refund: true}}"
"""Refunds the first listed order, which for most cases is the wrong one, and then takes its time."""
