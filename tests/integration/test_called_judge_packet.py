"""Whatever a judge that is called makes of a comparison, its packet replays: refusals, pending and cached ones too."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from fake_provider import MODEL, Reply, completion, error, provider
from packets import load
from test_judging import CASES, Qualified

from grading.judging import judge_matrix
from grading.manifest import resolve
from grading.packet_writing import export
from grading.planning import register
from grading.replay_packet import replay_packet
from grading.runner import Runner
from grading.store import Store, reading

MATRIX = """\
version: 1
name: called
cases: cases.yaml
conditions:
  - {{name: control, agent: descriptive-control}}
  - {{name: again, agent: descriptive-control}}
baseline: control
repetitions: 2
judge:
  type: openai
  model: {model}
  base_url: {url}
  api_key_env: null
  retries: 0
  concurrency: 3
  votes: 3
  prices: {{input: 0.15, output: 0.6}}
calibration: {calibration}
redaction: {{packaged: [email], replace: [{{pattern: backpack}}]}}
"""


def behave(number: int, body: dict[str, Any]) -> Reply:
    """Mostly an answer, now and then another thing."""
    kinds = [
        completion(), completion(verdict="fail"), completion(), completion("I abstain."), completion(usage=None),
        error(500), completion(model="another"), completion(finish="length"), completion(), completion(),
    ]  # fmt: skip
    return kinds[number % len(kinds)]


def test_a_packet_of_a_judge_that_is_called_replays_however_it_went(tmp_path: Path) -> None:
    qualification = Qualified()
    assert qualification.calibration_hash is not None
    shutil.copy(CASES, tmp_path / "cases.yaml")
    with provider() as fake:
        fake.behave = behave
        settings = {"model": MODEL, "url": fake.url, "calibration": qualification.calibration_hash}
        (tmp_path / "matrix.yaml").write_text(MATRIX.format(**settings))
        study = resolve(tmp_path / "matrix.yaml")
        judge = study.manifest.judge
        assert judge is not None
        with Store.open(tmp_path / "store.db") as store:
            matrix = reading.find_matrix(store, register(store, study.manifest).matrix_id)
            runner = Runner(store, matrix, study.manifest, root=tmp_path, folder=tmp_path / "workers", parallelism=2)
            assert runner.run() == "complete"

            def told(name: str) -> Any:
                path = tmp_path / name
                digest = export(store, matrix, path)
                return replay_packet(path, expected_sha256=digest, trusted_calibrations=[settings["calibration"]])

            # Nobody has tried yet.
            pending = told("before.json").totals
            assert [pending[arm]["pending_messages"] for arm in ("baseline", "candidate")] == [8, 8]
            assert pending["judge_cost"]["not_dispatched"] == 16
            # Some are left pending each time; what was judged stays, and calls that were answered are taken up again.
            for attempt in range(1, 6):
                judge_matrix(store, matrix, study.manifest, judge, qualification=qualification)
                report = told(f"{attempt}.json")
                # Equal requests are asked about once: no call of another matrix is among them, so each was paid here.
                calls = report.judge_calls
                assert calls["known"] + calls["unknown"] <= len(fake.requests)
            last = report.totals
            assert sum(last[arm]["pending_messages"] for arm in ("baseline", "candidate")) == 0
    rows = load(tmp_path / "5.json")["rows"]
    assert Counter(row["semantic"]["state"] for row in rows).keys() > {"qualified_pass", "unqualified"}
    # Both arms did the same, so each request was asked about for one of them.
    assert sum(row["semantic"]["cached"] for row in rows) >= 8
