"""The embedded server is shared by those who use it, ends with the last of them, and says why it did not start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grading.phoenix_server import EXECUTABLE, EmbeddedPhoenix, PhoenixNotStarted

ANSWERING = """#!{python}
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
print("settings", sorted(name for name in os.environ if name.startswith("PHOENIX_")), flush=True)
http.server.HTTPServer((os.environ["PHOENIX_HOST"], int(os.environ["PHOENIX_PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of Phoenix, a server that starts in no time; returns the folder to use."""
    return program(tmp_path, monkeypatch, ANSWERING.format(python=sys.executable))


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> Path:
    path = tmp_path / "phoenix"
    path.write_text(source)
    path.chmod(0o755)
    monkeypatch.setenv(EXECUTABLE, str(path))
    return tmp_path / "data"


def test_two_users_share_one_server_that_ends_with_the_last(answering: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHOENIX_SQL_DATABASE_URL", "postgresql://of-the-team")
    first = EmbeddedPhoenix(answering)
    first.wait(20)
    second = EmbeddedPhoenix(answering)
    assert (first.started_here, second.started_here, second.url) == (True, False, first.url)
    assert first.stop() is False
    assert second.ready()
    assert second.stop() is True
    with pytest.raises(PhoenixNotStarted, match="Phoenix has ended"):
        second.ready()
    assert "SQL_DATABASE_URL" not in first.log.read_text()
    with EmbeddedPhoenix(answering) as again:
        again.wait(20)
        assert again.url == first.url


def test_a_killed_user_leaves_no_server(answering: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from grading.phoenix_server import EmbeddedPhoenix\n"
        "EmbeddedPhoenix(Path(sys.argv[1])).wait(20); print('ready', flush=True); time.sleep(60)"
    )
    user = subprocess.Popen([sys.executable, "-c", code, str(answering)], stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    with user.stdout:
        assert user.stdout.readline() == "ready\n"
        user.send_signal(signal.SIGKILL)
        user.wait()
    deadline = time.monotonic() + 20
    while '"exit_status": null' in (answering / "server.json").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_ends_at_once_is_told_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = program(tmp_path, monkeypatch, "#!/bin/sh\necho disk is full\nexit 3\n")
    with EmbeddedPhoenix(folder) as server, pytest.raises(PhoenixNotStarted, match=r"(?s)has ended.*disk is full"):
        server.wait(20)


def test_without_a_phoenix_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.delenv(EXECUTABLE, raising=False)
    with pytest.raises(PhoenixNotStarted, match=r"pip install cellwise\[phoenix\].*--phoenix URL.*--phoenix off"):
        EmbeddedPhoenix(tmp_path / "data")
    monkeypatch.setenv(EXECUTABLE, str(tmp_path / "nowhere"))
    with pytest.raises(PhoenixNotStarted, match="which is no executable file"):
        EmbeddedPhoenix(tmp_path / "data")
