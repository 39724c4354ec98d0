"""Record the session that `foveate demo` replays: a small agent reads this project's pages with a real model.

    python tools/record_demo.py                       # writes src/foveate/demo/demo_session.json.gz
    python tools/record_demo.py --output mine.json.gz --questions 3

The agent gets one question after the other about Foveate. For each it searches and reads files of `docs/` with
three real tools, and responds. The small model that `foveate serve --local` runs (SmolLM2, 135M) chooses the
searches and pages and writes the responses; a grammar restricts it to the JSON of the tools. The model gets
only the end of the conversation, as much as it can read in seconds. The recording has the whole conversation,
as an agent with a larger window would send it: one Anthropic request body with all messages, which `foveate
replay` reads as well. Recording takes some minutes.
"""

import argparse
import gzip
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from foveate.gateway.local_model import run_local_model

ROOT = Path(__file__).parents[1]
RECORDING_FILE = ROOT / "src" / "foveate" / "demo" / "demo_session.json.gz"
MODEL = "claude-sonnet-4-5"
SYSTEM = (
    "You are a careful engineer who answers questions about a project by reading its pages. Search before you"
    " read, read before you answer, and name the page that an answer is from. Be brief.\n\n"
    "Rules:\n"
    "- Never answer from memory: what a page does not say is not known.\n"
    "- Quote numbers, names of settings and commands as they stand.\n"
    "- Read a long page in pieces, and go on where the last piece ended.\n"
    "- Where two pages differ, say so, and say which is newer.\n"
    "- Do not change any file.\n"
)
PIECE_CHARS = 6_000
MAX_MATCHES = 30
SEEN_CHARS = 1_200
READS = 4
QUESTIONS = (
    "How does Foveate decide which tokens are paid for twice, and how do I see it?",
    "When is a history folded, and what stays as it is?",
    "How are tokens counted for a model whose vocabulary is not known?",
    "What happens to a request that is larger than the window?",
    "Which caps in dollars are there, and when are they checked?",
    "How do I put my agent's workspace files into every request?",
    "What is kept in the store, for how long, and who can read it?",
    "How can I watch a gateway, and what should alarm me?",
)
TOOLS: list[dict[str, Any]] = [
    {
        "name": "list_files",
        "description": "Lists the pages of a folder with their sizes in bytes.",
        "input_schema": {
            "type": "object",
            "properties": {"folder": {"type": "string"}},
            "required": ["folder"],
        },
    },
    {
        "name": "grep",
        "description": "Finds lines in the pages that contain a text, whatever its case. At most 30 lines.",
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
    {
        "name": "read_file",
        "description": "Reads a piece of a page, from a position in characters on.",
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "start": {"type": "integer"}},
            "required": ["path"],
        },
    },
]


class Tools:
    """Three read-only tools over the pages of a folder."""

    def __init__(self, folder: Path) -> None:
        self.pages = {
            str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(folder.glob("*.md"))
        }
        self.read_up_to: dict[str, int] = {}

    def list_files(self, folder: str) -> str:
        return (
            "\n".join(f"{len(text.encode()):>7}  {path}" for path, text in self.pages.items()) + f"\n({folder})"
        )

    def grep(self, text: str) -> str:
        found = [
            f"{path}:{number}: {line.strip()[:160]}"
            for path, page in self.pages.items()
            for number, line in enumerate(page.splitlines(), 1)
            if text.lower() in line.lower()
        ]
        more = f"\n({len(found) - MAX_MATCHES} more)" if len(found) > MAX_MATCHES else ""
        return "\n".join(found[:MAX_MATCHES]) + more if found else "no line has it"

    def read_file(self, path: str, start: int = 0) -> str:
        page = self.pages[path]
        self.read_up_to[path] = end = min(len(page), start + PIECE_CHARS)
        return f"{page[start:end]}\n({path}, characters {start} to {end} of {len(page)})"

    def unread(self) -> list[str]:
        """Return the pages that were not read completely."""
        return [path for path, page in self.pages.items() if self.read_up_to.get(path, 0) < len(page)]


