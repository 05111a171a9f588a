"""A kubeconfig context's API server, asked by the person's own rights, and its refusals in words.

The kubernetes client is loaded when it is used: it takes longer to import than most commands of ours take.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grading.launchers import ClusterRefused, ClusterUnavailable

if TYPE_CHECKING:
    from k8s.api import Api

API_SECONDS = 20
"""The limit of one question to the API server."""


def configured(context: str | None) -> tuple[Any, str, str | None]:
    """The client's configuration, the context's name and its namespace, by KUBECONFIG or ~/.kube/config.

    Exec plugins, such as that of GKE, are run by the client whenever their token has run out.
    """
    from kubernetes import client, config
    from kubernetes.config.kube_config import KubeConfigMerger

    # The client itself looks at the variable once, when it is imported.
    where = os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    try:
        merged = KubeConfigMerger(where).config
        if merged is None:
            raise ClusterRefused(f"no cluster is configured: there is no {where}; KUBECONFIG names another file")
        named = {one["name"]: one["context"] for one in merged.value["contexts"]}
        wanted = context or merged.value.get("current-context")
        if not wanted or wanted not in named:
            known = ", ".join(sorted(named)) or "none"
            missing = f"no context is called '{wanted}'" if wanted else "the kubeconfig has no current context"
            raise ClusterRefused(f"{missing}: --context is one of {known} ({where})")
        configuration = client.Configuration()
        config.load_kube_config(
            config_file=where, context=wanted, client_configuration=configuration, persist_config=False
        )
    except ClusterUnavailable:
        raise
    except Exception as error:
        # A file that is malformed, or a plugin that fails, shows itself by whatever the client trips over.
        message = f"the kubeconfig {where} cannot be used: {first_line(error)}"
        raise ClusterRefused(message) from error
    # The command line waits and tells why by itself.
    configuration.retries = 1
    return configuration, wanted, named[wanted].value.get("namespace")


def api_of(configuration: Any) -> "Api":
    """What asks for documents: the client's models of all that Kubernetes knows take longer to load than to answer."""
    from k8s.api import Api

    return Api(configuration, patience_seconds=0)


def core_api(configuration: Any) -> Any:
    """An API object of its own, for what is no document."""
    from kubernetes import client

    return client.CoreV1Api(client.ApiClient(configuration))


@contextmanager
def asking(what: str, *, missing: str, forbidden: str) -> Iterator[None]:
    """Errors of the API server as what a person can do about them."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    from k8s.api import ApiError

    try:
        yield
    except ApiError as error:
        if not error.status:
            raise ClusterUnavailable(f"the API server cannot be reached to {what}: {first_line(error)}") from error
        raise _refused(what, error.status, error.reason, missing=missing, forbidden=forbidden) from error
    except ApiException as error:
        raise _refused(what, error.status, error.reason, missing=missing, forbidden=forbidden) from error
    except (HTTPError, OSError) as error:
        raise ClusterUnavailable(f"the API server cannot be reached to {what}: {first_line(error)}") from error


def _refused(what: str, status: int, reason: str, *, missing: str, forbidden: str) -> ClusterUnavailable:
    refusals = {
        401: "the cluster does not know who you are: log in again, or mend the context's user",
        403: forbidden,
        404: missing,
    }
    if status in refusals:
        return ClusterRefused(refusals[status])
    return ClusterUnavailable(f"{what}: the API server answers {status} {reason}")


def first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
