"""Which software a ledger names."""

import platform

from simulator.recorder import software
from simulator.source import simulator_identity


def test_python_is_named_as_the_platform_module_names_it() -> None:
    assert software() == {**simulator_identity(), "python": platform.python_version()}
