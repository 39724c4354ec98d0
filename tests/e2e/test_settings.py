"""Every setting has a visible effect: each test changes one setting of a running gateway.

`tests/e2e/settings_coverage.py` names the test of each setting.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveate.gateway.auth.callers import hash_key
from foveate.sandbox.stored_conversations import MESSAGE_THREADS_BETA
from tests.support.servers.embeddings import embedding_server
from tests.support.servers.live_gateway import CLAUDE, GPT, LiveGateway, find_breakpoints, live_gateway
from tests.support.servers.sandbox import KEY

pytestmark = pytest.mark.process

LONG_TEXT = "A line that is long enough to be worth keeping in a cache. " * 400


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with live_gateway(
        tmp_path_factory.mktemp("gateway"),
        EMBEDDINGS_KEY="key-of-embeddings",
        UPSTREAM_KEY="sk-key-of-the-upstream",
    ) as running:
        yield running


CACHEABLE: dict[str, Any] = {"system": [{"type": "text", "text": LONG_TEXT}]}


@pytest.mark.parametrize(
    ("providers", "expected_ttl"), [("[anthropic, vertex]", "1h"), ("[]", "5m"), ("[vertex]", "5m")]
)
def test_a_ttl_of_an_hour_is_requested_only_from_long_ttl_providers(
    gateway: LiveGateway, providers: str, expected_ttl: str
) -> None:
    gateway.configure(f"context_optimization: {{prompt_cache: {{ttl: 1h, long_ttl_providers: {providers}}}}}\n")

    breakpoints = [
        cache_control for _ in range(2) for cache_control in find_breakpoints(gateway.send_message(CACHEABLE))
    ]

    assert breakpoints
    assert {cache_control.get("ttl", "5m") for cache_control in breakpoints} == {expected_ttl}


def make_conversation(gateway: LiveGateway, turns: int) -> list[dict[str, Any]]:
    """Return a conversation with this number of questions."""
    texts = [text for number in range(1, turns) for text in (f"Answer {number}.", f"Question {number}, again?")]
    return gateway.messages(*texts)


def test_turns_beyond_max_turns_are_dropped_in_batches(gateway: LiveGateway) -> None:
    gateway.configure("agents: [{id: ana, max_turns: 8}]\n")
    conversation_messages = make_conversation(gateway, 15)
    first_messages = []
    for turns in range(7, 16):
        messages = gateway.send_message(
            {"messages": conversation_messages[: 2 * turns - 1]}, x_foveate_agent="ana"
        )["messages"]
        questions = [message for message in messages if message["role"] == "user"]
        assert len(questions) <= 8 + 1  # one of them is the placeholder
        first_messages.append(json.dumps(messages[:4]))
        assert ("[left out: " in json.dumps(messages)) is (turns > 8)
        assert conversation_messages[2 * turns - 2]["content"] in json.dumps(messages[-1])

    assert first_messages[2] == first_messages[3] != first_messages[4] == first_messages[5]
    unlimited = gateway.send_message({"messages": conversation_messages}, x_foveate_agent="bob")["messages"]
    assert len(unlimited) == len(conversation_messages)


@pytest.mark.parametrize("end", ["", "/v1", "/v1/"])
def test_an_upstreams_base_url_is_where_requests_go_with_or_without_a_version(
    gateway: LiveGateway, end: str
) -> None:
    gateway.configure(openai=end)
    count_before = len(gateway.sandbox.requests)

    response = gateway.post("/v1/chat/completions", {"model": GPT, "messages": gateway.messages()})

    assert response.status_code == 200, response.text
    assert [request.path for request in gateway.sandbox.requests[count_before:]] == ["/v1/chat/completions"]


def write_notes(gateway: LiveGateway, **texts: str) -> Path:
    """Create a folder of notes, each a file with a heading."""
    folder = gateway.folder / f"notes-{next(gateway.numbers)}"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.org").write_text(f"* {name.capitalize()}\n{text}\n")
    return folder


def injected_text(request: dict[str, Any]) -> str:
    """Return the text injected after the user's message."""
    return json.dumps(request["messages"][-1])


