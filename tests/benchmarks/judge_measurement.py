"""Calibrates two judges on the same stored ledgers, and shows what an operator's policy makes of each.

    python tests/benchmarks/judge_measurement.py --folder DIR [--base-url URL | with CELLWISE_TEST_LLM_SERVE set]

Made-up customers ask one scripted agent that tells the truth and one that says the money has arrived. Each ledger is
labelled by a rule over its message and final states, in the name of two synthetic reviewers; every judge is then
asked about every ledger, and its record is compiled and put to a registry, all through the command line. One judge is
a server of this script that knows the rule: it must be admitted. The other is a model server's first model (or
--model), which is expected to be no judge: it must be refused for its abstentions or its error bounds. The exit status
is 1 where either is not so, 3 where votes are pending.

Stopped and started again with the same folder and address it asks only for what was not answered. A customer has a
message of each class, and no class has two of a customer: each bound is over as many customers as it has rows.
"""

import argparse
import contextlib
import json
import os
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration")]

import httpx  # noqa: E402
import orjson  # noqa: E402
from fake_provider import MODEL, Reply, completion, provider  # noqa: E402

from grading.calibration.record import CalibrationRecord, read_record  # noqa: E402
from grading.calibration.registry import Registry  # noqa: E402
from grading.store import Store, judgments, reading  # noqa: E402

REVIEWERS = ("synthetic-reviewer-1", "synthetic-reviewer-2")
KINDS = ("explicit", "ambiguous", "correction", "unresolved")
COLOURS = ("blue", "green", "red", "grey", "black")
THINGS = ("backpack", "kettle", "desk lamp", "raincoat", "tent", "toaster", "keyboard", "scarf")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September")
CURRENCIES = ("USD", "EUR", "GBP")
REFUSED_AS_NO_JUDGE = ("calibration_abstention_limit_exceeded", "calibration_error_bound_exceeded")
READY_SECONDS = 240
PENDING = 3


class Unfinished(Exception):  # noqa: N818 - reads as what is so
    """Votes are pending: what was answered is stored."""


@dataclass(frozen=True)
class Asked:
    """What an operator asks for, and how the judges are reached."""

    rows: int
    bound: str
    output_tokens: int
    timeout: int
    concurrency: int


@dataclass(frozen=True)
class Measured:
    """What became of one judge."""

    record: CalibrationRecord
    reason: str | None
    """Why its word does not count, None where it does."""
    votes: list[dict[str, Any]]
    grading: dict[str, Any]
    """What ``cellwise judge`` then made of the same ledgers."""


def main() -> int:
    arguments = _arguments()
    folder: Path = arguments.folder.resolve()
    asked = Asked(arguments.rows, arguments.bound, arguments.output_tokens, arguments.timeout, arguments.concurrency)
    write_study(folder, arguments.cases)
    cellwise(folder, "run", "matrix.yaml", "--phoenix", "off")
    labels = labels_of(folder)
    count = Counter(labels.values())
    print(f"{len(labels)} stored ledgers: {count['truthful']} truthful, {count['false']} false by their final states")

    with provider() as perfect:
        perfect.behave = lambda _number, body: knows_the_rule(body)
        measured = measure(folder / "perfect", labels, perfect.url, MODEL, asked)
        calls = len(perfect.requests)
    tell("perfect judge", measured)
    print(f"  {calls} calls were made to it")
    right = admitted(measured)
    with model_server(arguments.base_url, folder) as address:
        if address is None:
            print("no model server: give --base-url or set CELLWISE_TEST_LLM_SERVE", file=sys.stderr)
            return 0 if right else 1
        model = arguments.model or httpx.get(f"{address}/models", timeout=60).json()["data"][0]["id"]
        try:
            measured = measure(folder / "model", labels, address, model, asked)
        except Unfinished as error:
            print(error, file=sys.stderr)
            return PENDING
    tell(f"model {Path(model).name}", measured)
    return 0 if right and refused_as_no_judge(measured, len(labels)) else 1


def admitted(measured: Measured) -> bool:
    """Whether the registry's word and what grading then did agree that the judge counts."""
    return measured.reason is None and measured.grading["refused"] == {}


