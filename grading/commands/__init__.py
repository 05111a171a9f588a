"""What each command of the command line does, a module for each; what they share is here."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from grading.store import Store, reading

BAD_INPUT, MISSING, LEFT, UNPUBLISHED, INTERRUPTED = 2, 3, 4, 5, 130


def fail(message: str, code: int = BAD_INPUT) -> typer.Exit:
    """Prints what is wrong; to be raised."""
    print(f"cellwise: {message}", file=sys.stderr)
    return typer.Exit(code)


def console() -> "Console":
    """Where progress and remarks go: standard output is for results."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def open_store(store: str, *, create: bool = False) -> "Store":
    """The store that ``--store`` names.

    Raises:
        typer.Exit: it cannot be used. A store that fails later is no fault of the input, and not told here.
    """
    from grading.store import NoStore, Store, StoreError

    try:
        return Store.open(store, create=create)
    except NoStore as error:
        raise fail(f"{error}: cellwise run makes one, --store names another") from error
    except StoreError as error:
        raise fail(str(error)) from error


def beside(store: "Store") -> Path:
    """The folder for what belongs to a store and is not in it: journals, and the data of its Phoenix."""
    if not store.is_sqlite:
        from simulator.canonical import sha256

        name = store.engine.url.set(password=None).render_as_string()
        return Path(".cellwise") / sha256(name.encode()).removeprefix("sha256:")[:12]
    path = Path(store.place)
    return path.parent if path.parent.name == ".cellwise" else path.with_name(path.name + ".d")


def one_matrix(store: "Store", word: str | None) -> "reading.Matrix":
    """The matrix of that word, or the latest.

    Raises:
        NotFound: where there is none.
    """
    from grading.store import NotFound, reading

    if word is not None:
        return reading.find_matrix(store, word)
    matrices = reading.matrices(store)
    if not matrices:
        raise NotFound("the store has no matrix yet: cellwise run order-resolution makes one")
    return matrices[-1]


def api_key() -> str | None:
    return os.environ.get("PHOENIX_API_KEY") or None
