"""cellwise export: a comparison's packet."""

import json as json_format
import sys
from pathlib import Path

from grading.commands import one_matrix, open_store
from grading.packet_writing import export as export_packet


def export(word: str, path: Path, *, store: str, json: bool) -> None:
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        digest = export_packet(opened, matrix, path)
    if json:
        document = {"version": 1, "matrix": matrix.name, "packet": str(path), "sha256": digest}
        print(json_format.dumps({**document, "manifest": matrix.manifest_hash}))
        return
    print(f"{digest}  {path}")
    print(f"Replay it anywhere: cellwise replay {path.name} --expect-sha256 {digest}", file=sys.stderr)