def test_active_projects_are_shown_and_finished_ones_are_not(gateway: LiveGateway) -> None:
    folder = write_notes(
        gateway, beds="Roses.\n* TODO Pump :project:\nMend it.\n* DONE Shed :project:\nIt is built.\n"
    )
    gateway.configure(f"agents: [{{id: ana, sections: {{memory: {{paths: ['{folder}']}}}}}}]\n")

    text = injected_text(gateway.send_message(x_foveate_agent="ana"))
    focused_text = injected_text(gateway.send_message(x_foveate_agent="ana", x_foveate_focus="Shed"))

    assert "Project [TODO]: Pump" in text
    assert "Roses." in text
    assert "Shed" not in text
    assert "It is built." not in text
    assert "It is built." in focused_text


def test_missing_notes_become_a_placeholder_and_empty_notes_are_not_an_error(gateway: LiveGateway) -> None:
    folder = write_notes(gateway)
    gateway.configure(f"agents: [{{id: ana, sections: {{memory: {{paths: ['{folder}']}}}}}}]\n")
    assert "No active projects found." in injected_text(gateway.send_message(x_foveate_agent="ana"))
    assert httpx.get(f"{gateway.url}/health", timeout=60).json()["status"] == "ok"

    gateway.configure(f"agents: [{{id: ana, sections: {{memory: {{paths: ['{folder}/none.org']}}}}}}]\n")
    assert "[Awareness not available]" in injected_text(gateway.send_message(x_foveate_agent="ana"))


def test_notes_are_compared_by_the_configured_embeddings_endpoint(gateway: LiveGateway) -> None:
    beds = {f"bed{number}": f"Row {number} has plants. " * 20 for number in range(8)}
    folder = write_notes(gateway, **beds)
    memory = f"paths: ['{folder}'], limit_tokens: 200"
    with embedding_server(
        lambda text: [1.0, 0.0] if "Row 5" in text or "zebra" in text else [0.0, 1.0]
    ) as server:
        without_endpoint = f"agents: [{{id: ana, sections: {{memory: {{{memory}}}}}}}]\n"
        gateway.configure(without_endpoint)
        messages = [{"role": "user", "content": "Which plants has the zebra?"}]
        before = json.dumps(gateway.send_message({"messages": messages}, x_foveate_agent="ana"))
        endpoint = f"{{url: '{server.url}', model: tiny, key_variable: EMBEDDINGS_KEY, dimensions: 2}}"
        gateway.configure(
            f"agents: [{{id: ana, sections: {{memory: {{{memory}, embeddings: {endpoint}}}}}}}]\n"
        )
        after = json.dumps(gateway.send_message({"messages": messages}, x_foveate_agent="ana"))

    path, key, body = server.requests[0]
    assert (path, key) == ("/v1/embeddings", "Bearer key-of-embeddings")
    assert (body["model"], body["dimensions"]) == ("tiny", 2)
    assert "Row 5 has plants" not in before
    assert "Row 5 has plants" in after


def test_the_newest_lines_of_logs_are_shown(gateway: LiveGateway) -> None:
    log = gateway.folder / "watch.log"
    log.write_text("".join(f"line {number} of the log\n" for number in range(40)))
    gateway.configure(f"agents: [{{id: ana, sections: {{logs: ['{log}']}}}}]\n")

    text = injected_text(gateway.send_message(x_foveate_agent="ana"))

    assert [number for number in range(40) if f"line {number} of" in text] == list(range(20, 40))
    assert "of the log" not in injected_text(gateway.send_message())


def test_breakpoints_are_placed_only_if_the_prompt_cache_is_on(gateway: LiveGateway) -> None:
    gateway.configure()
    assert find_breakpoints(gateway.send_message(CACHEABLE))

    gateway.configure("context_optimization: {prompt_cache: {enabled: false}}\n")
    assert not find_breakpoints(gateway.send_message(CACHEABLE))


