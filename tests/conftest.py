"""What holds for every test: with CELLWISE_TEST_REQUIRE_ALL=1, as in CI, a skipped test is a failure.

Those of tests/cluster are one only where there is a cluster: CI runs them apart.
"""

import os
import signal

import pytest

REQUIRE_ALL = os.environ.get("CELLWISE_TEST_REQUIRE_ALL") == "1"
CLUSTER = "CELLWISE_TEST_KUBECONFIG" in os.environ

_skipped: list[str] = []


def pytest_configure() -> None:
    # A shell has what it runs in the background ignore Ctrl-C, and so would every process that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and (CLUSTER or "tests/cluster/" not in report.nodeid):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped.append(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if REQUIRE_ALL and _skipped and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REQUIRE_ALL and _skipped:
        terminalreporter.section("skipped, where everything is required")
        for line in _skipped:
            terminalreporter.line(line)
