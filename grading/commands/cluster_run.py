"""cellwise run and cellwise resume on a cluster: registered there, watched from here, and the same table in the end."""

import json as json_format
import shlex
import sys
import time
from typing import Any

import typer

from grading.agents import is_packaged
from grading.commands import fail, reuse_needs_one
from grading.commands.cluster import (
    Connected,
    connected,
    exit_status,
    follow,
    is_published,
    latest,
    published,
    short,
    status_document,
    tell_detached,
    tell_phoenix,
    tell_rest,
)
from grading.commands.studies import check_only, conclude, parsed_only, tell_executions
from grading.commands.where import Where
from grading.manifest import Manifest, ResolvedStudy, Schedule
from grading.people_client import only_terms
from grading.people_protocol import Changed, Registered, ResumeRequest, WantedPlacement, WhoAmI
from grading.studies import load_study


def run(
    study: str,
    *,
    where: Where,
    only: list[str] | None,
    reuse: str | None,
    parallelism: int | None,
    trials_per_pod: int | None,
    queue: str | None,
    phoenix: str,
    json: bool,
) -> None:
    loaded = load_study(study)
    if reuse is not None and loaded.of_comparisons:
        raise reuse_needs_one(loaded)
    for resolved in loaded.matrices:
        check_only(only, resolved.manifest)
        _check_images(resolved)
    wants_phoenix = _wants_phoenix(phoenix)
    results: list[dict[str, Any]] = []
    with connected(where, "editor") as way:
        server = way.client.whoami()
        manifests = [_for_cluster(resolved, server) for resolved in loaded.matrices]
        registered = []
        for resolved, manifest in zip(loaded.matrices, manifests, strict=True):
            placement = WantedPlacement(
                trials_per_pod=trials_per_pod or resolved.trials_per_pod,
                parallelism=parallelism or resolved.parallelism_asked,
                queue=queue,
                images=dict(resolved.images),
                providers=dict(resolved.providers),
                only=only_terms(parsed_only(only)),
                reuse=reuse,
            )
            registered.append(_register(way, manifest, placement, reuse=reuse))
        if loaded.of_comparisons and not json:
            tell_executions(loaded)
        for one, manifest in zip(registered, manifests, strict=True):
            if loaded.of_comparisons and not json:
                print(f"\n{manifest.name}" if results else manifest.name)
            result = _advance(way, one.id, manifest.name, wants_phoenix=wants_phoenix, json=json)
            results.append(result)
            if result.get("detached"):
                break
    conclude(loaded, results, json=json)


def resume(
    word: str | None,
    *,
    where: Where,
    only: list[str] | None,
    parallelism: int | None,
    trials_per_pod: int | None,
    queue: str | None,
    phoenix: str,
    json: bool,
) -> None:
    asked = ResumeRequest(
        only=only_terms(parsed_only(only)), parallelism=parallelism, trials_per_pod=trials_per_pod, queue=queue
    )
    wants_phoenix = _wants_phoenix(phoenix)
    with connected(where, "editor") as way:
        resumed: Changed = way.client.resume(latest(way, word), asked)
        result = _advance(way, resumed.id, resumed.name, wants_phoenix=wants_phoenix, json=json)
    if json:
        print(json_format.dumps(result))
    if result["status"]:
        raise typer.Exit(result["status"])


def _wants_phoenix(phoenix: str) -> bool:
    if phoenix not in ("embedded", "off"):
        raise fail(f"--phoenix {phoenix}: a cluster publishes into the Phoenix of its release: leave it away, or off")
    return phoenix == "embedded"


def _check_images(resolved: ResolvedStudy) -> None:
    """Raises typer.Exit for agents that no pod could find."""
    own = [
        condition.name
        for condition in resolved.manifest.conditions
        if not is_packaged(condition.agent.name) and condition.name not in resolved.images
    ]
    if own:
        raise fail(
            f"{resolved.matrix_file}: on a cluster an agent of your own runs in an image alone ({', '.join(own)}): "
            "build one that holds its module, and write 'image: NAME@sha256:...' in its condition"
        )


def _for_cluster(resolved: ResolvedStudy, server: WhoAmI) -> Manifest:
    """The manifest as a cluster runs it: its trials in parallel, and saying so."""
    manifest = resolved.manifest
    if manifest.simulator != server.simulator:
        ours, theirs = manifest.simulator, server.simulator
        raise fail(
            f"this command line is of simulator {ours.version} ({short(ours.source)}), the cluster of {theirs.version} "
            f"({short(theirs.source)}): install cellwise {server.cellwise}, or upgrade the cluster"
        )
    if manifest.schedule.order == "strict":
        print(f"cellwise: {manifest.name}: a cluster runs trials in parallel, the manifest says so", file=sys.stderr)
        schedule = Schedule(rule=manifest.schedule.rule, order="parallel")
        manifest = manifest.model_copy(update={"schedule": schedule})
    return manifest


def _register(way: Connected, manifest: Manifest, placement: WantedPlacement, *, reuse: str | None) -> Registered:
    registered = way.client.register(manifest.model_dump(mode="json"), placement)
    if registered.manifest != manifest.hash():
        raise fail(f"the cluster registered {registered.manifest}, not {manifest.hash()}: tell who runs it", 1)
    place = f"{way.cluster.context}, namespace {way.cluster.namespace}"
    print(
        f"{manifest.name} {short(registered.manifest)}: matrix {registered.id} on {place}"
        + ("" if registered.created else f", there already and {registered.state}"),
        file=sys.stderr,
    )
    if registered.created and registered.previous is not None and reuse is None:
        print(f"A new matrix: against matrix {registered.previous} it changes", file=sys.stderr)
        for change in registered.changes:
            print(f"  {change}", file=sys.stderr)
        print(f"  (--reuse {registered.previous} takes over its finished trials that are the same)", file=sys.stderr)
    if registered.reused:
        print(f"{registered.reused} finished trials taken over from {shlex.quote(str(reuse))}", file=sys.stderr)
    return registered


def _advance(way: Connected, matrix_id: int, name: str, *, wants_phoenix: bool, json: bool) -> dict[str, Any]:
    """Watches a matrix, prints its table, and says what ``--json`` prints."""
    started = time.monotonic()
    detached = follow(way, matrix_id, name) == "detached"
    advancing = time.monotonic() - started
    if detached:
        tell_detached(way, name)
        way.client.patience = 5.0
    status = way.client.status(matrix_id) if detached else published(way, matrix_id, wanted=wants_phoenix)
    if not json:
        sys.stdout.write(status.plain or "")
        sys.stdout.flush()
    if not detached:
        tell_rest(way, status)
    tell_phoenix(way, status)
    shown = not wants_phoenix or is_published(status)
    code = exit_status(status, published=shown)
    if code == 5:
        print("cellwise: the cluster's publisher has not shown it yet: its log tells why", file=sys.stderr)
    return {
        "version": 1,
        "matrix": status.name,
        "id": status.id,
        "manifest": status.manifest,
        "state": status.state,
        "summary": status.summary,
        "phoenix": {"compare": status.phoenix, "complete": status.state == "complete"} if status.phoenix else None,
        "advancing_seconds": round(advancing, 3),
        "lost": [one.model_dump(mode="json") for one in status.lost],
        "failed_cells": [one.model_dump(mode="json") for one in status.failed_cells],
        "cluster": status_document(way, status),
        **({"detached": True} if detached else {}),
        "status": code,
    }
