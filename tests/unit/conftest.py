"""Files to change, and packaged agents to change."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import simulator.agents

AGENT = '''\
"""A packaged agent."""

REUSABLE = True


def agent(request, tools, *, tone="plain"):
    return None
'''


@pytest.fixture
def packaged_agents(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of two more packaged agents, to change: quick-reader, which may be reused, and slow-reader."""
    folder = tmp_path_factory.mktemp("agents")
    (folder / "quick_reader.py").write_text(AGENT)
    (folder / "slow_reader.py").write_text(AGENT.replace("REUSABLE = True", "REUSABLE = False"))
    monkeypatch.setattr(simulator.agents, "__path__", [*simulator.agents.__path__, str(folder)])
    forget_sources()
    yield folder
    for name in ("quick_reader", "slow_reader"):
        sys.modules.pop(f"simulator.agents.{name}", None)
    forget_sources()


def forget_sources() -> None:
    """Source hashes are remembered for the life of a process; here the sources change."""
    from simulator.source import source_hash

    source_hash.cache_clear()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file below the test's folder."""

    def write_file(name: str, content: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return write_file
