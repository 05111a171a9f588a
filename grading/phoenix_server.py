"""A Phoenix of one's own: ``phoenix serve`` with its data in a folder beside the store, shared by those who use it.

Every user holds a shared lock on the folder for as long as it uses the server. A supervising process, of a session of
its own, starts Phoenix, waits until it can take that lock alone, which is when the last user has ended, by whatever
end, and stops Phoenix. So a killed command leaves no server behind, and none stops a server that another one shows.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

EXECUTABLE = "CELLWISE_PHOENIX"
"""Environment variable with the path of the ``phoenix`` to start."""

HOST = "127.0.0.1"
USUAL_PORT = 6006
READY_SECONDS = 180.0
"""A first start migrates an empty database: 11 to 33 seconds on two cores, and more on a busy machine."""
STOP_SECONDS = 15.0

_USERS, _STARTING, _STATE, _LOG = "users.lock", "start.lock", "server.json", "phoenix.log"
_PR_SET_PDEATHSIG = 1


class PhoenixNotStarted(Exception):  # noqa: N818 - named after the condition
    """There is no Phoenix to start, or it did not come up. A run goes on without it; publishing catches up later."""


@dataclass(frozen=True, slots=True)
class _State:
    """What the supervisor tells the users."""

    supervisor: int
    server: int
    port: int
    exit_status: int | None = None


def executable() -> Path:
    """The ``phoenix`` to start: the variable's, the one installed beside this Python, or the one on the path.

    Raises:
        PhoenixNotStarted: where there is none.
    """
    named = os.environ.get(EXECUTABLE)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise PhoenixNotStarted(f"{EXECUTABLE} names {named}, which is no executable file")
        return Path(named).absolute()
    beside = Path(sys.executable).parent / "phoenix"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("phoenix")
    if found:
        return Path(found).absolute()
    raise PhoenixNotStarted(
        "Phoenix is not installed: `pip install cellwise[phoenix]` brings it, `--phoenix URL` publishes into one that "
        f"runs elsewhere, `--phoenix off` does without, and {EXECUTABLE} names one of another environment"
    )


class EmbeddedPhoenix:
    """The server of one folder, from the first user's start to the last one's end.

    Starting returns at once; ``wait`` until it answers. Usable as a context that stops it.

    Args:
        folder: where its data, log and locks are; made if need be.

    Raises:
        PhoenixNotStarted: where there is no Phoenix, or the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / _LOG
        self._process: subprocess.Popen[bytes] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._use = _lock(folder / _USERS, fcntl.LOCK_SH)
        except OSError as error:
            raise PhoenixNotStarted(f"Phoenix's folder {folder} cannot be used: {error.strerror}") from error
        try:
            with _locked(folder / _STARTING):
                state = _running(folder)
                self.started_here = state is None
                if state is None:
                    state = self._start()
        except BaseException:
            self._use.close()
            raise
        self._supervisor = state.supervisor
        self.url = f"http://{HOST}:{state.port}"

    def __enter__(self) -> "EmbeddedPhoenix":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self) -> bool:
        """Whether it answers now.

        Raises:
            PhoenixNotStarted: where it has ended; the message holds the end of its log.
        """
        import httpx  # not needed by the supervisor, nor by commands that do not publish

        state = _running(self.folder)
        if state is None:
            raise PhoenixNotStarted(f"Phoenix has ended.\n{self.tail()}")
        if not _listens(state.server, state.port):
            return False
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", timeout=2.0, trust_env=False).status_code == 200
        return False

    def wait(self, seconds: float = READY_SECONDS, progress: Callable[[float], None] | None = None) -> None:
        """Waits until it answers, telling ``progress`` the seconds waited.

        Raises:
            PhoenixNotStarted: where it ended, or did not answer in time.
        """
        started = time.monotonic()
        while not self.ready():
            waited = time.monotonic() - started
            if progress is not None:
                progress(waited)
            if waited > seconds:
                raise PhoenixNotStarted(f"Phoenix was not ready after {seconds:.0f} seconds.\n{self.tail()}")
            time.sleep(0.25)

    def stop(self) -> bool:
        """Ends this use; whether the server has ended too, because nobody else uses it."""
        if self._use.closed:
            return not _alive(self._supervisor)
        self._use.close()
        if self._process is not None:
            self._process.returncode = 0  # it outlives us where others use the server: no child to be warned of
        deadline = time.monotonic() + STOP_SECONDS + 5
        while time.monotonic() < deadline and _alive(self._supervisor):
            if _in_use(self.folder):
                return False
            time.sleep(0.05)
        return not _alive(self._supervisor)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            written = self.log.read_text(errors="replace").splitlines()[-lines:]
        except OSError:
            written = []
        return "\n".join([f"The end of {self.log}:", *(f"  {line}" for line in written)])

    def _start(self) -> _State:
        program = executable()
        port = _free_port(_last_port(self.folder), USUAL_PORT)
        (self.folder / _STATE).unlink(missing_ok=True)
        command = [
            sys.executable,
            "-P",
            "-m",
            "grading.phoenix_server",
            str(self.folder.absolute()),
            str(program),
            str(port),
        ]
        package_root = str(Path(__file__).parent.parent)
        paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        supervisor = self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            state = _state(self.folder)
            if state is not None:
                return state
            if supervisor.poll() is not None:
                break
            time.sleep(0.02)
        raise PhoenixNotStarted(f"{program} could not be started.\n{self.tail()}")


