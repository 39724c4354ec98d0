"""An agent that reads one file after the other through the Messages API, and its reported usage."""

from dataclasses import dataclass, field
from typing import Any

import anthropic

TOOLS: Any = [
    {
        "name": name,
        "description": f"Does {name} with a file. " * 40,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("read", "write", "search", "run")
]


SYSTEM = "You are a careful engineer. Never push to the main branch. " * 60


@dataclass
class UsageTotal:
    """Total usage reported for a session."""

    inputs: list[int] = field(default_factory=list)
    read: int = 0

    def add(self, usage: Any) -> None:
        self.inputs.append(
            usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
        )
        self.read += usage.cache_read_input_tokens

    @property
    def hit_ratio(self) -> float:
        return self.read / sum(self.inputs)


def run_file_reader(client: anthropic.Anthropic, sandbox: Any, count: int, model: str) -> UsageTotal:
    """Run an agent that reads one file after the other and resends its whole history each time."""
    total = UsageTotal()
    messages: list[Any] = [{"role": "user", "content": "Find the slow parser. Never push to the main branch."}]
    for number in range(count):
        reply = client.messages.create(
            model=model, max_tokens=500, system=SYSTEM, tools=TOOLS, messages=messages
        )
        total.add(reply.usage)
        sandbox.clock.now += 20
        call = {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": "read",
            "input": {"path": f"src/part_{number}.py"},
        }
        listing = "\n".join(f"def parse_{number}_{line}(text): return text.split({line})" for line in range(26))
        messages += [
            {"role": "assistant", "content": [{"type": "text", "text": f"I look into part {number}."}, call]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": listing}],
            },
        ]
    return total
