#!/usr/bin/env python3
"""A small agent to try the gateway with. It asks a model what each page of the documentation is about.

Like every agent, it sends the whole conversation with each turn. It calls ANTHROPIC_BASE_URL with
ANTHROPIC_API_KEY and needs only Python. With --clock it makes the most expensive mistake: it puts the current
time at the start of its prompt.
"""

import argparse
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[1]
BASE_URL = os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8090")
RULES = "You read documentation and say in one sentence what a page is about.\n\n" + (
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
)


def ask(messages: list[Any], *, agent: str, model: str, clock: bool) -> tuple[dict[str, Any], str]:
    """Return the model's response and the gateway's request id."""
    system = f"It is {datetime.now().isoformat()}.\n\n{RULES}" if clock else RULES
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": os.environ.get("ANTHROPIC_API_KEY", "sandbox"),
        "x-foveate-agent": agent,
    }
    body = {"model": model, "max_tokens": 300, "system": system, "messages": messages}
    try:
        with urlopen(Request(f"{BASE_URL}/v1/messages", json.dumps(body).encode(), headers)) as answer:
            return json.load(answer), answer.headers["x-foveate-request-id"]
    except HTTPError as error:
        raise SystemExit(f"{error.code}: {error.read().decode()}") from None
    except URLError as error:
        raise SystemExit(f"cannot connect to {BASE_URL} ({error.reason}): is the gateway running?") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default="default", help="name of the agent")
    parser.add_argument("--model", default="claude-opus-5-5", help="model to call")
    parser.add_argument("--turns", type=int, default=6, help="number of pages to read")
    parser.add_argument("--clock", action="store_true", help="put the current time at the start of the prompt")
    options = parser.parse_args()

    messages: list[Any] = []
    request_id = ""
    for turn, page in enumerate(sorted(ROOT.glob("docs/**/*.md"))[: options.turns], start=1):
        text = page.read_text(encoding="utf-8")[:12_000]
        messages.append({"role": "user", "content": f"What is {page.name} about?\n\n{text}"})
        answer, request_id = ask(messages, agent=options.agent, model=options.model, clock=options.clock)
        messages.append({"role": "assistant", "content": answer["content"]})
        usage = answer["usage"]
        read, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
        sent = usage["input_tokens"] + read + written
        print(f"turn {turn}: {sent:>6,} tokens in, {read:>6,} of them from the cache")
    print(request_id)


if __name__ == "__main__":
    main()
