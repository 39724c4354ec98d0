"""The Dockerfile, the systemd unit and the example of variables refer only to existing files and options."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from foveate.config.dotenv import parse_env
from foveate.config.load import STORE_VARIABLE
from foveate.gateway.config import DEFAULT_KEY_VARIABLES
from foveate.gateway.observability.health import HEALTH_PATH
from tests.support.oracles.command_tree import COMMANDS

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
UNIT = ROOT / "packaging" / "foveate.service"


def test_files_that_the_image_copies_exist_and_are_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
        for name in line.split()
    ]

    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in allowed, f"{name} is not in .dockerignore's exceptions"


def test_the_image_is_not_run_by_root_and_keeps_its_data_in_a_volume() -> None:
    last_stage = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]

    assert re.search(r"^USER (?!root)\w+$", last_stage, re.MULTILINE)
    home = re.search(r"FOVEATE_HOME=(\S+)", last_stage)
    assert home
    assert f"\nVOLUME {home[1]}\n" in last_stage
    assert HEALTH_PATH in last_stage[last_stage.index("HEALTHCHECK") :]


class OnlyHealth(BaseHTTPRequestHandler):
    """A gateway that knows only its health."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == HEALTH_PATH else 404)
        self.end_headers()

    def log_message(self, *_: object, **__: object) -> None:
        pass


@pytest.mark.process
def test_the_health_check_of_the_image_asks_the_gateway_and_no_proxy() -> None:
    (words,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    with ThreadingHTTPServer(("127.0.0.1", 0), OnlyHealth) as server:
        Thread(target=server.serve_forever, daemon=True).start()

        def check(old: str, new: str) -> int:
            _, *arguments = json.loads(words.replace("8090", str(server.server_port)).replace(old, new))
            environment = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
            command = [sys.executable, *arguments]
            return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

        assert check("", "") == 0
        assert check(HEALTH_PATH, "/other") == 1
        server.shutdown()
    assert check("", "") == 1


def run_commands() -> list[list[str]]:
    """Commands that build the image, split into words."""
    joined = DOCKERFILE.replace("\\\n", " ")
    lines = re.findall(r"^RUN (.*)$", joined, re.MULTILINE)
    return [command.split() for line in lines for command in line.split("&&")]


def test_the_image_installs_nothing_without_its_hash() -> None:
    installs = [words for words in run_commands() if "pip" in words[0] and words[1] in ("install", "wheel")]
    assert len(installs) == 4
    for words in installs:
        if "--require-hashes" in words:
            assert "--only-binary" in words  # a build from source fetches its tools without hashes
            lock = ROOT / words[words.index("-r") + 1]
            pinned = re.split(r"^(?=\S+==)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
            assert pinned
            assert all("--hash=sha256:" in requirement for requirement in pinned), lock.name
        else:  # the project itself, from its own source
            assert {"--no-deps", "--no-index"} <= set(words)


def test_the_image_is_built_with_the_versions_that_tests_run_with() -> None:
    tested = set(PINNED.findall((ROOT / "requirements.lock").read_text(encoding="utf-8")))
    for lock in ("requirements-runtime.lock", "requirements-build.lock"):
        assert set(PINNED.findall((ROOT / lock).read_text(encoding="utf-8"))) <= tested


PINNED = re.compile(r"^([\w.\[\]-]+)==(\S+)", re.MULTILINE)


def test_all_stages_of_the_image_have_the_same_base_that_can_be_pinned_by_digest() -> None:
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+-slim$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.index("ARG PYTHON_IMAGE") < DOCKERFILE.index("\nFROM ")


class Registry(BaseHTTPRequestHandler):
    """A registry that requires a token, like Docker Hub."""

    def do_HEAD(self) -> None:
        is_known = self.headers["authorization"] == "Bearer a-token"
        self.send_response(200 if is_known else 401)
        if is_known and self.path == "/v2/library/python/manifests/3.12-slim":
            self.send_header("docker-content-digest", f"sha256:{'ab' * 32}")
        realm = f"http://{self.headers['host']}/token"
        self.send_header("www-authenticate", f'Bearer realm="{realm}",service="r",scope="library/python:pull"')
        self.end_headers()

    def do_GET(self) -> None:
        is_token_request = self.path == "/token?service=r&scope=library%2Fpython%3Apull"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"token": "a-token"}' if is_token_request else b"{}")

    def log_message(self, *_: object, **__: object) -> None:
        pass


def test_the_digest_of_the_base_image_is_fetched_from_its_registry() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "image_digest.py"))
    assert tool["base_image"](DOCKERFILE) == "python:3.12-slim"
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        registry = f"http://127.0.0.1:{server.server_port}"
        assert tool["fetch_digest"]("python:3.12-slim", registry=registry) == f"sha256:{'ab' * 32}"
        with pytest.raises(SystemExit, match="no digest"):
            tool["fetch_digest"]("python:3.11", registry=registry)
        server.shutdown()


@pytest.mark.parametrize(
    "line",
    [
        re.sub(r'[\[\]",]', "", DOCKERFILE[DOCKERFILE.rindex("CMD [") + 4 :]).strip(),
        re.findall(r"^ExecStart=\S+ (.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)[0],
    ],
)
def test_the_options_they_pass_to_the_command_exist(line: str) -> None:
    command, *words = line.split()
    options = {option for parameter in COMMANDS[f"foveate {command}"].params for option in parameter.opts}

    assert {word for word in words if word.startswith("--")} <= options


def test_the_example_env_file_names_the_key_of_every_provider() -> None:
    text = (ROOT / ".env.example").read_text(encoding="utf-8")

    assert parse_env(text, ".env.example") == {}  # all lines are comments until a user edits them
    variables = parse_env(re.sub(r"^#(?=[A-Z_]+=)", "", text, flags=re.MULTILINE), ".env.example")
    assert {*DEFAULT_KEY_VARIABLES.values(), "FOVEATE_HOME", STORE_VARIABLE} == variables.keys()


def test_the_steps_in_the_unit_create_its_configuration_file() -> None:
    """Defect: without this file, systemd restarted the unit forever."""
    text = UNIT.read_text(encoding="utf-8")
    config_option = re.search(r"^ExecStart=.* --config (\S+)$", text, re.MULTILINE)

    assert config_option
    steps = [line for line in text.splitlines() if line.startswith("#   ")]
    step = next(
        number for number, line in enumerate(steps) if f"foveate config init {config_option[1]}" in line
    )
    assert "systemctl enable" in steps[step + 1]


@pytest.mark.process
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze to ask")
    # It checks that the program exists, which is true only on a machine where it is installed.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/foveate/bin/foveate", "/bin/true"))

    result = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
