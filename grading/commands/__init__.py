"""What each command of the command line does, a module for each; what they share is here."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from grading.store import Store, reading
    from grading.studies import Study

BAD_INPUT, MISSING, LEFT, UNPUBLISHED, INTERRUPTED = 2, 3, 4, 5, 130
WORST_FIRST = (INTERRUPTED, MISSING, LEFT, UNPUBLISHED, 0)
"""Which exit status stands for several."""


def tell_wrong(message: str) -> None:
    """Prints what is wrong. A message may have several lines; a terminal obeys nothing that an input put into it."""
    from grading.visible import visible

    print("\n".join(map(visible, f"cellwise: {message}".split("\n"))), file=sys.stderr)


def fail(message: str, code: int = BAD_INPUT) -> typer.Exit:
    """Prints what is wrong; to be raised."""
    tell_wrong(message)
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


def reuse_needs_one(study: "Study") -> typer.Exit:
    """``--reuse`` takes over one matrix's trials, a study file has several matrices; to be raised."""
    files = ", ".join(str(each.matrix_file) for each in study.matrices)
    return fail(f"--reuse is for one comparison at a time, and {study.name} has {len(study.matrices)}: name {files}")


def refuse_existing(paths: Iterable[Path | None], *, force: bool) -> None:
    """Before any work: a result never takes the place of a file that is there.

    Raises:
        typer.Exit: where one is, and ``--force`` was not given.
    """
    named: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path.absolute() in named:
            raise fail(f"{path} is named for two results: give each its own file")
        named.add(path.absolute())
        try:
            unfit = path.is_dir() or not path.parent.is_dir()
            taken = path.exists() or path.is_symlink()
        except OSError as error:
            raise fail(f"{path} cannot be written: {error.strerror}") from None
        if unfit:
            raise fail(f"{path} cannot be written: name a file in a folder that exists")
        if taken and not force:
            raise fail(f"{path} exists already: nothing was written; --force replaces it")


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Writes a whole file or none; one that appeared meanwhile is kept too, unless forced."""
    partial = path.with_name(f".cellwise-{os.getpid()}.new")  # not longer for a long name
    try:
        partial.write_bytes(content)
        if force:
            partial.replace(path)
        else:
            path.hardlink_to(partial)
    except FileExistsError:
        raise fail(f"{path} exists already: nothing was written; --force replaces it") from None
    except OSError as error:
        raise fail(f"{path} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def api_key() -> str | None:
    return os.environ.get("PHOENIX_API_KEY") or None
