"""The agents that a matrix file names: found, checked, and hashed over the files they are made of."""

import glob
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from grading.file_error import FileError, nearest
from grading.matrix_file import MatrixFile, WrittenCondition
from grading.yaml_file import Document
from simulator.agent_process import environment
from simulator.agents import load_agent, packaged_agents
from simulator.assignment import Agent
from simulator.canonical import canonical_hash, sha256
from simulator.source import files_below, source_hash

CHECK_SECONDS = 120.0
"""An agent of one's own may import a large library."""

RESERVED_MODULES = frozenset({"simulator", "grading", "k8s", "charts", "tests"})
"""Cellwise's own folders are its import packages."""

_OWN_AGENT = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


class UnusableAgent(ValueError):  # noqa: N818 - reads as what is wrong
    """An agent cannot be run as named."""


def is_packaged(agent: str) -> bool:
    return ":" not in agent


def resolve_agents(document: Document, matrix: MatrixFile) -> list[Agent]:
    """The conditions' agents as they are registered, in the order of the file.

    Raises:
        FileError: with every agent that cannot be run, at its condition's line.
    """
    folder = document.path.parent.absolute()
    agents: list[Agent] = []
    problems: list[FileError] = []
    own: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for index, condition in enumerate(matrix.conditions):
        try:
            if is_packaged(condition.agent) or condition.image is not None:
                agents.append(agent_elsewhere(condition))
            else:
                module = _own_module(condition.agent)
                agents.append(_own(condition, own_source(module, folder, condition.sources)))
                own[condition.agent, tuple(sorted(condition.env))].append(index)
        except UnusableAgent as error:
            problems.append(document.error(("conditions", index, "agent"), str(error)))
    for (name, env), indexes in own.items():
        settings = [matrix.conditions[index].settings for index in indexes]
        for index, problem in zip(indexes, check_own_agent(name, folder, settings, env), strict=True):
            if problem is not None:
                problems.append(document.error(("conditions", index, "agent"), problem))
    if problems:
        raise FileError.together(problems)
    return agents


def agent_elsewhere(condition: WrittenCondition) -> Agent:
    """The agent of a condition that needs no file of this machine: a packaged one, or one's own in an image.

    Raises:
        UnusableAgent: it cannot be run as named.
    """
    if is_packaged(condition.agent):
        return _packaged(condition)
    if condition.image is None:
        raise UnusableAgent(
            f"'{condition.agent}' is an agent of your own, which a cluster runs in an image alone: "
            "build one that holds its module, and write 'image: NAME@sha256:...' in its condition"
        )
    if condition.sources:
        raise UnusableAgent("the image is all that the agent is made of: remove 'sources'")
    return _own(condition, "sha256:" + condition.image.rpartition("@sha256:")[2])