def supervise(folder: Path, program: str, port: int) -> int:
    """Runs Phoenix until nobody uses it: the body of the supervising process; the server's exit status."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (folder / _LOG).open("wb") as log:
        server = subprocess.Popen(
            [program, "serve"],
            cwd=folder,  # it reads a .env file of the current folder
            env=_environment(folder, port, _free_port()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    _write_state(folder, _State(os.getpid(), server.pid, port))
    last_user: IO[bytes] | None = None
    while not stopping and server.poll() is None and last_user is None:
        last_user = _try_lock(folder / _USERS)
        if last_user is None:
            time.sleep(0.2)
    _end(server)
    _write_state(folder, _State(os.getpid(), server.pid, port, server.returncode))
    return server.returncode


def _environment(folder: Path, port: int, grpc_port: int) -> dict[str, str]:
    """Ours alone: a team's database, login or collector in the environment is not meant for the embedded server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PHOENIX_", "OTEL_"))}
    return kept | {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": HOST,
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_LOG_MIGRATIONS": "false",
        # Nothing leaves this machine, and no assistant or tool server is offered to whoever reaches the port.
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
        "PHOENIX_ENABLE_MCP_SERVER": "false",
    }


def _end(server: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return


def _die_with_parent() -> None:
    """A killed supervisor takes the server along."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _running(folder: Path) -> _State | None:
    """The server that is up for this folder, or coming up."""
    state = _state(folder)
    if state is None or state.exit_status is not None or not _alive(state.supervisor):
        return None
    return state


def _state(folder: Path) -> _State | None:
    try:
        return _State(**json.loads((folder / _STATE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write_state(folder: Path, state: _State) -> None:
    written = folder / (_STATE + ".new")
    written.write_text(json.dumps(asdict(state)))
    written.replace(folder / _STATE)


def _last_port(folder: Path) -> int:
    state = _state(folder)
    return state.port if state is not None else 0


def _alive(supervisor: int) -> bool:
    """Whether a process is that supervisor: a number may have been given to another one since."""
    with suppress(ChildProcessError):
        os.waitpid(supervisor, os.WNOHANG)
    try:
        os.kill(supervisor, 0)
    except (ProcessLookupError, PermissionError):
        return False
    command = Path(f"/proc/{supervisor}/cmdline")
    try:
        return b"grading.phoenix_server" in command.read_bytes()
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def _listens(group: int, port: int) -> bool:
    """Whether it is our server's process group that listens on the port, and not one that took it first."""
    if not Path("/proc/net/tcp").exists():
        return True
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                for descriptor in (process / "fd").iterdir():
                    with suppress(OSError):
                        if str(descriptor.readlink()) in listening:
                            return True
    return False


def _in_use(folder: Path) -> bool:
    state = _state(folder)
    if state is not None and state.exit_status is not None:
        return False
    alone = _try_lock(folder / _USERS)
    if alone is None:
        # The supervisor holds it alone while it stops; a user holds it shared.
        shared = _try_lock(folder / _USERS, fcntl.LOCK_SH)
        if shared is None:
            return False
        shared.close()
        return True
    alone.close()
    return False


def _free_port(*preferred: int) -> int:
    """A port that is free now, one of the preferred if possible, so that an address in a browser stays right."""
    for port in [*filter(None, preferred), 0]:
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise PhoenixNotStarted("no port is free on this machine")


def _lock(path: Path, kind: int) -> IO[bytes]:
    file = path.open("ab")
    try:
        fcntl.flock(file, kind)
    except BaseException:
        file.close()
        raise
    return file


def _try_lock(path: Path, kind: int = fcntl.LOCK_EX) -> IO[bytes] | None:
    try:
        return _lock(path, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with _lock(path, fcntl.LOCK_EX):
        yield


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
