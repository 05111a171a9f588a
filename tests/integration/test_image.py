"""What the images of a cluster are built from: the source is the checkout's, and nothing else gets in."""

import compileall
import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from simulator.source import simulator_identity

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def sent() -> list[str]:
    """The files of the checkout that .dockerignore lets into a build, by the rules that docker applies."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [each for each in folders if each not in {".git", ".mypy_cache", ".ruff_cache", ".hypothesis"}]
        for file in files:
            path = (Path(folder) / file).relative_to(ROOT)
            ignored = False
            for rule in rules:
                pattern = rule.removeprefix("!")
                names = [path.as_posix(), *(each.as_posix() for each in path.parents)]
                anywhere = pattern.removeprefix("**/")
                fits = (
                    any(fnmatch.fnmatchcase(part, anywhere) for part in path.parts)
                    if anywhere != pattern
                    else any(name == pattern or (pattern == "*" and "/" not in name) for name in names)
                )
                if fits:
                    ignored = not rule.startswith("!")
            if not ignored:
                found.append(path.as_posix())
    return found


def test_a_build_is_sent_the_packages_and_what_they_are_installed_with_alone() -> None:
    files = sent()
    assert {"simulator/pod.py", "grading/command_line.py", "pyproject.toml", "requirements/trial.txt"} <= set(files)
    allowed = ("simulator/", "grading/", "k8s/")
    rest = [each for each in files if not each.startswith(allowed)]
    assert sorted(rest) == [
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "requirements/control.txt",
        "requirements/trial.txt",
    ]
    assert not [each for each in files if "__pycache__" in each or each.endswith(".pyc") or "/." in each]


def test_the_source_hash_of_an_image_is_the_checkouts(tmp_path: Path) -> None:
    """Compiled and without anything that is not sent: the intake hands out trials to the manifest's software alone."""
    for file in sent():
        if file.startswith("simulator/"):
            target = tmp_path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, target)
    assert compileall.compile_dir(tmp_path, quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    code = "from simulator.source import simulator_identity, __file__; print(__file__, simulator_identity()['source'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": ""}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path / "simulator/source.py"), simulator_identity()["source"]]


def stage(name: str) -> str:
    return re.split(r"^FROM ", DOCKERFILE.partition(f"AS {name}\n")[2], flags=re.MULTILINE)[0]


@pytest.mark.parametrize("name", ["trial", "control"])
def test_both_images_run_as_nobody_with_locked_requirements(name: str) -> None:
    assert "\nUSER 65532:65532\n" in stage(name)
    assert "--no-deps --require-hashes -r /tmp/requirements.txt" in stage(name)
    assert f"COPY requirements/{name}.txt" in stage(name)
    assert "apt-get" not in DOCKERFILE


def test_the_trials_image_holds_the_simulator_alone() -> None:
    assert re.findall(r"^COPY (.*)$", stage("trial"), flags=re.MULTILINE) == [
        "requirements/trial.txt /tmp/requirements.txt",
        "simulator simulator",
    ]
