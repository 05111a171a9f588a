"""The recorder in a cell's pod: asks the intake for its assignment, runs the trial, journals, delivers the ledger.

Exit codes: 0, all that there was to do is accepted; 75, again; 78, never: a wrong configuration. SIGTERM ends in 75. On
standard error stands one JSON object a line, for each trial and for the end; never a token, never what a customer said.
"""

import os
import signal
import sys
import time
from typing import Any, NamedTuple, NoReturn, Protocol

from simulator.agent_process import AgentHost, AgentNotStartable
from simulator.canonical import NotCanonicalizable, canonical_hash
from simulator.json_text import dumps, loads
from simulator.pod_agents import ContainerHost, ForkedHosts
from simulator.pod_intake import Fenced, Intake, IntakeLost, Refused, parts_of, reason
from simulator.pod_journal import PodJournal
from simulator.recorder import Lease, ProviderFailed, Recorder, software
from simulator.worlds import load_world

DONE = 0
AGAIN = 75
NEVER = 78

_LAST_WORDS_SECONDS = 5.0
_FEW_TRIALS = 20
"""After so many a pod loads orjson. It saves half a millisecond of each further trial and takes as long as 50 to load:
whether there will be as many, a pod is not told."""

_PR_SET_DUMPABLE = 4


class Settings(NamedTuple):
    """What the pod's environment says."""

    intake: str
    launch: str
    job_index: int
    pod: str
    node: str
    token_file: str
    agent_socket: str | None
    request_seconds: float
    retry_seconds: float
    agent_start_seconds: float


class WrongSettings(ValueError):  # noqa: N818 - reads as what is wrong
    """The environment is not that of a cell's pod."""


class _Terminated(BaseException):
    """The kubelet wants the pod to end. No Exception: nobody on the way may take it for something else."""


class _Hosts(Protocol):
    def start(self, agent: str | None, env: list[str]) -> AgentHost: ...

    def close(self) -> None: ...


