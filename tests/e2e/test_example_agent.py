"""Failures of the small agent in the tutorial."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.gateway import running_gateway

pytestmark = pytest.mark.process

AGENT = Path(__file__).resolve().parents[2] / "examples" / "agent.py"
CLOSED_PORT_URL = "http://127.0.0.1:9"


def run_failing_agent(base_url: str) -> str:
    """Run the agent, check that it fails, and return its standard error."""
    environment = {**os.environ, "ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_API_KEY": "k"}
    process = subprocess.run(
        [sys.executable, AGENT, "--turns", "1"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (process.returncode, process.stdout) == (1, "")
    return process.stderr


def test_a_missing_gateway_or_provider_is_reported_in_one_line(tmp_path: Path) -> None:
    """Regression: this was a traceback without the error of the gateway."""
    with running_gateway(CLOSED_PORT_URL, tmp_path) as gateway:
        error_text = run_failing_agent(gateway.url)

    assert error_text.startswith("502: ")
    assert "the provider could not be reached" in error_text
    assert run_failing_agent(CLOSED_PORT_URL).startswith(f"cannot connect to {CLOSED_PORT_URL} (")
