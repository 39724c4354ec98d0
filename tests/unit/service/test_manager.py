"""Installing, inspecting and removing a service with recorded programs in place of the service manager."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from foveate.config.settings import ServerSettings, Settings
from foveate.errors import CannotListen, NoServiceManager, ServiceFailed, UnwritableFile
from foveate.gateway.observability.health import HEALTH_PATH
from foveate.service import find_manager
from foveate.service.manager import ServiceManager, fetch_health, fetch_status, install, remove
from foveate.service.plan import ServicePlan
from tests.support.processes.service_managers import RecordedPrograms

pytestmark = pytest.mark.process

RUNNING = "ActiveState=active\nSubState=running\nActiveEnterTimestamp=@1794978013\n"
LOADED = "x = {\n\tstate = running\n\tpid = 1\n}\n"


@contextmanager
def server_on_loopback(answer: bytes) -> Iterator[int]:
    """Run a server that answers `/health`, and return its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == HEALTH_PATH else 404)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(params=["linux", "darwin"])
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manager(platform: str, programs: RecordedPrograms) -> ServiceManager:
    programs.print_from("systemctl", RUNNING)
    programs.print_from("launchctl", LOADED)
    return find_manager({}, platform)


def make_plan(folder: Path, port: int = 0) -> ServicePlan:
    config = folder / "foveate.yaml"
    config.write_text(f"server: {{port: {port}}}\n")
    return ServicePlan(
        program=("/bin/true",),
        config=config,
        settings=Settings(server=ServerSettings(port=port)),
        folder=folder,
        data=folder / "data",
        variables={},
    )


def test_a_service_is_installed_inspected_and_removed(manager: ServiceManager, tmp_path: Path) -> None:
    with server_on_loopback(b'{"status": "degraded"}') as port:
        manager.path.parent.mkdir(parents=True)
        manager.path.touch()  # a running service has the port
        install(manager, make_plan(tmp_path, port))
        status = fetch_status(manager)

    assert (status.installed, status.running) == (True, True)
    assert (status.url, status.health) == (f"http://127.0.0.1:{port}", "degraded")
    assert status.config == str(tmp_path / "foveate.yaml")
    assert status.since is not None
    assert (tmp_path / "data").is_dir()

    assert remove(manager)
    assert not manager.path.exists()
    assert (tmp_path / "data").is_dir()
    assert not remove(manager)
    assert not fetch_status(manager).installed


def test_installing_twice_replaces_the_file(manager: ServiceManager, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    install(manager, make_plan(tmp_path / "first"))
    install(manager, make_plan(tmp_path / "second"))

    assert manager.read_config() == tmp_path / "second" / "foveate.yaml"
    assert [path.name for path in manager.path.parent.iterdir()] == [manager.path.name]


def test_a_service_that_does_not_start_is_an_error_that_names_its_log(
    manager: ServiceManager, programs: RecordedPrograms, tmp_path: Path
) -> None:
    programs.print_from("systemctl", "ActiveState=failed\nSubState=failed\nExecMainStatus=2\n")
    programs.print_from("launchctl", "x = {\n\tstate = spawn scheduled\n\tlast exit code = 2\n}\n")

    with pytest.raises(ServiceFailed, match=r"does not start .*exit code 2") as error:
        install(manager, make_plan(tmp_path))
    assert manager.log in str(error.value)
    assert fetch_status(manager).health is None


def test_a_port_of_another_program_is_rejected_before_anything_is_written(
    manager: ServiceManager, tmp_path: Path
) -> None:
    """Otherwise the other program would answer, and the service would seem to run."""
    with server_on_loopback(b'{"status": "ok"}') as port, pytest.raises(CannotListen, match=r"server\.port"):
        install(manager, make_plan(tmp_path, port))
    assert not manager.path.exists()


def test_nothing_is_written_without_a_service_manager(
    manager: ServiceManager, programs: RecordedPrograms, tmp_path: Path
) -> None:
    programs.fail("systemctl show", "no bus")
    programs.fail("launchctl print", "no domain")
    for action in (lambda: install(manager, make_plan(tmp_path)), lambda: fetch_status(manager)):
        with pytest.raises(NoServiceManager):
            action()
    assert not manager.path.exists()


def test_a_folder_that_cannot_be_created_is_an_error(manager: ServiceManager, tmp_path: Path) -> None:
    (tmp_path / "home").touch()

    with pytest.raises(UnwritableFile):
        install(manager, make_plan(tmp_path))


def test_a_configuration_that_became_invalid_leaves_the_address_unknown(
    manager: ServiceManager, tmp_path: Path
) -> None:
    install(manager, make_plan(tmp_path))
    (tmp_path / "foveate.yaml").write_text("server: {port: many}")

    status = fetch_status(manager)

    assert (status.running, status.url, status.health) == (True, None, None)


@pytest.mark.parametrize("platform", ["win32", "freebsd14"], indirect=False)
def test_other_platforms_have_no_manager(platform: str) -> None:
    with pytest.raises(NoServiceManager, match=platform):
        find_manager({}, platform)


@pytest.mark.parametrize("answer", [b"hello", b"[]", b'{"status": 1}', json.dumps({"ok": True}).encode(), b""])
def test_another_server_is_not_taken_for_a_gateway(answer: bytes) -> None:
    with server_on_loopback(answer) as port:
        assert fetch_health(f"http://127.0.0.1:{port}") is None
        assert fetch_health(f"https://127.0.0.1:{port}") is None


def test_nobody_at_the_port_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert fetch_health(f"http://127.0.0.1:{port}") is None
