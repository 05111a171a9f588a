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
from simulator.json_text import dumps
from simulator.pod_agents import ContainerHost, ForkedHosts
from simulator.pod_delivery import Delivery, NotFollowed
from simulator.pod_intake import Fenced, Intake, IntakeLost, Refused, parts_of, reason
from simulator.pod_journal import PodJournal
from simulator.recorder import Lease, ProviderFailed, Recorder, software
from simulator.worlds import load_world

DONE = 0
AGAIN = 75
NEVER = 78

_LAST_WORDS_SECONDS = 5.0
_FEW_TRIALS = 50
"""After so many a pod loads orjson: by then it has lost as much time without it as loading it takes. Whether as many
follow, a pod is not told."""

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
        self._delivery = Delivery(self._intake, brings_next=settings.agent_socket is None, told=_say_outcome)
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
                told = self._last_words()
            except (Fenced, NotFollowed):
                told = True
            return AGAIN, "terminated" if told else "terminated, the journal's end could not be sent"
        finally:
            self._recorder.close()
            # Whatever ended the trial after it: one that is finished is told of.
            self._delivery.last_words(_LAST_WORDS_SECONDS)
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
            if self._delivery.is_kept:
                assigned = self._delivery.begin(assigned)
                continue
            agent = assigned["assignment"]["agent"]
            assigned, self._delivery.next = self._delivery.next, None
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
        return self._delivery.assigned(reply)

    def _run_trial(self, assigned: dict[str, Any]) -> tuple[int, str | None] | None:
        """How the pod ends, or None where it may go on."""
        started = time.monotonic()
        assignment = assigned["assignment"]
        self._journal.expect(self._delivery.turn if self._delivery.is_kept else None)
        outcome: str | None = "lost"
        try:
            self._journal.consequential = load_world(assignment["world"]).consequential
            self._check(assignment["agent"]["name"])
            lease = Lease(assigned["attempt"], assigned["number"], assigned["trial"], secret="")
            document = self._recorder.run(lease, assignment, assigned["hash"])
            outcome = None
            self._delivery.hand_over(assigned, document, _of_trial(assigned, started))
            self._journal.forget()
        except NotFollowed:
            outcome = None
        except AgentNotStartable as error:
            if self._delivery.is_kept:
                # The trial is asked for as any other: it is the one that fails for it.
                outcome = None
                self._delivery.deliver()
                return self._refused()
            outcome = "agent_not_startable"
            self._tell_unusable(assigned["attempt"], outcome, str(error))
            return NEVER, f"the agent cannot be started: {error}"
        except ProviderFailed:
            outcome = "provider_unavailable"
            return self._without_provider(assigned)
        except Fenced:
            outcome = "fenced"
            raise
        finally:
            if outcome is not None and assigned["attempt"]:
                _say_outcome(_of_trial(assigned, started), outcome)
        return self._refused()

    def _without_provider(self, assigned: dict[str, Any]) -> tuple[int, str | None] | None:
        try:
            self._journal.flush()
        except NotFollowed:
            return self._refused()
        self._tell_unusable(assigned["attempt"], "provider_unavailable", "")
        return AGAIN, "the agent's provider could not be reached"

    def _last_words(self) -> bool:
        """Whether the intake knows now what this pod has done."""
        if self._delivery.is_kept:
            return self._delivery.last_words(_LAST_WORDS_SECONDS)
        return self._journal.flush_once(_LAST_WORDS_SECONDS)

    def _refused(self) -> tuple[int, str | None] | None:
        refused = self._delivery.refused
        return None if refused is None else (AGAIN, f"the ledger was {refused}")

    def _check(self, agent: str) -> None:
        if ":" in agent and self._settings.agent_socket is None:
            raise AgentNotStartable(
                f"{agent} is an agent of one's own and its condition has no image: in a cluster it runs from one, "
                "write image: REGISTRY/NAME@sha256:... beside it in the matrix file"
            )

    def _tell_unusable(self, attempt: int, kind: str, message: str) -> None:
        message = message.encode(errors="replace").decode()[:2000]
        told = {"version": 1, "attempt": attempt, "kind": kind, "message": message}
        reply = self._intake.ask("/v1/unusable", dumps(told))
        if reply.status == 410:
            raise Fenced(reason(reply))
        if reply.status != 204:
            raise IntakeLost(f"/v1/unusable: {reason(reply)}")


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


def _of_trial(assigned: dict[str, Any], started: float) -> dict[str, Any]:
    seconds = round(time.monotonic() - started, 3)
    return {"event": "trial", "attempt": assigned["attempt"], "trial": assigned["trial"], "seconds": seconds}


def _say_outcome(said: dict[str, Any], outcome: str) -> None:
    _say({**said, "outcome": outcome})


def _say(line: dict[str, Any]) -> None:
    os.write(2, dumps(line) + b"\n")


if __name__ == "__main__":
    main()
