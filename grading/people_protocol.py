"""What people and the intake of a cluster say to each other: the people API's documents, version 1.

Every answer but a stored document's own bytes is one of these models. Texts that are evidence (ledgers, journals)
travel as they are stored, to the byte; whoever receives them checks them again.
"""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints, model_validator

from grading.cases import Identifier
from grading.manifest import Simulator
from grading.matrix_file import Image, Slug
from simulator.ledger import Microseconds, Sha256
from simulator.model import WireModel

LARGEST_REQUEST = 32 * 1024 * 1024
"""Bytes of a request's body, a manifest among them."""

LARGEST_ANSWER = 8 * 1024 * 1024
"""Bytes of evidence after which an answer of several trials ends, and says where to go on."""

MOST_TRIALS_AT_ONCE = 500
MOST_TRIALS = 500_000
"""Planned trials of a matrix on a cluster."""

Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""A matrix by its id, its name or the beginning of its manifest's hash."""
Queue = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
Parallelism = Annotated[int, Field(ge=1, le=10_000)]
TrialsPerPod = Annotated[int, Field(ge=1, le=1_000)]


class CellTerms(WireModel):
    """Cells by their case, their condition or both."""

    case: Identifier | None = None
    condition: Identifier | None = None

    @model_validator(mode="after")
    def _names_something(self) -> "CellTerms":
        if self.case is None and self.condition is None:
            raise ValueError("names neither a case nor a condition")
        return self


OnlyTerms = Annotated[list[CellTerms], Field(max_length=1_000)]


class WantedPlacement(WireModel):
    """How a matrix is to run on the cluster. No part of its manifest: it decides when trials run, not their meaning."""

    trials_per_pod: TrialsPerPod = 1
    parallelism: Parallelism | None = None
    """Pods of the matrix at a time; None for as many as the cluster allows."""
    queue: Queue | None = None
    """The Kueue LocalQueue."""
    images: dict[Identifier, Image] = {}
    """By condition: where an agent of one's own is."""
    providers: dict[Identifier, Slug] = {}
    """By condition: whose limit its trials share."""
    only: OnlyTerms = []
    """The cells to run; all of them where it is empty."""
    reuse: Word | None = None
    """The matrix whose finished trials of equal key are taken over."""


class RegisterRequest(WireModel):
    """POST /v1/matrices: registers a matrix and starts it. The same again resumes it."""

    version: Literal[1] = 1
    manifest: dict[str, JsonValue]
    placement: WantedPlacement


class ResumeRequest(WireModel):
    """POST /v1/matrices/{word}/resume: goes on. What is None stays as it was."""

    version: Literal[1] = 1
    only: OnlyTerms = []
    """The cells to run from now on; all of them where it is empty."""
    parallelism: Parallelism | None = None
    trials_per_pod: TrialsPerPod | None = None
    queue: Queue | None = None


MatrixWord = Literal["registered", "running", "paused", "cancelled", "complete", "incomplete"]


class WhoAmI(WireModel):
    """GET /v1/whoami."""

    version: Literal[1] = 1
    actor: str
    cellwise: str
    """The version of the software that serves."""
    simulator: Simulator
    cells_namespace: str | None
    """Where the cells' pods are."""


class Registered(WireModel):
    """The answer to POST /v1/matrices."""

    version: Literal[1] = 1
    id: int
    manifest: Sha256
    created: bool
    """False where the matrix was there already."""
    state: MatrixWord
    changes: list[str]
    """Where it was created: what it changes against the latest matrix of its name."""
    previous: int | None
    """That matrix."""
    reused: int
    """Trials that were taken over."""


class Changed(WireModel):
    """The answer to pause, resume and cancel."""

    version: Literal[1] = 1
    id: int
    name: str
    state: MatrixWord
    changed: bool
    """False where it was so already."""


class TrialCounts(WireModel):
    """Trials by state."""

    open: int
    leased: int
    delivered: int
    graded: int
    missing: int

    @property
    def planned(self) -> int:
        return self.open + self.leased + self.delivered + self.graded + self.missing

    @property
    def left(self) -> int:
        return self.open + self.leased + self.delivered


class ListedMatrix(WireModel):
    id: int
    name: str
    manifest: Sha256
    state: MatrixWord
    counts: TrialCounts


class Matrices(WireModel):
    """GET /v1/matrices, the oldest first."""

    version: Literal[1] = 1
    matrices: list[ListedMatrix]


class LostAttempts(WireModel):
    reason: str
    count: int


class FailedCell(WireModel):
    condition: str
    case: str
    reason: str


class WaitingCell(WireModel):
    """A cell whose pods cannot run yet: nothing is lost, and no attempt is used."""

    condition: str
    case: str
    why: str


class IncidentLine(WireModel):
    kind: str
    detail: str