def test_breakpoints_are_placed_for_the_agents_that_have_the_prompt_cache_on(gateway: LiveGateway) -> None:
    gateway.configure("agents: [{id: ana, context_optimization: {prompt_cache: false}}]\n")

    assert not find_breakpoints(gateway.send_message(CACHEABLE, x_foveate_agent="ana"))
    assert find_breakpoints(gateway.send_message(CACHEABLE, x_foveate_agent=gateway.new_agent()))


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_breakpoints_have_the_configured_ttl(gateway: LiveGateway, ttl: str) -> None:
    gateway.configure(f"context_optimization: {{prompt_cache: {{ttl: {ttl}}}}}\n")

    breakpoints = find_breakpoints(gateway.send_message(CACHEABLE, x_foveate_agent=gateway.new_agent()))

    assert {cache_control.get("ttl", "5m") for cache_control in breakpoints} == {ttl}


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_tools_have_a_breakpoint_only_if_it_is_enabled(gateway: LiveGateway, enabled: str) -> None:
    gateway.configure(f"context_optimization: {{prompt_cache: {{cache_tools: {enabled}}}}}\n")
    schema = {"type": "object", "properties": {}}
    tools = [{"name": f"t{at}", "description": LONG_TEXT[:4_000], "input_schema": schema} for at in range(5)]
    agent = gateway.new_agent()
    # The system prompt is new each time, so that only a breakpoint on the tools saves anything.
    bodies = [
        gateway.send_message({"tools": tools, "system": gateway.new_words()}, x_foveate_agent=agent)
        for _ in range(4)
    ]

    assert any(find_breakpoints({"tools": body["tools"]}) for body in bodies) is (enabled == "true")


CLIENT_BREAKPOINT: dict[str, Any] = {
    "system": [
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": LONG_TEXT},
    ]
}


@pytest.mark.parametrize(
    "option_text",
    [
        "context_optimization: {prompt_cache: {client_breakpoints: replace}}\n",
        "agents: [{id: ana, context_optimization: {client_breakpoints: replace}}]\n",
    ],
)
def test_breakpoints_of_a_client_are_replaced_only_if_configured(
    gateway: LiveGateway, option_text: str
) -> None:
    gateway.configure()
    unchanged = gateway.send_message(CLIENT_BREAKPOINT, x_foveate_agent="ana")
    gateway.configure(option_text)
    replaced = gateway.send_message(CLIENT_BREAKPOINT, x_foveate_agent="ana")

    assert unchanged["system"][0]["cache_control"]
    assert not replaced["system"][0].get("cache_control")


def test_an_agent_is_recognised_by_its_id_key_or_user_agent(gateway: LiveGateway) -> None:
    key = "fov-of-a-test-with-enough-letters"
    hashed = hash_key(key)
    option_text = "sections: {binding: {language: German}}"
    gateway.configure(
        f"agents:\n- {{id: ana, {option_text}}}\n- {{id: bob, keys: ['{hashed}'], {option_text}}}\n"
        f"- {{id: cem, user_agents: ['cems-client/*'], {option_text}}}\n"
    )

    def is_recognised(**headers: str) -> bool:
        return "Answer in German." in json.dumps(gateway.send_message(None, **headers))

    assert not is_recognised()
    assert is_recognised(x_foveate_agent="ana")
    assert is_recognised(user_agent="cems-client/2.0")
    gateway.configure(
        f"agents:\n- {{id: bob, keys: ['{hashed}'], {option_text}}}\n",
        anthropic=", key_variable: UPSTREAM_KEY",
    )
    assert is_recognised(x_api_key=key, authorization="")
    assert (
        gateway.post("/v1/messages", {"model": CLAUDE}, x_api_key="fov-other", authorization="").status_code
        == 401
    )


def test_an_upstreams_key_is_read_from_its_variable(gateway: LiveGateway) -> None:
    gateway.configure(anthropic=", key_variable: UPSTREAM_KEY")
    gateway.send_message()
    assert gateway.sandbox.requests[-1].headers["x-api-key"] == "sk-key-of-the-upstream"

    gateway.configure()
    gateway.send_message()
    assert gateway.sandbox.requests[-1].headers["x-api-key"] == KEY