class LocalModel:
    """The local model."""

    def __init__(self, base_url: str, model: str) -> None:
        self._url = f"{base_url}/v1/chat/completions"
        self._model = model

    def complete(
        self, messages: list[dict[str, str]], *, max_tokens: int, schema: dict[str, Any] | None = None
    ) -> str:
        """Complete a chat; with a schema, as JSON that matches it."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": max_tokens,
            "seed": 1,
        }
        if schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
        request = urllib.request.Request(
            self._url, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            content = json.load(response)
        return str(content["choices"][0]["message"]["content"]).strip()


class Agent:
    """An agent: its conversation, its tools, and the model that decides."""

    def __init__(self, model: LocalModel, tools: Tools) -> None:
        self._model = model
        self._tools = tools
        self.messages: list[dict[str, Any]] = []

    def ask(self, question: str, *, is_first: bool) -> None:
        self.messages.append({"role": "user", "content": question})
        if is_first:
            self._call_tool("list_files", {"folder": "docs"})
        self._call_tool("grep", self._decide(question, "What text do you search for?", _pattern_schema()))
        for _ in range(READS):
            unread = self._tools.unread()
            if not unread:
                break
            chosen = self._decide(question, "Which page do you read next?", _page_schema(unread))
            path = chosen["path"]
            self._call_tool("read_file", {"path": path, "start": self._tools.read_up_to.get(path, 0)})
        answer = self._model.complete(
            self._visible_messages(question, "Answer the question in two sentences."), max_tokens=90
        )
        self.messages.append({"role": "assistant", "content": answer or "The pages do not say."})

    def _call_tool(self, name: str, arguments: dict[str, Any]) -> None:
        number = len(self.messages)
        call = {"type": "tool_use", "id": f"toolu_{number:04}", "name": name, "input": arguments}
        self.messages.append({"role": "assistant", "content": [call]})
        result = getattr(self._tools, name)(**arguments)
        block = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        self.messages.append({"role": "user", "content": [block]})
        print(f"{number:>4}  {name} {json.dumps(arguments)}  {len(result):,} characters", file=sys.stderr)

    def _decide(self, question: str, instruction: str, schema: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self._model.complete(self._visible_messages(question, instruction), max_tokens=80, schema=schema)
        )
        return found

    def _visible_messages(self, question: str, instruction: str) -> list[dict[str, str]]:
        """Return what the model sees: the rules, the end of the conversation, and the current task."""
        last = [json.dumps(message["content"], ensure_ascii=False) for message in self.messages[-4:]]
        end = "\n".join(last)[-SEEN_CHARS:]
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{end}\n\nThe question: {question}\n{instruction}"},
        ]


def _pattern_schema() -> dict[str, Any]:
    text = {"type": "string", "pattern": "^[a-z]{3,12}$"}
    return {"type": "object", "properties": {"text": text}, "required": ["text"], "additionalProperties": False}


def _page_schema(paths: list[str]) -> dict[str, Any]:
    path = {"type": "string", "enum": paths}
    return {"type": "object", "properties": {"path": path}, "required": ["path"], "additionalProperties": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RECORDING_FILE)
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    options = parser.parse_args()
    with run_local_model() as local:
        agent = Agent(LocalModel(local.base_url, local.model), Tools(ROOT / "docs"))
        for number, question in enumerate(QUESTIONS[: options.questions]):
            agent.ask(question, is_first=number == 0)
    body = {"model": MODEL, "max_tokens": 1024, "system": SYSTEM, "tools": TOOLS, "messages": agent.messages}
    packed = gzip.compress(json.dumps(body, ensure_ascii=False).encode(), 9, mtime=0)
    options.output.write_bytes(packed)
    print(f"{options.output}: {len(agent.messages)} messages, {len(packed):,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
