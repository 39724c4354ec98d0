"""Fixtures of end-to-end tests: the command in this process, a file to count, servers and a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from foveate.cli import main
from tests.support.clients.browser import BrowserUnavailable, running_browser
from tests.support.processes import forked_commands
from tests.support.processes.commands import Outcome
from tests.support.processes.distributions import Distributions, build_distributions
from tests.support.processes.make_once import make_once
from tests.support.scenarios.dashboard_traffic import DashboardGateway, gateway_with_traffic
from tests.support.stores.postgres import PostgresServer, PostgresUnavailable, running_postgres


@pytest.fixture(autouse=True)
def start_fork_server(request: pytest.FixtureRequest) -> None:
    """Start the fork server for tests that run commands."""
    if request.node.get_closest_marker("process"):
        forked_commands.ensure_running()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command in this process."""

    def call(*arguments: str | Path) -> Outcome:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, output.out, output.err)

    return call


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("How many tokens is this?", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    try:
        with running_postgres() as server:
            yield server
    except PostgresUnavailable as reason:
        pytest.skip(f"no PostgreSQL: {reason}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser for one module: it has a running event loop, which others must not meet."""
    try:
        with running_browser() as browser_:
            yield browser_
    except BrowserUnavailable as reason:
        pytest.skip(f"no browser: {reason}")


@pytest.fixture(scope="session")
def distributions() -> Distributions:
    """The wheel and the source distribution of the project."""
    return Distributions(make_once("distributions", build_distributions))


@pytest.fixture(scope="session")
def dashboard_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardGateway]:
    """A gateway with traffic; tests may read its pages, but send no requests."""
    with gateway_with_traffic(tmp_path_factory.mktemp("shown")) as running:
        yield running
