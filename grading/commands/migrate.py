"""cellwise migrate: a store's tables made, or brought up to date, before anything else opens it."""

import sys
import time

from grading.commands import fail
from grading.store import Store, StoreAway, StoreError
from grading.store.migrating import HEAD

_PAUSE_SECONDS = 2.0


def migrate(*, wait: float, store: str) -> None:
    deadline = time.monotonic() + wait
    told = False
    while True:
        try:
            with Store.open(store) as opened:
                print(f"{opened.place}: the tables are up to date ({HEAD})")
            return
        except StoreAway as error:
            left = deadline - time.monotonic()
            if left <= 0:
                raise fail(str(error), 1) from error
            if not told:
                print(f"cellwise: waiting up to {wait:.0f} s: {error}", file=sys.stderr)
                told = True
            time.sleep(min(_PAUSE_SECONDS, left))
        except StoreError as error:
            raise fail(str(error)) from error
