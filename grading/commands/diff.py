"""cellwise diff: what became of one matrix's trials in another."""

import json as json_format
import sys

from grading.commands import open_store
from grading.matrix_diff import matrix_diff
from grading.store import reading
from grading.visible import visible


def diff(old: str, new: str, *, store: str, json: bool) -> None:
    with open_store(store) as opened:
        found = matrix_diff(opened, reading.find_matrix(opened, old), reading.find_matrix(opened, new))
    if json:
        print(json_format.dumps(found.to_json()))
        return
    sys.stdout.write("\n".join(map(visible, found.plain().split("\n"))))
