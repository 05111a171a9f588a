"""The store: what was registered, tried, delivered, graded and published, in one SQLite file or in PostgreSQL.

:class:`Store` opens it. What may be done to it is a function for each named transaction, in the file of its concept:
``registering``, ``matrices``, ``owners``, ``leasing``, ``delivering``, ``losing``, ``grades``, ``judgments``,
``reusing``, ``publishing``, ``copying``, and for clusters ``placing``, ``launching``, ``claiming``, ``journaling`` and
``charging``; ``reading`` and ``whereabouts`` change nothing. Every one of them is one transaction, durable when the
function returns.
"""

from grading.store.errors import NoStore, NotFound, StateError, StoreAway, StoreError
from grading.store.opening import Store, TransactionName

__all__ = ["NoStore", "NotFound", "StateError", "Store", "StoreAway", "StoreError", "TransactionName"]
