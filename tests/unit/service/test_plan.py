"""What a service runs, and what it sees of the terminal that installs it."""

from pathlib import Path

import pytest

from foveate.config.settings import ServerSettings, TlsSettings
from foveate.errors import BadOption, BadSetting, UnreadableInput
from foveate.service.plan import ServicePlan, check_plan, list_warnings, local_url, plan_service


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": "/usr/bin", "FOVEATE_HOME": str(tmp_path / "data")}


@pytest.fixture
def executable(tmp_path: Path) -> Path:
    """The Python of an environment in which Foveate is installed."""
    folder = tmp_path / "tools" / "foveate" / "bin"
    folder.mkdir(parents=True)
    (folder / "foveate").touch()
    return folder / "python"


def write_config(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "foveate.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def plan(config: Path | None, environ: dict[str, str], executable: Path) -> ServicePlan:
    return plan_service(config, environ, "linux", executable=executable)


def test_without_a_configuration_the_service_works_in_the_data_folder(
    tmp_path: Path, environ: dict[str, str], executable: Path
) -> None:
    planned = plan(None, environ, executable)

    assert planned.command == (str(executable.with_name("foveate")), "serve")
    assert planned.folder == planned.data == tmp_path / "data"
    assert planned.env_file == tmp_path / "data" / ".env"
    assert planned.variables == {"FOVEATE_HOME": str(tmp_path / "data")}
    check_plan(planned, environ)
    assert not planned.folder.exists()


def test_with_a_configuration_the_service_works_in_its_folder(
    tmp_path: Path, environ: dict[str, str], executable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path / "work", "server: {grace_seconds: 90.5}")
    monkeypatch.chdir(tmp_path / "work")

    planned = plan(Path("foveate.yaml"), environ, executable)

    assert planned.command[-2:] == ("--config", str(tmp_path / "work" / "foveate.yaml"))
    assert planned.folder == tmp_path / "work"
    assert planned.stop_seconds == 120


def test_an_environment_without_the_command_runs_the_module(environ: dict[str, str], executable: Path) -> None:
    executable.with_name("foveate").unlink()

    planned = plan(None, environ, executable)

    assert planned.command == (str(executable), "-P", "-m", "foveate", "serve")


def test_an_environment_in_a_cache_is_rejected(
    tmp_path: Path, environ: dict[str, str], executable: Path
) -> None:
    (executable.parents[1] / "CACHEDIR.TAG").touch()  # uv marks every environment
    plan(None, environ, executable)

    (tmp_path / "tools" / "CACHEDIR.TAG").touch()
    with pytest.raises(BadOption, match=r"is temporary.*uv tool install"):
        plan(None, environ, executable)


def test_a_path_with_a_line_break_is_rejected(
    tmp_path: Path, environ: dict[str, str], executable: Path
) -> None:
    config = write_config(tmp_path / "two\nlines", "server: {port: 1}")

    with pytest.raises(BadOption, match="control characters"):
        plan(config, environ, executable)


def test_a_missing_or_invalid_configuration_is_rejected(
    tmp_path: Path, environ: dict[str, str], executable: Path
) -> None:
    with pytest.raises(UnreadableInput):
        plan(tmp_path / "missing.yaml", environ, executable)
    with pytest.raises(BadSetting):
        plan(write_config(tmp_path, "server: {port: many}"), environ, executable)


def test_proxies_and_certificates_are_passed_on_but_no_secrets(
    tmp_path: Path, environ: dict[str, str], executable: Path
) -> None:
    environ |= {
        "https_proxy": "http://proxy.example:3128",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "HTTP_PROXY": "http://ana:secret@proxy.example:3128",
        "ANTHROPIC_API_KEY": "sk-secret",
        "FOVEATE_STORE": "postgresql://foveate:secret@db/foveate",
    }

    planned = plan(None, environ, executable)

    assert planned.variables == {
        "FOVEATE_HOME": str(tmp_path / "data"),
        "SSL_CERT_FILE": "/etc/ca.pem",
        "https_proxy": "http://proxy.example:3128",
    }
    keys, proxy = list_warnings(planned, environ)
    assert keys.startswith(
        "ANTHROPIC_API_KEY, FOVEATE_STORE: set in this terminal, but the service does not see"
    )
    assert str(planned.env_file) in keys
    assert proxy.startswith("HTTP_PROXY: contains a password")
    assert "secret" not in keys + proxy


def test_a_key_that_the_service_reads_from_its_env_file_needs_no_warning(
    tmp_path: Path, environ: dict[str, str], executable: Path
) -> None:
    environ["MY_KEY"] = "sk-1"
    text = "upstreams: {mine: {base_url: 'http://127.0.0.1:1/v1', api: openai, key_variable: MY_KEY}}"
    planned = plan(write_config(tmp_path / "work", text), environ, executable)

    (warning,) = list_warnings(planned, environ)
    assert warning.startswith("MY_KEY: set in this terminal")
    with pytest.raises(BadSetting, match="MY_KEY is not set"):
        check_plan(planned, environ)

    planned.env_file.write_text("MY_KEY=sk-2\n")
    planned.env_file.chmod(0o640)
    (warning,) = list_warnings(planned, environ)
    assert warning == f"other users can read {planned.env_file}: run chmod 600 {planned.env_file}"

    planned.env_file.chmod(0o600)
    assert not list(list_warnings(planned, environ))
    check_plan(planned, environ)


def test_relative_paths_in_the_configuration_start_in_its_folder(
    tmp_path: Path, environ: dict[str, str], executable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "work", "server: {tls: {certificate: here.pem, key: here.pem}}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.pem").write_text("not the one")

    with pytest.raises(BadSetting, match=r"here\.pem.*No such file"):
        check_plan(plan(config, environ, executable), environ)
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (ServerSettings(), "http://127.0.0.1:8090"),
        (ServerSettings(host="0.0.0.0", port=80), "http://127.0.0.1:80"),
        (ServerSettings(host="::"), "http://[::1]:8090"),
        (ServerSettings(host="10.0.0.7"), "http://10.0.0.7:8090"),
        (
            ServerSettings(tls=TlsSettings(certificate=Path("a.pem"), key=Path("a.pem"))),
            "https://127.0.0.1:8090",
        ),
        (ServerSettings(port=0), None),
    ],
)
def test_the_url_is_one_that_this_machine_reaches(server: ServerSettings, url: str | None) -> None:
    assert local_url(server) == url
