"""How a client is pointed at a gateway: one base URL is changed."""

from shlex import quote


def export_lines(url: str) -> tuple[str, ...]:
    """What a shell is told for the clients of Anthropic's and of OpenAI's API."""
    return f"export ANTHROPIC_BASE_URL={quote(url)}", f"export OPENAI_BASE_URL={quote(f'{url}/v1')}"
