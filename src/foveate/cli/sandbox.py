"""`foveate sandbox`: start a strict simulation of the providers, for agents without a key."""

from pathlib import Path
from typing import Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import report_errors
from foveate.errors import BadOption

DEFAULT_PORT = 8790
BOTH = "both"


def command(
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port to listen on; 0 picks a free port.", min=0, max=65535)
    ] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    provider: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Simulate only this API: anthropic, openai or google. Default: all three.",
            show_default=False,
        ),
    ] = BOTH,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="YAML or JSON file with the responses to send, in order (see docs/guides/sandbox.md). "
            "Default: a fixed sentence.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the address and the simulated APIs as one JSON object once the sandbox is ready.",
        ),
    ] = False,
) -> None:
    """Simulate the Anthropic, OpenAI and Google APIs, to test agents without API keys or costs.

    The sandbox rejects requests that the providers would reject, and simulates their prompt caches. It accepts
    any API key.

    Example: foveate sandbox --provider anthropic --port 8790
    """
    with report_errors(as_json=json):
        from foveate.sandbox.http import SandboxProvider
        from foveate.sandbox.script import read_script
        from foveate.sandbox.server import open_listening_socket, serve, socket_url

        if provider not in (*SandboxProvider, BOTH):
            raise BadOption(f"--provider takes anthropic, openai, google or both, not {provider}")
        providers = frozenset(SandboxProvider if provider == BOTH else (SandboxProvider(provider),))
        steps = None if script is None else read_script(Path(script))
        with open_listening_socket(host, port) as listener:
            url = socket_url(listener)
            if json:
                console.print_object({"url": url, "providers": sorted(providers)})
            else:
                console.print_text("\n".join(_started_lines(url, providers)))
            serve(listener, script=steps, providers=providers)


def _started_lines(url: str, providers: frozenset[str]) -> list[str]:
    lines = [f"Sandbox: {url}", "Any API key works. Press Ctrl-C to stop.", ""]
    if "anthropic" in providers:
        lines.append(f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=sandbox")
    if "openai" in providers:
        lines.append(f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=sandbox")
    if "google" in providers:
        lines.append(f"  export GOOGLE_GEMINI_BASE_URL={url} GEMINI_API_KEY=sandbox")
    return lines