@pytest.mark.parametrize(
    ("option_text", "status"),
    [
        ("window_tokens: 300", 400),
        ("window_tokens: 100000", 200),
        ("window_tokens: 300, on_overflow: pass", 200),
        ("window_tokens: 300, on_overflow: make_room", 200),
        ("window_tokens: 300, on_overflow: refuse", 400),
    ],
)
def test_a_request_that_does_not_fit_the_window_is_handled_as_configured(
    gateway: LiveGateway, option_text: str, status: int
) -> None:
    gateway.configure(f"agents: [{{id: ana, {option_text}}}]\n")
    messages = gateway.messages("Yes. " * 300, "one two three " * 30, "Yes. " * 300, "And now?")

    body = {"model": CLAUDE, "max_tokens": 20, "messages": messages}
    response = gateway.post("/v1/messages", body, x_foveate_agent="ana")

    assert response.status_code == status, response.text
    if status == 200:
        is_shorter = len(gateway.last_request()["messages"]) < len(messages)
        assert is_shorter is ("make_room" in option_text)


def inject_sections(gateway: LiveGateway, option_text: str, **headers: str) -> tuple[str, str]:
    """Return the text that these sections add to the system prompt and after the user's message."""
    gateway.configure(f"agents: [{{id: ana, sections: {{{option_text}}}}}]\n")
    request = gateway.send_message(None, x_foveate_agent="ana", **headers)
    return json.dumps(request.get("system", "")), injected_text(request)


def test_the_files_of_a_workspace_are_injected(gateway: LiveGateway) -> None:
    root = gateway.folder / f"root-{gateway.new_agent()}"
    (root / "inner").mkdir(parents=True)
    (root / "SOUL.md").write_text("The soul above.")
    (root / "inner" / "SOUL.md").write_text("The soul below.")
    (root / "STYLE.md").write_text("A style of its own.")

    default, _ = inject_sections(gateway, f"workspace: {{root: '{root}'}}")
    scoped, _ = inject_sections(gateway, f"workspace: {{root: '{root}', scope: inner}}")
    extra, _ = inject_sections(gateway, f"workspace: {{root: '{root}', extras: [STYLE.md]}}")

    assert "The soul above." in default
    assert "A style of its own." not in default
    assert "The soul below." in scoped
    assert "A style of its own." in extra


def test_skills_and_the_binding_are_injected(gateway: LiveGateway) -> None:
    skills = gateway.folder / f"skills-{gateway.new_agent()}"
    skills.mkdir()
    (skills / "water.md").write_text("---\nname: water\ndescription: waters a bed\n---\nHow to.\n")

    assert "Skill water: waters a bed" in inject_sections(gateway, f"skills: '{skills}'")[0]
    assert "Peer: Bob" in inject_sections(gateway, "binding: {peers: [Bob]}")[0]
    assert "Answer in French." in inject_sections(gateway, "binding: {language: French}")[0]
    channels = "binding: {channels: {slack: Be short.}}"
    assert "Be short." in inject_sections(gateway, channels, x_foveate_channel="slack")[0]
    assert "Be short." not in inject_sections(gateway, channels)[0]


def test_notes_are_shown_as_configured(gateway: LiveGateway) -> None:
    folder = write_notes(gateway, **{f"bed{at}": "A line about roses and water. " * 20 for at in range(6)})
    (folder / "hr.org").write_text("* Salaries :hr:\nSecret numbers.\n")
    memory = f"paths: ['{folder}']"

    _, org = inject_sections(gateway, f"memory: {{{memory}}}")
    _, limited = inject_sections(gateway, f"memory: {{{memory}, limit_tokens: 60}}")
    _, markdown = inject_sections(gateway, f"memory: {{{memory}, format: markdown}}")
    _, without_hr = inject_sections(gateway, f"memory: {{{memory}}}, privacy_tags: [hr]")

    assert "* bed1" in org
    assert len(limited) < len(org) / 2
    assert "# bed1" in markdown
    assert "Salaries" in org
    assert "Salaries" not in without_hr


