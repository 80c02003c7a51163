"""What all tests share: those that take longest begin first, and why a test was tried a second time is printed."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """So that no worker is left alone with the long ones at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A second try that passes must not hide what the first one met."""
    tried = terminalreporter.stats.get("rerun", [])
    if tried:
        terminalreporter.section("first tries that failed")
    for report in tried:
        terminalreporter.section(f"{report.nodeid}, {report.when}", sep="_")
        terminalreporter.line(report.longreprtext[-6_000:])
