"""The address of the intake's Service, written into a Job's pods: a node that starts hundreds of them loses packets
to its name server, and each lost one costs a pod a second or more.

A Service keeps its address until it is deleted. One that was made anew meanwhile costs the Jobs in flight their tries;
those created from then on have the new address.
"""

import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

_KEPT_SECONDS = 60.0
_OF_A_SERVICE = (".svc", ".svc.cluster.local")


class IntakeAddress:
    """Asks for the address now and then. Only that of a Service is told: any other name may move at any time.

    Args:
        url: the intake's, as pods reach it.
        resolve: from a host's name to its address.
    """

    def __init__(
        self,
        url: str,
        *,
        resolve: Callable[[str], str] = socket.gethostbyname,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        host = urlsplit(url).hostname or ""
        self._host = host if host.endswith(_OF_A_SERVICE) else None
        self._resolve = resolve
        self._clock = clock
        self._address: str | None = None
        self._asked = float("-inf")

    def address(self) -> str | None:
        """The address, at most a minute old; None where it is not known: a pod then asks for itself."""
        if self._host is not None and self._clock() - self._asked >= _KEPT_SECONDS:
            try:
                self._address = self._resolve(self._host)
            except OSError:
                self._address = None
            self._asked = self._clock()
        return self._address
