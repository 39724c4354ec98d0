"""Fixtures of all tests: loopback only, Hypothesis, recorded data, a llama.cpp server, databases."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.harness import markers, network_guard
from tests.support.harness.example_limits import QUICK
from tests.support.harness.property_coverage import measure_first_examples
from tests.support.processes import forked_commands  # noqa: F401 - before workers start, which share its server
from tests.support.servers.llama import LlamaServer, LlamaUnavailable, running_llama_server
from tests.support.stores.postgres import PostgresServer, PostgresUnavailable, running_postgres
from tests.support.stores.templates import ensure_store

ROOT = Path(__file__).parents[1]

# Each run tries new random examples, so that they add up. Only continuous integration always tries the same.
settings.register_profile("dev", deadline=None, max_examples=40)
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile(
    QUICK, deadline=None, derandomize=True, max_examples=15
)  # see tests/support/harness/example_limits.py
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# Tests use loopback only. Loading all certificate authorities would take 50 ms for each HTTP client.
os.environ["SSL_CERT_FILE"] = str(ROOT / "tests" / "support" / "one_authority.pem")

network_guard.block_other_hosts()
markers.watch_processes()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from collection: nearly all of its million objects stay.

    Later it runs rarely: by default, parsing all sources in a test takes twice as long.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the markers that follow from fixtures, before `-m` selects by them."""
    for item in items:
        markers.add_derived_markers(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Record the processes of one test, its fixtures included."""
    markers.forget_processes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with measure_first_examples(item):
        yield
    markers.require_process_marker(item)


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the data of tests out of the user's data folder."""
    os.environ["FOVEATE_HOME"] = str(tmp_path_factory.mktemp("foveate-home"))


@pytest.fixture(scope="session", autouse=True)
def restore_ctrl_c() -> None:
    """Restore the handling of Ctrl-C: background processes and their children ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def loopback_only() -> Iterator[None]:
    """Fail a test that tried to reach another machine, even if the error was swallowed."""
    network_guard.ATTEMPTS.clear()
    yield
    if network_guard.ATTEMPTS:
        pytest.fail("; ".join(network_guard.ATTEMPTS))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


def recorded_data() -> Path | None:
    """Return the folder of recorded data next to the project; None if there is none."""
    path = Path(os.environ.get("FOVEATE_SHARED_DATA") or ROOT.parent / "shared" / "data")
    return path if path.is_dir() else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    path = recorded_data()
    if path is None:
        pytest.skip("no recorded data beside the project (FOVEATE_SHARED_DATA can say where it is)")
    return path


@pytest.fixture(scope="session")
def llama_server() -> Iterator[LlamaServer]:
    """A real llama.cpp server with a small model, shared by all tests of a process."""
    try:
        with running_llama_server() as server:
            yield server
    except LlamaUnavailable as reason:
        pytest.skip(f"no llama.cpp server: {reason}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, shared by all tests of a process."""
    try:
        with running_postgres() as server:
            yield server
    except PostgresUnavailable as reason:
        pytest.skip(f"no PostgreSQL: {reason}")


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty store, on each kind of database in turn."""
    if request.param == "sqlite":
        yield ensure_store(tmp_path / "store" / "foveate.sqlite")
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_store()
        yield url
        server.drop(url)


@pytest.fixture(params=["sqlite", "postgres"])
def bare_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without tables, of each kind in turn, for tests of creation and migration."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store' / 'foveate.sqlite'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.new_database()
        yield url
        server.drop(url)
