"""The small agent of the tutorial, where something is not as it should be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.gateway import running_gateway

pytestmark = pytest.mark.process

AGENT = Path(__file__).resolve().parents[2] / "examples" / "agent.py"
NOBODY = "http://127.0.0.1:9"


def said(base_url: str) -> str:
    """What the agent says on standard error, and that it failed."""
    environment = {**os.environ, "ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_API_KEY": "k"}
    done = subprocess.run(
        [sys.executable, AGENT, "--turns", "1"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_without_a_gateway_or_a_provider_it_says_so_in_a_line(tmp_path: Path) -> None:
    """Defect: it was a page of where in Python, without what the gateway had said."""
    with running_gateway(NOBODY, tmp_path) as gateway:
        unreached = said(gateway.url)

    assert unreached.startswith("502: ")
    assert "the provider could not be reached" in unreached
    assert said(NOBODY).startswith(f"nobody answers at {NOBODY} (")
