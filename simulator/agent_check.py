"""Whether an agent of one's own can be imported and takes its settings, found out in a process of its own.

Importing runs the user's code, so the process that registers a matrix never does it: it runs this module apart, with
the environment that the agent will have, and reads one JSON answer from a descriptor that what the agent prints cannot
reach.
"""

import importlib
import inspect
import json
import os
import sys
import traceback
from typing import Any


def problems_with(root: str, name: str, settings: list[dict[str, Any]]) -> list[str | None]:
    """What is wrong with ``module:function`` below ``root``, for each of several settings; None where nothing is."""
    module_name, function_name = name.split(":")
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # the user's module may raise anything, SystemExit too
        return [f"importing '{module_name}' failed: {_told(error, root)}"] * len(settings)
    function: Any = module
    for part in function_name.split("."):
        function = getattr(function, part, None)
    if function is None:
        known = sorted(each for each, value in vars(module).items() if inspect.isfunction(value) and each[0] != "_")
        there = f"it has {', '.join(known)}" if known else "it has no function"
        return [f"'{module_name}' has no function '{function_name}': {there}"] * len(settings)
    if not callable(function):
        return [f"'{name}' is no function but of type {type(function).__name__}"] * len(settings)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return [f"'{name}' must return its output, not yield it"] * len(settings)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        return [f"'{name}' has no signature to check: {error}"] * len(settings)
    return [_problem_of_settings(signature, name, each) for each in settings]


def _problem_of_settings(signature: inspect.Signature, name: str, settings: dict[str, Any]) -> str | None:
    try:
        signature.bind(object(), object(), **settings)
    except TypeError as error:
        parameters = ", ".join(signature.parameters) or "none"
        return f"'{name}' cannot be called with (request, tools, **settings): {error} (its parameters: {parameters})"
    return None


def _told(error: BaseException, root: str) -> str:
    """The error as a person needs it: its class, its text, and the last line of the user's own that led to it."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, KeyError) and frames and frames[-1].filename in (os.__file__, "<frozen os>"):
        text += ", an environment variable that the agent does not get: set it and name it in the condition's 'env'"
    if isinstance(error, SyntaxError):
        return text
    own = [frame for frame in frames if frame.filename.startswith(root)]
    return f"{text} ({os.path.relpath(own[-1].filename, root)}:{own[-1].lineno})" if own else text


def main() -> None:
    """Reads the question from descriptor 0 and answers on the descriptor that the only argument names."""
    answer = int(sys.argv.pop())
    os.set_inheritable(answer, False)
    with open(0, encoding="utf-8", closefd=False) as file:
        question = json.load(file)
    found = problems_with(question["root"], question["name"], question["settings"])
    with os.fdopen(answer, "w", encoding="utf-8", errors="replace") as file:
        json.dump(found, file)
        file.flush()
    # Threads and exit handlers of the user's module shall not hold up the answer.
    os._exit(0)
