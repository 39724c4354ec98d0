"""A real HTTP proxy (proxy.py) on loopback, in a process of its own, for which every host name is this machine.

Loopback is never reached through a proxy, so upstreams in tests are called `upstream.test`, a name that only
this proxy knows. As a script, this is the proxy.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from proxy import entry_point
from proxy.http.proxy import HttpProxyBasePlugin

HOST = "upstream.test"
START_SECONDS = 30


class ResolveToLoopback(HttpProxyBasePlugin):
    """Plugin of the proxy that finds every host name on this machine."""

    def resolve_dns(self, host: str, port: int) -> tuple[str, None]:
        return "127.0.0.1", None


@dataclass(frozen=True, slots=True)
class HttpProxy:
    url: str

    def with_credentials(self, credentials: str) -> str:
        return self.url.replace("://", f"://{credentials}@")


@contextmanager
def running_http_proxy(
    folder: Path, *, credentials: str = "", authority: trustme.CA | None = None
) -> Iterator[HttpProxy]:
    """Run a proxy until the end of the block; it is ready at once. With an `authority`, it speaks TLS."""
    folder.mkdir(parents=True, exist_ok=True)
    port_file, log = folder / "port", folder / "log"
    options = ["--port=0", f"--port-file={port_file}", f"--log-file={log}", f"--data-dir={folder}"]
    if credentials:
        options.append(f"--basic-auth={credentials}")
    if authority is not None:
        certificate = authority.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
        options += [f"--key-file={folder}/key.pem", f"--cert-file={folder}/certificate.pem"]
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, *options],
        cwd=Path(__file__).parents[3],
        env={name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        start_new_session=True,
    )
    try:
        until = time.monotonic() + START_SECONDS
        while not port_file.exists() or not port_file.read_text(encoding="utf-8").strip():
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < until, "the proxy did not start"
            time.sleep(0.02)
        port = port_file.read_text(encoding="utf-8").split()[0]
        yield HttpProxy(f"http{'s' if authority is not None else ''}://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(START_SECONDS)


if __name__ == "__main__":
    sys.argv += [
        *("--num-workers=1", "--num-acceptors=1", "--hostname=127.0.0.1", "--log-level=INFO"),
        "--plugins=tests.support.servers.http_proxy.ResolveToLoopback",
    ]
    entry_point()
