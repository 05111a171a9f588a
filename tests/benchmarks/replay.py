"""How fast a packet of many trials is replayed, and how much memory it takes.

    python tests/benchmarks/replay.py [TRIALS ...]

The packet is the packaged comparison's with as many repetitions as the trials need: every trial is carried out by its
agent in this process, sealed as a recorder seals it and written in the layout of a packet. Memory is the most that any
of the replaying processes ever held (Linux: VmHWM), of the parent and of the largest worker.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import orjson  # noqa: E402

from grading.graders import load_grader  # noqa: E402
from grading.manifest import Manifest, assignment, resolve, trial_name  # noqa: E402
from grading.packet import Evidence, Rows, Totals  # noqa: E402
from grading.projection import structural  # noqa: E402
from grading.schedule import presented  # noqa: E402
from grading.studies import find_study  # noqa: E402
from simulator.agents import load_agent  # noqa: E402
from simulator.answer import answer_of  # noqa: E402
from simulator.canonical import canonical, sha256  # noqa: E402
from simulator.replay import compose, open_session  # noqa: E402
from simulator.sealing import seal  # noqa: E402
from simulator.source import simulator_identity  # noqa: E402


class _Tools:
    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, tool: str) -> Any:
        return lambda **arguments: self._session.call(tool, arguments)["result"]


def contents(manifest: Manifest) -> dict[tuple[int, int, str], dict[str, Any]]:
    """What each case comes to under each condition and presented order: the agents are deterministic."""
    from simulator.agent import Request

    found = {}
    for repetition in (0, 1):
        for case in range(len(manifest.cases)):
            for condition in range(2):
                given = assignment(manifest, case, condition, repetition).model_dump(mode="json")
                session, customer = open_session(given)
                agent = load_agent(given["agent"]["name"]).function
                answer = answer_of(agent(Request(**given["request"]), _Tools(session)))
                content = compose(given, session, customer, answer.message, answer.claims, answer.error)
                found[case, condition, presented("alternate", repetition)] = content
    return found


def write(path: Path, trials: int) -> None:
    """A packet of so many trials."""
    base = resolve(find_study("order-resolution")).manifest
    repetitions = trials // (2 * len(base.cases))
    manifest = Manifest.model_validate({**base.model_dump(), "repetitions": repetitions + repetitions % 2})
    grader, rows, totals, known = load_grader("orders"), Rows(manifest), Totals(), contents(manifest)
    digest = hashlib.sha256()
    with path.open("wb") as file, tempfile.TemporaryFile() as spooled:

        def put(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        identity = simulator_identity()
        put(b'{"version":1,\n"manifest":%b,\n"manifest_hash":"%b",\n"artifacts":[\n' % (
            manifest.document(), manifest.hash().encode()))  # fmt: skip
        name_of = manifest.hash()
        for planned in manifest.planned():
            case, condition = manifest.cases[planned.case], manifest.conditions[planned.condition]
            content = known[planned.case, planned.condition, presented("alternate", planned.repetition)]
            start = 1_790_000_000_000_000 + planned.sequence * 1000
            times = [{"started": start + 2 * i, "ended": start + 2 * i + 1} for i in range(len(content["calls"]))]
            document = seal(content, {
                "version": 1, "trial": trial_name(name_of, condition.name, case.id, planned.repetition), "attempt": 1,
                "started": start, "ended": start + 900, "calls": times, "usage": None,
                "software": {**identity, "python": "3"}, "isolation": "process",
                "place": {"launcher": "processes", "host": "h", "worker": "w"}, "sealed_by": "recorder",
            })  # fmt: skip
            expectation = grader.Expectation.model_validate(case.expectation)
            grade = grader.grade(structural(content), expectation).to_json()
            artifact = b'{"grades":%b,"judgments":[],"ledger":%b}' % (canonical([grade]), document)
            row = rows.row(planned, Evidence(sha256(artifact), orjson.loads(document), grade, False), [], None)
            totals.add(row)
            put((b",\n" if planned.sequence else b"") + artifact)
            spooled.write((b",\n" if planned.sequence else b"") + canonical(row))
        put(b'\n],\n"rows":[\n')
        spooled.seek(0)
        while block := spooled.read(1 << 20):
            put(block)
        put(b'\n],\n"incidents":[\n],\n"totals":%b,\n' % canonical(totals.to_json()))
        file.write(b'"packet_hash":"sha256:%b"}\n' % digest.hexdigest().encode())


_REPLAY = """
import sys, time, resource
from pathlib import Path
from grading.replay_packet import replay_packet
if __name__ == "__main__":
    begun = time.perf_counter()
    report = replay_packet(Path(sys.argv[1]), processes=int(sys.argv[2]))
    seconds = time.perf_counter() - begun
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"{report.trials} trials, {sys.argv[2]} processes: {report.trials / seconds:.0f} trials/s, {seconds:.1f} s, "
          f"{1e6 * cpu / report.trials:.0f} us of CPU a trial, {own} MB here, {worker} MB in the largest worker")
"""


def main(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "measured.py"
        script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + _REPLAY)
        for size in sizes:
            path = Path(folder) / f"{size}.json"
            begun = time.perf_counter()
            write(path, size)
            print(f"written: {path.stat().st_size / 1e6:.0f} MB in {time.perf_counter() - begun:.1f} s")
            for processes in ("1", "2"):
                subprocess.run([sys.executable, str(script), str(path), processes], check=True)
            path.unlink()


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [2_000, 10_000])
