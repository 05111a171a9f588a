"""The Jobs of launches: created after their row is stored, adopted where they exist, deleted by their uid alone."""

from dataclasses import dataclass
from typing import Any, Literal

import structlog

from grading.store import StateError, Store, launching
from k8s import job, reasons
from k8s.api import Api, ApiError, Document
from k8s.intake_address import IntakeAddress
from k8s.mirror import Mirror
from k8s.reasons import Hindrance
from k8s.settings import Settings

log: Any = structlog.get_logger("cellwise.launcher")


@dataclass(frozen=True, slots=True)
class Created:
    """What became of a launch's Job: it exists, or why it does not."""

    outcome: Literal["exists", "name_taken", "refused"]
    hindrance: Hindrance | None = None


class Launcher:
    """Writes Jobs. Every write may be repeated, and may have been made by a process that did not live to tell."""

    def __init__(self, store: Store, api: Api, settings: Settings, jobs: Mirror) -> None:
        self._store = store
        self._api = api
        self._settings = settings
        self._jobs = jobs
        self._intake = IntakeAddress(settings.intake_url)
        self.collection = f"/apis/batch/v1/namespaces/{settings.cells_namespace}/jobs"

    def create(self, launch: launching.Launch, work: job.Work) -> Created:
        """Creates the Job of a launch that is stored, or adopts it.

        Raises:
            ApiError: where nobody can tell whether it exists; the next call finds out.
        """
        try:
            document = job.job(work, self._settings, self._intake.address())
        except job.UnusableCondition as error:
            return Created("refused", Hindrance(True, str(error)))
        try:
            made = self._api.create(self.collection, document)
        except ApiError as error:
            if error.status == 409 and error.reason != "AlreadyExists":
                raise
            if error.status == 409:
                return self._adopt(launch)
            if (refused := _refused(error)) is not None:
                return Created("refused", refused)
            raise
        return self._exists(launch, made)

    def find(self, launch: launching.Launch) -> Document | None:
        """The Job of a launch, asked of the API server; None where there is none, or one that is not ours."""
        found = self._api.find(f"{self.collection}/{launch.job}")
        if found is None or not self.is_of(found, launch):
            return None
        return found

    def is_of(self, found: Document, launch: launching.Launch) -> bool:
        """Whether a Job is a launch's: by uid once that is known, else by the id that it was created with."""
        metadata = found["metadata"]
        if launch.job_uid is not None:
            return bool(metadata["uid"] == launch.job_uid)
        return bool((metadata.get("annotations") or {}).get(job.LAUNCH) == launch.id)

    def widen(self, found: Document, parallelism: int) -> None:
        """Has more of a Job's pods run at once; never fewer, since the Job's controller would delete some that run."""
        metadata = found["metadata"]
        patch = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "spec": {"parallelism": parallelism},
        }
        try:
            self._api.merge(f"{self.collection}/{metadata['name']}", patch)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            # It has changed meanwhile: looked at again when its event has arrived.

    def delete(self, name: str, uid: str) -> None:
        """Deletes a Job with its pods, if it is still that one."""
        self._api.delete(f"{self.collection}/{name}", uid)

    def _adopt(self, launch: launching.Launch) -> Created:
        found = self._api.find(f"{self.collection}/{launch.job}")
        if found is None:
            raise ApiError(0, "Conflict", f"Job {launch.job} existed and is gone: tried again")
        if not self.is_of(found, launch):
            annotations = found["metadata"].get("annotations") or {}
            detail = (
                f"Job {launch.job} (uid {found['metadata']['uid']}) is of launch "
                f"{annotations.get(job.LAUNCH) or 'none'}, not of {launch.id}: somebody else's, and left alone"
            )
            log.error("job_name_taken", launch=launch.id, job=launch.job, detail=detail)
            launching.name_taken(self._store, launch.id, detail)
            return Created("name_taken")
        log.info("job_adopted", launch=launch.id, job=launch.job)
        return self._exists(launch, found)

    def _exists(self, launch: launching.Launch, found: Document) -> Created:
        self._jobs.put(found)
        try:
            launching.created(self._store, launch.id, found["metadata"]["uid"])
        except StateError as error:
            # Ended by another controller meanwhile: that one, or the next look, deletes the Job.
            log.warning("job_of_ended_launch", launch=launch.id, job=launch.job, error=str(error))
        return Created("exists")


def _refused(error: ApiError) -> Hindrance | None:
    """Why a Job will not be, or not yet; None where the API server did not judge it."""
    if error.status in (400, 413, 422):
        return Hindrance(True, f"the API server refuses its Job: {error.message}")
    if error.status == 404:
        # The namespace, as while a release is being installed.
        return Hindrance(False, error.message)
    if error.status == 401 or (error.status == 403 and "cannot create resource" in error.message):
        # Every Job would be refused: the installation's fault, which no cell should pay for.
        return Hindrance(False, error.message)
    return reasons.refusal(error.message) if error.status == 403 else None
