"""What Prometheus may ask of the controller."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

LEADING = Gauge("cellwise_controller_leading", "1 where this process holds the Lease", registry=REGISTRY)
STEPS = Counter("cellwise_controller_steps", "Steps of the loop, by outcome", ["outcome"], registry=REGISTRY)
STEP_SECONDS = Histogram(
    "cellwise_controller_step_seconds",
    "Duration of a step of the loop",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
    registry=REGISTRY,
)
JOBS_IN_FLIGHT = Gauge("cellwise_jobs_in_flight", "Launches that have not ended", registry=REGISTRY)
JOBS_CREATED = Counter("cellwise_jobs_created", "Jobs created or adopted", registry=REGISTRY)
UNKNOWN_JOBS = Gauge("cellwise_unknown_jobs", "Jobs with our labels of no launch in the store", registry=REGISTRY)
ATTEMPTS_HELD = Gauge("cellwise_attempts_held", "Attempts that pods hold", registry=REGISTRY)
ATTEMPTS_SETTLED = Counter(
    "cellwise_attempts_settled", "Attempts of pods that ended without a ledger, by reason", ["reason"],
    registry=REGISTRY,
)  # fmt: skip
CELLS_FAILED = Counter(
    "cellwise_cells_failed", "Cells that failed for a reason that no further try mends", registry=REGISTRY
)
API_CALLS = Counter("cellwise_api_calls", "Requests sent to the Kubernetes API", registry=REGISTRY)
RELISTED = Gauge("cellwise_mirror_lists", "How often a kind was listed anew", ["kind"], registry=REGISTRY)
MIRROR_SILENT = Gauge(
    "cellwise_mirror_silent_seconds", "How long the API server said nothing of a kind", ["kind"], registry=REGISTRY
)
