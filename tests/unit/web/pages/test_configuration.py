"""The configuration page."""

import os
from pathlib import Path

import pytest

from tests.support.clients.dashboard import open_dashboard

PATH = "/-/configuration"
SECRET_KEY = "fov-hush"


def replace_file(file: Path, text: str) -> None:
    """Replace a file so that the change is noticed at once."""
    new_file = file.with_suffix(".new")
    new_file.write_text(text)
    new_file.replace(file)
    os.utime(file)


async def test_changed_settings_come_first_with_their_line(
    tmp_path: Path,
) -> None:
    async with open_dashboard(tmp_path, "server:\n  port: 9000\n  log: lines\n") as dashboard:
        text = await dashboard.text(f"{PATH}?which=all")

        assert text.index("server.port 9000 8090 line 2") < text.index("context_optimization")
        assert "server.log lines same line 3" in text
        assert "1 of them changed from the default" in text
        assert f"File {dashboard.file}" in text


async def test_by_default_changed_settings_are_shown_or_all_if_none_is_changed(
    tmp_path: Path,
) -> None:
    async with open_dashboard(tmp_path, "server: {log: json}") as dashboard:
        assert "server.log json" in await dashboard.text(PATH)
        assert "server.host" not in await dashboard.text(PATH)
        assert "server.host" in await dashboard.text(f"{PATH}?find=host")
        replace_file(dashboard.file, "server: {log: lines}")
        assert "server.host 127.0.0.1 same default" in await dashboard.text(PATH)


async def test_settings_are_found_by_words_in_their_name_value_or_origin(tmp_path: Path) -> None:
    async with open_dashboard(
        tmp_path, "server: {port: 9000}\nagents: [{id: ana, window_tokens: 777}]\n"
    ) as dashboard:
        text = await dashboard.text(f"{PATH}?find=SERVER+9000")
        assert "1 setting" in text
        assert "server.host" not in text

        assert "agents.0.window_tokens (ana) 777" in await dashboard.text(f"{PATH}?find=ana+tokens")
        assert "No setting has “<b>”" in await dashboard.text(f"{PATH}?find=<b>")


async def test_settings_can_be_filtered_by_change_and_file(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, "server: {port: 9000, log: lines}") as dashboard:
        assert "1 setting." in await dashboard.text(f"{PATH}?which=changed")
        assert "2 settings." in await dashboard.text(f"{PATH}?which=file")
        assert "which must be one of all, changed, file" in await dashboard.text(f"{PATH}?which=some", 400)


async def test_an_invalid_file_is_reported_and_the_previous_settings_stay(
    tmp_path: Path,
) -> None:
    async with open_dashboard(tmp_path, "server: {port: 9000}") as dashboard:
        replace_file(dashboard.file, f"server:\n  prot: 3\nagents:\n  - {{id: ana, keys: [{SECRET_KEY}]}}\n")
        text = await dashboard.text(PATH)

        assert "The file is invalid." in text
        assert f"{dashboard.file}:2 : server.prot : unknown setting 'prot'; did you mean port?" in text
        assert f"{dashboard.file}:4 : agents.0.keys.0 : " in text
        assert SECRET_KEY not in text
        assert "server.port 9000 8090" in text


async def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, "server: {port: 9000}") as dashboard:
        dashboard.file.unlink()

        assert "The file is invalid." in await dashboard.text(PATH)


async def test_a_setting_that_waits_for_a_restart_shows_the_current_value(tmp_path: Path) -> None:
    async with open_dashboard(
        tmp_path, "store: {url: 'postgresql://a:hush@db/x'}\nserver: {port: 9000}"
    ) as dashboard:
        assert "Restart required" not in await dashboard.text(PATH)
        replace_file(dashboard.file, "server: {port: 9001, log: json}")
        text = await dashboard.text(PATH)

        assert "Restart required: server.port , store.url changed in the file" in text
        assert "server.port 9001 takes effect after a restart; currently 9000" in text
        assert "currently postgresql://a@db/x" in text
        assert "hush" not in text
        assert "Reloads since the start 1" in text


async def test_no_key_or_password_is_shown(tmp_path: Path) -> None:
    config = (
        f"agents: [{{id: ana, keys: ['{'a1' * 32}']}}]\n"
        "upstreams: {own: {base_url: 'http://me:hush@host/v1', api: openai, key_variable: OWN_KEY}}\n"
    )
    async with open_dashboard(
        tmp_path,
        config,
        OWN_KEY="sk-hush",
        OPENAI_API_KEY="sk-hush",
        FOVEATE_STORE="postgresql://a:hush@db/x",
    ) as dashboard:
        page = await dashboard.page(PATH)

        assert "hush" not in page
        assert "a1" * 32 not in page
        assert "upstreams.own.key set - OWN_KEY" in await dashboard.text(PATH)
        assert "store.url postgresql://a@db/x - FOVEATE_STORE" in await dashboard.text(PATH)


async def test_an_empty_file_leaves_all_defaults(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        text = await dashboard.text(PATH)

        assert "0 of them changed from the default" in text
        assert "In effect since" in text


async def test_a_page_number_beyond_the_end_shows_the_last_page(
    tmp_path: Path,
) -> None:
    agents = "".join(f"  - {{id: agent-{number}, window_tokens: 5}}\n" for number in range(120))
    async with open_dashboard(tmp_path, f"agents:\n{agents}") as dashboard:
        first, last = (
            await dashboard.page(f"{PATH}?which=all"),
            await dashboard.page(f"{PATH}?page=900&find=agents"),
        )

        assert 'rel="next"' in first
        assert 'rel="prev"' not in first
        assert 'href="?which=all&amp;page=2"' in first
        assert 'rel="next"' not in last
        assert "find=agents" in last[last.index('<nav class="pages"') :]
        assert len(first) < 200_000
        assert len(first.split("<tr>")) == 102


@pytest.mark.parametrize("query", ["page=0", "page=x", "page=-1", "page=1e9"])
async def test_an_invalid_page_number_is_rejected(tmp_path: Path, query: str) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        assert "a whole number from 1" in await dashboard.text(f"{PATH}?{query}", 400)


async def test_values_are_escaped(tmp_path: Path) -> None:
    agent = "<script>alert(1)</script>{{7*7}}"
    async with open_dashboard(tmp_path, f"agents: [{{id: '{agent}', window_tokens: 5}}]") as dashboard:
        page = await dashboard.page(f"{PATH}?find=agents")

        assert "<script>alert" not in page
        assert agent in await dashboard.text(f"{PATH}?find=agents")