class PublicationLine(WireModel):
    target: str
    state: Literal["stale", "publishing", "published"]
    compare: str | None


class MatrixStatus(WireModel):
    """GET /v1/matrices/{word}. With ``?summary=no`` the summary and the plain table are left out."""

    version: Literal[1] = 1
    id: int
    name: str
    manifest: Sha256
    state: MatrixWord
    counts: TrialCounts
    placed: TrialCounts
    """The same for the cells that the placement names."""
    running: int
    """Attempts that run at this moment."""
    lost: list[LostAttempts]
    failed_cells: list[FailedCell]
    waiting: list[WaitingCell]
    incidents: list[IncidentLine]
    """The first hundred."""
    publications: list[PublicationLine]
    on_cluster: bool
    """Whether it was placed on the cluster at all."""
    actor: str | None
    """Who placed it last."""
    trials_per_pod: int | None
    parallelism: int | None
    queue: str | None
    phoenix: str | None
    """Where its results are compared, as the publisher in the cluster sees it."""
    summary: dict[str, JsonValue] | None
    plain: str | None
    """The table."""


class AttemptLine(WireModel):
    """One attempt at a trial, and where it ran."""

    condition: str
    case: str
    repetition: int
    number: int
    state: Literal["leased", "running", "delivered", "lost", "fenced"]
    reason: str | None
    pod: str | None
    node: str | None
    launch: str | None
    index: int | None
    leased: Microseconds
    started: Microseconds | None
    ended: Microseconds | None
    acted: bool
    """Whether it made a refund or approval call."""


class LaunchLine(WireModel):
    """A Job of a cell."""

    id: str
    condition: str
    case: str
    generation: int
    job: str
    state: Literal["planned", "created", "ended"]
    reason: str | None
    waiting: str | None


class Attempts(WireModel):
    """GET /v1/matrices/{word}/attempts, of one cell with ``?condition=..&case=..`` or ``?cell=ID``; 1,000 at most."""

    version: Literal[1] = 1
    matrix: int
    name: str
    cells_namespace: str | None
    attempts: list[AttemptLine]
    launches: list[LaunchLine]
    more: bool
    """Whether there are more attempts than are told."""


class CopiedOwner(WireModel):
    """Who held an attempt: of a pod, its uid, and ``<node>/<pod name>`` as host."""

    id: str
    host: str
    boot: str
    namespace: str


class CopiedGrade(WireModel):
    """What the cluster graded. A copy is graded again where it is kept; this shows whether both say the same."""

    grader: str
    version: str
    verdict: Literal["passed", "failed", "unscored"]


class Origin(WireModel):
    """The attempt of another matrix whose ledger stands for a trial."""

    manifest: Sha256
    sequence: int
    number: int


class CopiedAttempt(WireModel):
    """An attempt that has ended, with what it left."""

    number: int
    state: Literal["delivered", "lost", "fenced"]
    reason: str | None
    budget: Literal["none", "uncharged", "charged", "provider", "ledger_bad", "unknown"] | None
    owner: CopiedOwner | None
    leased: Microseconds
    started: Microseconds | None
    ended: Microseconds | None
    acted: bool
    origin: Origin | None
    """Where the trial was taken over: the ledger is that attempt's, and not here."""
    ledger: str | None
    """Its canonical JSON."""
    journal: str | None
    """Base64: one that was cut off may end within a character."""
    grades: list[CopiedGrade]


class CopiedTrial(WireModel):
    """A trial as the cluster's store has it. Attempts that still run are left out."""

    sequence: int
    condition: str
    case: str
    repetition: int
    assignment: Sha256
    state: Literal["open", "leased", "delivered", "graded", "missing"]
    evidence: int | None
    """The number of the attempt whose ledger counts."""
    attempts: list[CopiedAttempt]


class Ledgers(WireModel):
    """GET /v1/matrices/{word}/ledgers?after=SEQUENCE&limit=N: trials in planned order."""

    version: Literal[1] = 1
    trials: list[CopiedTrial]
    more: bool
    """Whether trials of a higher sequence number follow."""


class CopiedIncident(WireModel):
    id: int
    sequence: int | None
    """The planned place of its attempt's trial, and the attempt's number, where it belongs to one."""
    number: int | None
    kind: str
    detail: str
    created: Microseconds
    document: str | None
    """Base64: what was refused may be anything."""


class Incidents(WireModel):
    """GET /v1/matrices/{word}/incidents?after=ID."""

    version: Literal[1] = 1
    incidents: list[CopiedIncident]
    more: bool


class Problem(WireModel):
    """Every answer that is an error."""

    version: Literal[1] = 1
    error: str
    place: str | None = None
    """Where in the request: such as ``manifest.conditions.1.agent.source``."""