def test_links_out_of_a_folder_of_notes_are_followed_only_if_configured(gateway: LiveGateway) -> None:
    outside = write_notes(gateway, other="Kept elsewhere.")
    folder = write_notes(gateway, bed="Roses.")
    (folder / "link.org").symlink_to(outside / "other.org")

    _, default = inject_sections(gateway, f"memory: {{paths: ['{folder}']}}")
    _, followed = inject_sections(gateway, f"memory: {{paths: ['{folder}'], follow_symlinks: true}}")

    assert "Kept elsewhere." not in default
    assert "Kept elsewhere." in followed


def test_the_time_is_injected_as_configured(gateway: LiveGateway) -> None:
    deadline = datetime.now(UTC) + timedelta(minutes=90)
    folder = write_notes(gateway, due=f"Water.\n** TODO Prune\nDEADLINE: <{deadline:%Y-%m-%d %a %H:%M}>\n")
    memory = f"memory: {{paths: ['{folder}']}}"

    def inject_time(option_text: str) -> str:
        return inject_sections(gateway, f"{memory}, {option_text}")[1]

    assert "Time: 20" in inject_time("time: {}")
    assert "Time: " not in inject_time("time: {enabled: false}")
    assert "+00:00" in inject_time("time: {}")
    assert "(UTC)" in inject_time("time: {format: natural}")
    assert "+05:30" in inject_time("time: {zone: Asia/Kolkata}")
    assert "Prune (" not in inject_time("time: {}").partition("Time: ")[2]
    assert "Prune (" in inject_time("time: {warning_minutes: 120}").partition("Time: ")[2]


def test_the_channel_and_the_budget_are_injected_only_if_configured(gateway: LiveGateway) -> None:
    assert "Sender: U1" in inject_sections(gateway, "channel: true", x_foveate_sender="U1")[1]
    assert "Sender: U1" not in inject_sections(gateway, "channel: false", x_foveate_sender="U1")[1]
    assert "## Context Budget" in inject_sections(gateway, "budget: true")[1]
    assert "## Context Budget" not in inject_sections(gateway, "budget: false")[1]


@pytest.mark.parametrize(
    ("limits", "has_all", "has_some"),
    [
        ("{}", True, True),
        ("{total_tokens: 200}", False, True),
        ("{total_tokens: 200, ladder: drop_low_priority}", False, False),
        ("{total_tokens: 200, overflow_policy: drop_low_priority}", False, False),
        ("{sections: {skills: {max_tokens: 40}}}", False, True),
        ("{total_tokens: 1000, sections: {skills: {share: 0.05}}}", False, True),
        ("{sections: {skills: {enabled: false}}}", False, False),
        ("{total_tokens: 200, sections: {skills: {keep: whole}}}", False, False),
    ],
)
def test_section_limits_are_enforced(gateway: LiveGateway, limits: str, has_all: bool, has_some: bool) -> None:
    skills = gateway.folder / f"skills-{gateway.new_agent()}"
    skills.mkdir()
    for at in range(30):
        (skills / f"skill{at}.md").write_text(f"---\nname: skill{at}\ndescription: does thing {at} well\n---\n")

    text, _ = inject_sections(gateway, f"skills: '{skills}', limits: {limits}")

    shown_skills = sum(f"does thing {at} well" in text for at in range(30))
    assert (shown_skills == 30) is has_all
    assert (shown_skills > 0) is has_some


def test_a_priority_decides_which_section_is_cut(gateway: LiveGateway) -> None:
    folder = gateway.folder / f"root-{gateway.new_agent()}"
    folder.mkdir()
    (folder / "SOUL.md").write_text("soul " * 300)
    (folder / "USER.md").write_text("user " * 300)

    def complete_files(limits: str) -> tuple[bool, bool]:
        text, _ = inject_sections(gateway, f"workspace: {{root: '{folder}'}}, limits: {limits}")
        return text.count("soul ") > 250, text.count("user ") > 250

    assert complete_files("{total_tokens: 600}") == (True, False)
    lower = "{total_tokens: 600, sections: {workspace/SOUL.md: {priority: low}}}"
    assert complete_files(lower) == (False, True)


