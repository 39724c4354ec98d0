"""The layout of pages, error pages and static files."""

import asyncio
import gzip
import os
import re
from importlib import resources
from pathlib import Path

import pytest

from foveate.gateway.observability.health import HealthStatus
from foveate.web.app import asset_url, load_assets
from tests.support.clients.dashboard import open_dashboard


class BrokenStatus(HealthStatus):
    """A health status that fails when it is read."""

    @property
    def is_healthy(self) -> bool:
        raise ZeroDivisionError("hush")


async def test_an_internal_error_is_shown_as_a_page_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_dashboard(tmp_path, health_status=BrokenStatus(version="1")) as dashboard:
        text = await dashboard.text("/", 500)

        assert "Foveate failed to render this page. See the gateway's log for details." in text
        assert "hush" not in text
        assert "dashboard page / failed" in caplog.text
        assert await dashboard.page("/-/sessions")


async def test_a_page_reports_an_unavailable_store_and_recovers(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        await dashboard.store.close()
        page = await dashboard.page("/-/sessions", 503)

        assert "Store unavailable" in page
        assert 'data-events="/-/events?since=' in page


async def test_a_pages_digest_changes_with_its_content(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        before = _page_digest(await dashboard.page("/-/sessions"))
        assert before == _page_digest(await dashboard.page("/-/configuration"))

        dashboard.file.write_text("server: {port: 9000}\n")
        os.utime(dashboard.file, ns=(1, 1))
        assert before != _page_digest(await dashboard.page("/-/sessions"))


async def test_a_head_request_for_events_ends(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard, asyncio.timeout(10):
        response = await dashboard.client.head("/-/events")

        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")


async def test_a_static_file_is_cached_forever_only_with_its_digest(
    tmp_path: Path,
) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        for name, asset in load_assets().items():
            compressed = await dashboard.client.get(asset_url(name), headers={"accept-encoding": "gzip"})
            assert compressed.content == asset.plain
            assert compressed.headers["content-encoding"] == "gzip"
            assert gzip.decompress(asset.compressed) == asset.plain
            assert "immutable" in compressed.headers["cache-control"]

            plain = await dashboard.client.get(f"/-/assets/{name}", headers={"accept-encoding": "identity"})
            assert plain.content == asset.plain
            assert plain.headers["cache-control"] == "no-cache"
            conditions = {"if-none-match": plain.headers["etag"]}
            assert (await dashboard.client.get(f"/-/assets/{name}", headers=conditions)).status_code == 304


def test_the_chart_library_states_its_version_and_its_licence_is_next_to_it() -> None:
    header = re.match(rb"/\*!\n \* Chart\.js v([\d.]+)\n", load_assets()["chart.js"].plain)
    licence = resources.files("foveate.web").joinpath("files", "chart.LICENSE.txt").read_text("utf-8")

    assert header
    assert f"Chart.js {header[1].decode()} " in licence
    assert "Copyright (c) 2014-2024 Chart.js Contributors" in licence
    assert "Copyright (c) 2018-2024 Jukka Kurkela" in licence  # @kurkle/color, which is part of the file
    assert licence.count("Permission is hereby granted") == 2


async def test_only_pages_with_a_chart_load_the_chart_library(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        for path in ("/", "/-/sessions", "/-/configuration"):
            page = await dashboard.page(path)
            assert (asset_url("chart.js") in page) == ('<figure class="chart"' in page)


def _page_digest(page: str) -> str:
    return page.partition("?since=")[2][:16]