def main() -> NoReturn:
    """``python -m simulator.pod``, settings from the environment."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        settings = settings_of(os.environ)
        # Before anything secret is read: what this process knows now, its agents know.
        hosts: _Hosts = (
            ForkedHosts()
            if settings.agent_socket is None
            else ContainerHost(settings.agent_socket, settings.agent_start_seconds)
        )
        _hide_memory()
        status, why = Pod(settings, hosts).run()
    except WrongSettings as error:
        status, why = NEVER, str(error)
    except _Terminated:
        status, why = AGAIN, "terminated"
    except Exception as error:
        status, why = AGAIN, _place_of(error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is decided
    end: dict[str, Any] = {"event": "end", "status": status, "seconds": round(time.monotonic() - started, 3)}
    _say(end if why is None else {**end, "reason": why})
    os._exit(status)  # an interpreter's orderly end would only cost time


def settings_of(environ: os._Environ[str] | dict[str, str]) -> Settings:
    """The settings in an environment.

    Raises:
        WrongSettings: with the variable that is missing or wrong.
    """
    url = _text(environ, "CELLWISE_INTAKE")
    try:
        scheme, host, port, _ = parts_of(url)
        usable = scheme in ("http", "https") and bool(host) and (port or 80) > 0
    except ValueError:
        usable = False
    if not usable:
        raise WrongSettings(f"CELLWISE_INTAKE is {url!r}, no URL such as http://cellwise-intake.cellwise.svc:8080")
    index = _text(environ, "JOB_COMPLETION_INDEX")
    if not (index.isascii() and index.isdecimal()):
        raise WrongSettings(f"JOB_COMPLETION_INDEX is {index!r}, no index of an Indexed Job")
    token_file = _text(environ, "CELLWISE_TOKEN_FILE")
    if not os.path.isfile(token_file):
        raise WrongSettings(f"CELLWISE_TOKEN_FILE names {token_file}, and there is no such file: is the token mounted?")
    agent_socket = environ.get("CELLWISE_AGENT_SOCKET")
    return Settings(
        intake=url,
        launch=_text(environ, "CELLWISE_LAUNCH"),
        job_index=int(index),
        pod=_text(environ, "CELLWISE_POD_NAME"),
        node=_text(environ, "CELLWISE_NODE"),
        token_file=token_file,
        agent_socket=agent_socket or None,
        request_seconds=_number(environ, "CELLWISE_REQUEST_SECONDS", 30.0),
        retry_seconds=_number(environ, "CELLWISE_RETRY_SECONDS", 300.0),
        agent_start_seconds=_number(environ, "CELLWISE_AGENT_START_SECONDS", 120.0),
    )


class Pod:
    """The trials of one pod, one after the other."""

    def __init__(self, settings: Settings, hosts: _Hosts) -> None:
        self._settings = settings
        self._hosts = hosts
        self._intake = Intake(settings.intake, settings.token_file, settings.request_seconds, settings.retry_seconds)
        self._journal = PodJournal(self._intake)
        self._next: dict[str, Any] | None = None
        """A trial that came with the answer to the ledger before."""
        self._checked: dict[str, bytes] = {}
        self._recorder = Recorder(
            self._journal,
            hosts.start,
            {"launcher": "kubernetes", "host": settings.node, "worker": settings.pod},
            isolation="process" if settings.agent_socket is None else "container",
            when_idle=self._journal.when_idle,
        )

    def run(self) -> tuple[int, str | None]:
        """The exit code, and why where it is not 0."""
        try:
            return self._run()
        except Refused as error:
            return NEVER, str(error)
        except Fenced as error:
            return AGAIN, f"fenced: {error}"
        except IntakeLost as error:
            return AGAIN, f"the intake is lost: {error}"
        except _Terminated:
            # The agent first: nothing more may happen that the journal does not say.
            self._recorder.close()
            try:
                told = self._journal.flush_once(_LAST_WORDS_SECONDS)
            except Fenced:
                told = True
            return AGAIN, "terminated" if told else "terminated, the journal's end could not be sent"
        finally:
            self._recorder.close()
            self._hosts.close()

    def _run(self) -> tuple[int, str | None]:
        assigned = self._assignment()
        trials = 0
        while assigned is not None:
            trials += 1
            if trials == _FEW_TRIALS:
                import orjson  # noqa: F401 - from here on simulator/json_text.py takes it
            ended = self._run_trial(assigned)
            if ended is not None:
                return ended
            if not assigned["more"]:
                break
            agent = assigned["assignment"]["agent"]
            assigned, self._next = self._next, None
            if assigned is None:
                try:
                    self._recorder.prepare(agent)
                except AgentNotStartable as error:
                    # It had been there for the trial before: a fresh pod may have more luck, and no attempt is used up.
                    return AGAIN, f"the agent's container did not come back: {error}"
                assigned = self._assignment()
        return DONE, None

    def _assignment(self) -> dict[str, Any] | None:
        question = {
            "version": 1,
            "launch": self._settings.launch,
            "index": self._settings.job_index,
            "software": software(),
        }
        reply = self._intake.ask("/v1/assignment", dumps(question))
        if reply.status == 204:
            return None
        if reply.status != 200:
            raise Refused(f"/v1/assignment: {reason(reply)}")
        return assigned_of(_object(reply.body), self._checked)

    def _run_trial(self, assigned: dict[str, Any]) -> tuple[int, str | None] | None:
        """How the pod ends, or None where it may go on."""
        started = time.monotonic()
        attempt, assignment = assigned["attempt"], assigned["assignment"]
        line = {"event": "trial", "attempt": attempt, "trial": assigned["trial"]}
        outcome = "lost"
        try:
            self._journal.consequential = load_world(assignment["world"]).consequential
            self._check(assignment["agent"]["name"])
            lease = Lease(attempt, assigned["number"], assigned["trial"], secret="")
            document = self._recorder.run(lease, assignment, assigned["hash"])
            outcome = self._deliver(attempt, document, assigned["more"])
            self._journal.forget()
        except AgentNotStartable as error:
            outcome = "agent_not_startable"
            self._tell_unusable(attempt, outcome, str(error))
            return NEVER, f"the agent cannot be started: {error}"
        except ProviderFailed:
            outcome = "provider_unavailable"
            self._journal.flush()
            self._tell_unusable(attempt, outcome, "")
            return AGAIN, "the agent's provider could not be reached"
        except Fenced:
            outcome = "fenced"
            raise
        finally:
            _say({**line, "outcome": outcome, "seconds": round(time.monotonic() - started, 3)})
        return None if outcome in ("accepted", "repeated") else (AGAIN, f"the ledger was {outcome}")

    def _check(self, agent: str) -> None:
        if ":" in agent and self._settings.agent_socket is None:
            raise AgentNotStartable(
                f"{agent} is an agent of one's own and its condition has no image: in a cluster it runs from one, "
                "write image: REGISTRY/NAME@sha256:... beside it in the matrix file"
            )

    def _deliver(self, attempt: int, document: bytes, more: bool) -> str:
        """What became of a ledger. The next trial, where one came with the answer, is kept for its turn."""
        # Not where the agent has a container: that one is looked at before a trial is asked for (see _run).
        asked = "&next=1" if more and self._settings.agent_socket is None else ""
        reply = self._intake.ask(f"/v1/ledger?attempt={attempt}{asked}", document)
        if reply.status == 410:
            return "fenced"
        if reply.status != 200:
            return f"refused, {reason(reply)}"
        answer = _object(reply.body)
        if isinstance(answer.get("next"), dict):
            self._next = assigned_of(answer["next"], self._checked)
        outcome = answer.get("outcome")
        return outcome if isinstance(outcome, str) else f"refused, {reason(reply)}"

    def _tell_unusable(self, attempt: int, kind: str, message: str) -> None:
        message = message.encode(errors="replace").decode()[:2000]
        told = {"version": 1, "attempt": attempt, "kind": kind, "message": message}
        reply = self._intake.ask("/v1/unusable", dumps(told))
        if reply.status == 410:
            raise Fenced(reason(reply))
        if reply.status != 204:
            raise IntakeLost(f"/v1/unusable: {reason(reply)}")


def assigned_of(assigned: dict[str, Any], checked: dict[str, bytes] | None = None) -> dict[str, Any]:
    """The same, if its members are those of simulator/pod_protocol.py's Assigned, as far as this pod acts on them.

    The assignment was checked before it was registered; its hash shows that it is still the same.

    Args:
        checked: assignments whose hash was found right, by that hash; this one is added. Repetitions have the same.

    Raises:
        IntakeLost: it is none.
        Refused: it is of another version.
    """
    assignment = assigned.get("assignment")
    if assigned.get("version") != 1:
        raise Refused("the assignment is of a version that this pod's image does not know: use the chart's own image")
    kinds = {"attempt": int, "number": int, "trial": str, "hash": str, "assignment": dict, "more": bool}
    for name, kind in kinds.items():
        if type(assigned.get(name)) is not kind:
            raise IntakeLost(f"the assignment is malformed: {name}")
    try:
        document = dumps(assignment)
        if checked is not None and checked.get(assigned["hash"]) == document:
            return assigned
        found = canonical_hash(assignment)
    except (NotCanonicalizable, TypeError) as error:
        raise IntakeLost("the assignment is malformed: it has no canonical JSON") from error
    if found != assigned["hash"]:
        raise IntakeLost("the assignment is not the one that its hash names")
    if checked is not None:
        checked[found] = document
    return assigned


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise IntakeLost("answered with no JSON object")
    return value


def _text(environ: os._Environ[str] | dict[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise WrongSettings(f"{name} is not set: this is no pod that the controller made")
    return value


def _number(environ: os._Environ[str] | dict[str, str], name: str, default: float) -> float:
    value = environ.get(name)
    try:
        number = float(value) if value else default
    except ValueError:
        number = -1.0
    if not 0 < number <= 86_400:
        raise WrongSettings(f"{name} is {value!r}, no number of seconds up to a day")
    return number


def _terminated(*_: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough, what follows shall not be cut short
    raise _Terminated


def _hide_memory() -> None:
    """Keeps processes of the same user, the packaged agents, from reading this one's memory, and so its token."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _place_of(error: BaseException) -> str:
    """Where an error of our own arose. Never its text, which may hold a customer's words."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" at {os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno}" if place is not None else ""
    return f"{type(error).__name__}{where}"


def _say(line: dict[str, Any]) -> None:
    os.write(2, dumps(line) + b"\n")


if __name__ == "__main__":
    main()