def check_own_agent(
    name: str, folder: Path, settings: list[dict[str, Any]], env: Iterable[str] = ()
) -> list[str | None]:
    """What is wrong with an agent, for each of several settings; None where nothing is.

    Its module is imported in a process of its own that has the agent's environment, path and working directory.
    """
    package_root = str(Path(__file__).resolve().parent.parent)
    code = f"import sys; sys.path[:0] = {[str(folder), package_root]!r}; from simulator.agent_check import main; main()"
    question = json.dumps({"root": str(folder), "name": name, "settings": settings}).encode()
    # Files, not pipes: what the module leaves running cannot hold them open against us.
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered, tempfile.TemporaryFile() as said:
        asked.write(question)
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-c", code, str(answered.fileno())],
            stdin=asked,
            stdout=said,
            stderr=said,
            pass_fds=[answered.fileno()],
            cwd=folder,
            env=environment(list(env)),
            start_new_session=True,
        )
        try:
            status = process.wait(CHECK_SECONDS)
        except subprocess.TimeoutExpired:
            return [f"importing '{name.split(':')[0]}' took longer than {CHECK_SECONDS:.0f} s"] * len(settings)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answered.seek(0)
        answer = answered.read()
        if status == 0 and answer:
            found: list[str | None] = json.loads(answer)
            return found
        said.seek(0)
        last = (said.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return [f"importing '{name.split(':')[0]}' ended its process with status {status}: {last}"] * len(settings)


def _packaged(condition: WrittenCondition) -> Agent:
    name, known = condition.agent, packaged_agents()
    if name not in known:
        if name.endswith(".py"):
            raise UnusableAgent(f"'{name}' is a file: write '{name[:-3].replace('/', '.')}:FUNCTION'")
        hint = nearest(name, known)
        raise UnusableAgent(f"no packaged agent is called '{name}':{hint}; your own is written module:function")
    if condition.sources:
        raise UnusableAgent(f"'{name}' is a packaged agent, which has no further sources: remove them")
    if condition.image is not None:
        raise UnusableAgent(f"'{name}' is a packaged agent, which every trial has at hand: remove 'image'")
    agent = load_agent(name)
    signature = inspect.signature(agent.function)
    try:
        signature.bind(object(), object(), **condition.settings)
    except TypeError as error:
        raise UnusableAgent(f"'{name}' does not take these settings: {error}") from error
    if condition.reuse and not agent.reusable:
        raise UnusableAgent(f"'{name}' may not be reused: remove 'reuse: true'")
    reuse = agent.reusable if condition.reuse is None else condition.reuse
    return Agent(
        name=name, settings=condition.settings, env=condition.env, reuse=reuse, source=source_hash(agent.module)
    )


def _own_module(agent: str) -> str:
    match = _OWN_AGENT.fullmatch(agent)
    if match is None:
        example = "agent:answer"
        raise UnusableAgent(f"'{agent}' is no module:function: write for example {example}")
    top = match[1].split(".")[0]
    if top in RESERVED_MODULES:
        raise UnusableAgent(f"the module name '{top}' is Cellwise's own: rename your module")
    if top in sys.stdlib_module_names:
        raise UnusableAgent(f"the module name '{top}' belongs to Python itself: rename your module")
    return match[1]


def _own(condition: WrittenCondition, source: str) -> Agent:
    _own_module(condition.agent)
    if condition.reuse:
        raise UnusableAgent("only packaged deterministic agents may be reused: remove 'reuse: true'")
    return Agent(name=condition.agent, settings=condition.settings, env=condition.env, reuse=False, source=source)


def own_source(module: str, folder: Path, sources: Iterable[str] = ()) -> str:
    """One hash over what an agent of one's own is made of.

    Its top-level package, or for a lone module every Python file below the folder; and the sources that its condition
    names.

    Raises:
        UnusableAgent: where a file is missing.
    """
    parts = module.split(".")
    package, lone = folder / parts[0], folder / f"{parts[0]}.py"
    if package.is_dir():
        inner = folder.joinpath(*parts)
        if not (inner.is_dir() or inner.with_suffix(".py").is_file()):
            raise UnusableAgent(f"there is no module '{module}' below {folder}")
        files = files_below(package)
    elif lone.is_file():
        if len(parts) > 1:
            hint = f": write '{parts[0]}:FUNCTION'" if parts[1:] == ["py"] else ""
            raise UnusableAgent(f"'{parts[0]}' is a module and no package: '{module}' cannot be in it{hint}")
        files = files_below(folder, "*.py")
    else:
        raise UnusableAgent(f"there is no module '{parts[0]}': neither {lone} nor a folder of that name")
    for entry in sources:
        files += _source_files(entry, folder)
    hashes: dict[str, str] = {}
    for path in files:
        try:
            hashes[Path(os.path.relpath(path, folder)).as_posix()] = sha256(path.read_bytes())
        except OSError as error:
            raise UnusableAgent(f"the source file {path} cannot be read: {error.strerror}") from error
    return canonical_hash(hashes)


def _source_files(entry: str, folder: Path) -> list[Path]:
    path = folder / entry
    if path.is_dir():
        files = files_below(path)
    elif path.is_file():
        files = [path]
    else:
        found = sorted(glob.glob(entry, root_dir=folder, recursive=True))  # noqa: PTH207 - skips hidden files
        files = [folder / each for each in found if (folder / each).is_file()]
    if not files:
        raise UnusableAgent(f"the source '{entry}' is no file, folder or glob of files below {folder}")
    return files
