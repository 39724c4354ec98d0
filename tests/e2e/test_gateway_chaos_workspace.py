"""A workspace edited during requests: each request has its last valid text, and nothing private."""

import json
import re
import time
from pathlib import Path
from threading import Event, Thread

from foveate.context.workspace import Workspace
from foveate.engine.options import AgentOptions, SectionOptions
from tests.support.clients.raw_http import claude_request, send_raw
from tests.support.oracles.system_state import wait_until
from tests.support.servers.gateway import running_gateway
from tests.support.servers.scripted_upstream import (
    claude_response,
    http_response,
    respond_always,
    running_upstream,
)

SECRET = "sk-nobody-may-read-this-4717"
PRIVATE = "The code of the bank is 1234."
VERSION = re.compile(r"Version (\d+) begins\..*?Version (\d+) ends\.", re.DOTALL)


def identity_text(number: int) -> str:
    middle = "You keep the garden. " * 50
    return f"Version {number} begins. {middle}Version {number} ends.\n\n# Bank :private:\n\n{PRIVATE}\n"


def test_a_workspace_can_be_edited_deleted_and_broken_during_requests(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    file, new_file = root / "IDENTITY.md", root / "IDENTITY.new"

    def write(number: int) -> None:
        new_file.write_text(identity_text(number))
        new_file.replace(file)

    write(0)
    statuses: list[int] = []
    is_over = Event()
    options = AgentOptions(sections=SectionOptions(workspace=Workspace(root)))
    with (
        running_upstream(respond_always(http_response(claude_response("Well")))) as upstream,
        running_gateway(upstream.url, tmp_path, options=options) as gateway,
    ):

        def send_requests() -> None:
            while not is_over.is_set():
                statuses.append(send_raw(gateway.url, claude_request(SECRET)).status)

        assert send_raw(gateway.url, claude_request(SECRET)).status == 200
        threads = [Thread(target=send_requests) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(1, 9):
            write(number)
            time.sleep(0.1)
            if number % 4 == 1:
                file.unlink()
            elif number % 4 == 2:
                file.write_bytes(b"")
            elif number % 4 == 3:
                file.write_bytes(b"\xff\xfe\0 no text")
            time.sleep(0.1)
        write(99)

        def sent_text() -> str:
            upstream.requests.clear()
            send_raw(gateway.url, claude_request(SECRET))
            return upstream.requests[-1].decode("utf-8", "replace")

        bodies = [request_bytes.decode("utf-8", "replace") for request_bytes in upstream.requests]
        is_over.set()
        for thread in threads:
            thread.join()
        last = wait_until(sent_text, lambda body: "Version 99 ends." in body)

    assert set(statuses) == {200}
    assert "Version 99 ends." in last
    versions = [
        VERSION.search(json.loads(body.partition("\r\n\r\n")[2])["system"][0]["text"]) for body in bodies
    ]
    assert all(version is not None and version[1] == version[2] for version in versions)
    assert len({version[1] for version in versions if version is not None}) > 1
    assert not any(PRIVATE in body for body in bodies)
    # A problem with a file is reported and fails no request.
    assert {problem.step for problem in gateway.failed_steps} <= {"sections/workspace"}
    assert all("its previous content is still used" in problem.reason for problem in gateway.failed_steps)