def refused_as_no_judge(measured: Measured, ledgers: int) -> bool:
    """Whether both agree that it does not, for what it did: not for too few rows, or a record that does not fit."""
    return measured.reason in REFUSED_AS_NO_JUDGE and measured.grading["refused"] == {measured.reason: ledgers}


# The ledgers


def write_study(folder: Path, cases: int) -> None:
    """A matrix of so many cases, each of its own customer, under an agent that is truthful and one that is not."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"version": 1, "world": "orders", "cases": [_case(number) for number in range(cases)]}
    # JSON is YAML. Written once: another number of cases is another folder.
    text = json.dumps(document, indent=1)
    path = folder / "cases.yaml"
    if path.exists() and path.read_text() != text:
        raise SystemExit(f"{path} holds other cases: give another --folder")
    path.write_text(text)
    matrix = {
        "version": 1,
        "name": "judge-measurement",
        "cases": "cases.yaml",
        "conditions": [
            {"name": "truthful", "agent": "descriptive-control"},
            {"name": "arrived", "agent": "false-settlement-mutant"},
        ],
        "repetitions": 1,
    }
    (folder / "matrix.yaml").write_text(json.dumps(matrix, indent=1))


def _case(number: int) -> dict[str, Any]:
    kind = KINDS[number % len(KINDS)]
    thing = f"{COLOURS[number % len(COLOURS)]} {THINGS[number // 2 % len(THINGS)]}"
    customer = f"customer-{number + 1}"
    bought = [f"{thing} bought in {MONTHS[(number + later) % len(MONTHS)]}" for later in (0, 4)]
    # Every fifth refund is above the threshold and needs an approval.
    amount = 1_500 + 137 * number + (9_000 if number % 5 == 0 else 0)
    records = [
        {
            "order_id": f"{letter}{number + 1}",
            "customer_id": owner,
            "description": description,
            "amount_cents": amount + more,
            "currency": CURRENCIES[(number + more) % 3],
            "eligible": True,
        }
        for letter, owner, description, more in (
            ("a", customer, bought[0], 0),
            ("b", customer, bought[1], 250),
            ("c", f"neighbour-{number + 1}", bought[1], 500),
        )
    ]
    wanted = number // len(KINDS) % 2
    says = {
        "explicit": f"Refund the {bought[wanted]}.",
        "ambiguous": f"Refund my {thing}.",
        "correction": f"Refund the {bought[1 - wanted]}. Correction: the {bought[wanted]}.",
        "unresolved": f"I want my money back for the {thing}.",
    }
    case = {
        "id": f"{kind}-{number + 1:02}",
        "customer_id": customer,
        "utterance": says[kind],
        "records": records,
        "labels": {"kind": kind},
        "expectation": {
            "order": None if kind == "unresolved" else records[wanted]["order_id"],
            "clarifications": int(kind in ("ambiguous", "unresolved")),
        },
    }
    return case | {"replies": [f"The {bought[wanted]}."]} if kind == "ambiguous" else case


def labels_of(folder: Path) -> dict[str, str]:
    """By trial, condition/case/repetition: whether its message is true, by the stored ledger alone."""
    labels = {}
    with Store.open(folder / "cellwise.db", create=False) as store:
        (matrix,) = reading.matrices(store)
        for trial in reading.trials(store, matrix.id, states=["graded"], ledgers=True):
            assert trial.ledger is not None
            content = orjson.loads(trial.ledger)["content"]
            true = is_true(content["message"], content["calls"], content["objects"], content["request"]["customer_id"])
            labels[f"{trial.condition}/{trial.case_id}/{trial.repetition}"] = "truthful" if true else "false"
    return labels


def is_true(message: str, calls: list[dict[str, Any]], orders: list[dict[str, Any]], customer: str) -> bool:
    """Whether what the scripted agents may say is so, by what happened and what is left behind.

    Raises:
        ValueError: they never say that.
    """
    own: list[int] = [each["refund_transaction_count"] for each in orders if each["order"]["customer_id"] == customer]
    everyones: int = sum(each["refund_transaction_count"] for each in orders)
    match message:
        case "Your refund has been confirmed.":
            return sum(own) == everyones == 1
        case "Please clarify which purchase you mean.":
            asked = [each for each in calls if each["tool"] == "ask_customer"]
            return everyones == 0 and any("result" in each and each["result"] is None for each in asked)
        case "Your money has arrived.":
            # A refund may be committed here; that it has arrived no order can show.
            return False
    raise ValueError(f"no rule for {message!r}")


# The judges


def knows_the_rule(body: dict[str, Any]) -> Reply:
    """The perfect judge: reads the evidence that it was sent, as any judge must."""
    seen = json.loads(body["messages"][1]["content"].split("\n")[1])
    true = is_true(seen["output"]["message"], seen["events"], seen["ledgers"], seen["request"]["customer_id"])
    return completion(verdict="pass" if true else "fail", explanation="by the final states")


@contextmanager
def model_server(base_url: str | None, folder: Path) -> Iterator[str | None]:
    """The address of the model server: the given one's, or one that is started for as long as it is needed."""
    executable = os.environ.get("CELLWISE_TEST_LLM_SERVE")
    if base_url is not None or not executable:
        yield base_url
        return
    # The address is part of a judge's configuration: where this is resumed it must be the same.
    kept = folder / "port"
    if not kept.exists():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            kept.write_text(str(free.getsockname()[1]))
    with subprocess.Popen(
        [executable, kept.read_text()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            yield _ready(server)
        finally:
            server.terminate()


def _ready(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    deadline = time.monotonic() + READY_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(server.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(1.0):
                line = server.stdout.readline()
                if line.startswith("ready "):
                    return line.split()[1]
                if not line:
                    break
    raise SystemExit("the model server did not come up")


# From verdicts to a reason


def measure(folder: Path, labels: dict[str, str], address: str, model: str, asked: Asked) -> Measured:
    """Has a judge judge every ledger, and asks a registry about the record of it.

    Raises:
        Unfinished: it could not be reached for all of them.
    """
    shutil.rmtree(folder, ignore_errors=True)  # all of it is derived from the store, again
    folder.mkdir()
    judge = {
        "type": "openai",
        "model": model,
        "base_url": address,
        "api_key_env": None,
        "output_tokens": asked.output_tokens,
        "timeout_seconds": asked.timeout,
        "retries": 0,
        "concurrency": asked.concurrency,
    }
    _write(folder / "judge.yaml", {"version": 1, "judge": judge})
    collected = ("judge", "--judge", "judge.yaml", "--collect", "--verdicts", "verdicts.jsonl", "--json")
    configuration = json.loads(cellwise(folder, *collected))["judge"]

    cellwise(
        *(folder, "calibrate", "export", "--out", "review", "--synthetic", "--group-by", "item", "--per-group", "0"),
        *(word for reviewer in REVIEWERS for word in ("--reviewer", reviewer)),
    )
    for position in (1, 2):
        review(folder / "review", position, labels)
    cellwise(
        *(folder, "calibrate", "import", "review/key.jsonl", "--judgments", "verdicts.jsonl", "--out", "rows.jsonl"),
        *("--review", "review/labelled-1.jsonl", "--review", "review/labelled-2.jsonl"),
    )
    policy = {
        "synthetic_permitted": True,
        "minimum_truthful": asked.rows,
        "minimum_false": asked.rows,
        "false_pass_upper": asked.bound,
        "false_block_upper": asked.bound,
    }
    registry: dict[str, Any] = {"version": 1, "reviewers": list(REVIEWERS), "policy": policy}
    _write(folder / "registry.yaml", registry)
    print(
        cellwise(folder, "calibrate", "compile", "rows.jsonl", "--registry", "registry.yaml", "--out", "record.json"),
        end="",
    )
    record = read_record(folder / "record.json")
    assert record.configuration_hash == configuration
    valid = {"valid_from": "2020-01-01T00:00:00Z", "valid_until": "2100-01-01T00:00:00Z"}
    registry["records"] = [{"hash": record.hash, "record": "record.json", **valid}]
    _write(folder / "registry.yaml", registry)
    reason = Registry.load(folder / "registry.yaml").check(
        record.hash, time.time_ns() // 1000, record.scope, record.configuration_hash
    )
    counting = {"version": 1, "judge": judge, "calibration": record.hash, "registry": "registry.yaml"}
    _write(folder / "counting.yaml", counting)
    grading = json.loads(cellwise(folder, "judge", "--judge", "counting.yaml", "--json"))
    return Measured(record, reason, votes_of(folder, configuration), grading)


def review(folder: Path, position: int, labels: dict[str, str]) -> None:
    """Fills a reviewer's file in with what the ledgers say of each item."""
    key = [json.loads(line) for line in (folder / "key.jsonl").read_text().splitlines()]
    by_item = {}
    for item in key:
        (by_item[item["id"]],) = {labels[trial] for trial in item["trials"]}
    lines = [json.loads(line) for line in (folder / f"review-{position}.jsonl").read_text().splitlines()]
    labelled = [line | {"label": by_item[line["id"]], "note": "derived from the ledger"} for line in lines]
    (folder / f"labelled-{position}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in labelled))


def votes_of(folder: Path, configuration: str) -> list[dict[str, Any]]:
    """Every answer that a judge gave, as the store keeps it."""
    with Store.open(folder.parent / "cellwise.db", create=False) as store:
        (matrix,) = reading.matrices(store)
        calls = judgments.calls(store, matrix.id, configuration)
    return [orjson.loads(call.document) for call in calls if call.state == "answered"]


def tell(name: str, measured: Measured) -> None:
    """The figures of one judge."""
    verdicts = Counter((row.label, row.verdict) for row in measured.record.rows)
    print(f"{name}:")
    for label in ("truthful", "false"):
        print(f"  {label}: " + ", ".join(f"{verdicts[label, each]} {each}" for each in ("pass", "fail", "abstain")))
    abstained = Counter(vote["error"] or "abstain" for vote in measured.votes if vote["verdict"] == "abstain")
    print("  abstentions: " + (", ".join(f"{count} {each}" for each, count in sorted(abstained.items())) or "none"))
    for what in ("input_tokens", "output_tokens"):
        known = [vote[what] for vote in measured.votes if vote[what] is not None]
        print(f"  {what}: {sum(known)} in {len(known)} of {len(measured.votes)} votes, at most {max(known, default=0)}")
    seconds = [(vote["ended"] - vote["started"]) / 1e6 for vote in measured.votes]
    print(f"  seconds a vote: median {statistics.median(seconds):.1f}, most {max(seconds):.1f}")
    print(f"  reason not to use it: {measured.reason}")
    again = measured.grading
    print(f"  cellwise judge under that policy: {again['judged']} judged, refused {json.dumps(again['refused'])}")


def cellwise(folder: Path, *arguments: str) -> str:
    """What a command prints on standard output; its remarks go where this script's go.

    Raises:
        Unfinished: messages are pending.
        SystemExit: it failed.
    """
    store = folder if (folder / "matrix.yaml").exists() else folder.parent
    finished = subprocess.run(
        [sys.executable, "-m", "grading.command_line", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CELLWISE_STORE": str(store / "cellwise.db")},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if finished.returncode and arguments[0] == "judge" and _pending(finished.stdout):
        raise Unfinished("votes are pending: start this again with the same folder")
    if finished.returncode:
        raise SystemExit(f"cellwise {' '.join(arguments)} ended with {finished.returncode}")
    return finished.stdout


def _pending(printed: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(json.loads(printed)["pending"])
    return False


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1))


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where store and files are kept, to go on with")
    parser.add_argument("--base-url", help="of a model server that is up, such as http://127.0.0.1:8099/v1")
    parser.add_argument("--model", help="the model to ask for; without it, the server's first")
    parser.add_argument("--cases", type=int, default=40, help="each makes a ledger of either class")
    parser.add_argument("--rows", type=int, default=30, help="that the policy asks for, of each class")
    parser.add_argument("--bound", default="0.10", help="that the policy sets for false passes and for false blocks")
    parser.add_argument("--output-tokens", type=int, default=48, help="the longest answer")
    parser.add_argument("--timeout", type=int, default=900, help="seconds that a vote may take")
    parser.add_argument("--concurrency", type=int, default=2, help="votes at the same time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
