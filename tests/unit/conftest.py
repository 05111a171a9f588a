"""Files to change, and packaged agents, so that these tests do not depend on those that Cellwise brings."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import simulator

AGENT = '''\
"""A packaged agent."""

REUSABLE = True


def agent(request, tools, *, tone="plain"):
    return None
'''


@pytest.fixture
def packaged_agents(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the packaged agents: descriptive_control and first_record_mutant reusable, slow_reader not."""
    folder = tmp_path_factory.mktemp("agents")
    for name in ("descriptive_control", "first_record_mutant"):
        (folder / f"{name}.py").write_text(AGENT)
    (folder / "slow_reader.py").write_text(AGENT.replace("REUSABLE = True\n", ""))
    package = ModuleType("simulator.agents")
    package.__path__ = [str(folder)]
    for name in [name for name in sys.modules if name.startswith("simulator.agents.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "simulator.agents", package)
    monkeypatch.setattr(simulator, "agents", package, raising=False)
    forget_sources()
    yield folder
    for name in [name for name in sys.modules if name.startswith("simulator.agents.")]:
        del sys.modules[name]
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