def test_a_long_log_is_cut_by_the_progressive_ladder(gateway: LiveGateway) -> None:
    log = gateway.folder / "long.log"
    log.write_text("".join(f"entry {number} of a long log\n" for number in range(20)))

    _, whole = inject_sections(gateway, f"logs: ['{log}'], limits: {{ladder: progressive}}")
    _, cut = inject_sections(gateway, f"logs: ['{log}'], limits: {{ladder: progressive, total_tokens: 120}}")

    assert whole.count("of a long log") == 20
    assert cut.count("of a long log") == 5


def test_requests_are_routed_by_model_and_renamed(gateway: LiveGateway) -> None:
    url = gateway.sandbox.url
    gateway.configure(
        "routes: [{models: 'house-*', upstream: mine, model: gpt-4.1-mini}]\n",
        upstreams=f"  mine: {{base_url: '{url}/v1', api: openai}}\n",
    )

    assert gateway.send_chat({"model": "house-1"})["model"] == "gpt-4.1-mini"
    assert gateway.send_chat()["model"] == GPT
    rejected = gateway.post(
        "/v1/messages", {"model": "house-1", "max_tokens": 9, "messages": gateway.messages()}
    )
    assert rejected.status_code == 400
    assert "does not have the anthropic API" in rejected.text


@pytest.mark.parametrize("api", ["anthropic", "both"])
def test_requests_use_the_api_format_of_the_upstream(gateway: LiveGateway, api: str) -> None:
    gateway.configure(
        "routes: [{models: '*', upstream: mine}]\n",
        upstreams=f"  mine: {{base_url: '{gateway.sandbox.url}', api: {api}, provider: anthropic}}\n",
    )

    assert gateway.send_message()
    chat = gateway.post("/v1/chat/completions", {"model": GPT, "messages": gateway.messages()})
    assert chat.status_code == (200 if api == "both" else 400)


@pytest.mark.parametrize(("provider", "has_breakpoint"), [("anthropic", True), ("llama.cpp", False)])
def test_the_provider_of_an_upstream_decides_its_cache_rules(
    gateway: LiveGateway, provider: str, has_breakpoint: bool
) -> None:
    gateway.configure(
        "routes: [{models: '*', upstream: mine}]\n",
        upstreams=f"  mine: {{base_url: '{gateway.sandbox.url}', api: anthropic, provider: {provider}}}\n",
    )

    assert (
        bool(find_breakpoints(gateway.send_message(CACHEABLE, x_foveate_agent=gateway.new_agent())))
        is has_breakpoint
    )


def test_a_deployment_maps_to_its_configured_model(gateway: LiveGateway) -> None:
    body = {"model": "gpt-4.1", "messages": gateway.messages()}
    path = "/openai/deployments/gpt-4.1/chat/completions?api-version=2025-01-01-preview"
    for option_text, model in (("", "gpt-4.1"), (", deployments: {gpt-4.1: gpt-5.1}", "gpt-5.1")):
        gateway.configure(upstreams=f"  azure: {{base_url: '{gateway.sandbox.url}'{option_text}}}\n")
        agent = gateway.new_agent()
        response = gateway.post(
            path, body, api_key=KEY, authorization="", x_api_key="", anthropic_version="", x_foveate_agent=agent
        )
        assert response.status_code == 200, response.text
        (charge,) = gateway.charges(agent)
        assert charge.call.model == model


@pytest.mark.parametrize(
    ("mode", "status", "is_forwarded"), [("hold", 200, False), ("refuse", 400, None), ("pass", 200, True)]
)
def test_message_threads_are_stored_rejected_or_forwarded_as_configured(
    gateway: LiveGateway, mode: str, status: int, is_forwarded: bool | None
) -> None:
    gateway.configure(anthropic=f", threads: {mode}")
    body = {"model": CLAUDE, "max_tokens": 100, "messages": gateway.messages(), "thread": {"type": "create"}}

    response = gateway.post("/v1/messages", body, anthropic_beta=MESSAGE_THREADS_BETA)

    assert response.status_code == status, response.text
    if is_forwarded is not None:
        assert ("thread" in gateway.last_request()) is is_forwarded
