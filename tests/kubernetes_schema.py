"""The Kubernetes API's schemas, as its Python client carries them: what a document may hold, checked field by field."""

from typing import Any

from kubernetes import client
from pydantic import ValidationError


def violations(document: Any) -> list[str]:
    """Where a document is none that the schema of its kind allows: an unknown field, a wrong type, one missing."""
    kind, version = document.get("kind"), document.get("apiVersion", "")
    model = getattr(client, f"{version.rpartition('/')[2].capitalize()}{kind}", None)
    if model is None:
        return [f"{version} {kind}: no such kind"]
    try:
        # A field's own name alone counts, not the client's name for it.
        model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        return [f"{kind}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return []
