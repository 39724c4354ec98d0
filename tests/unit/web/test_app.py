"""The frame around pages: what is shown where one cannot be, and the files beside them."""

import asyncio
import gzip
import os
from pathlib import Path

import pytest

from foveate.gateway.observability.health import HealthStatus
from foveate.web.app import asset_url, load_assets
from tests.support.clients.dashboard import looking


class Broken(HealthStatus):
    """How a gateway is, of which reading it is a fault."""

    @property
    def is_healthy(self) -> bool:
        raise ZeroDivisionError("hush")


async def test_a_fault_of_ours_is_told_in_its_frame_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with looking(tmp_path, vitals=Broken(version="1")) as at:
        text = await at.text("/", 500)

        assert "This is a fault of Foveate's own, and the gateway's log has it." in text
        assert "hush" not in text
        assert "/ could not be shown" in caplog.text
        assert await at.page("/-/sessions")


async def test_a_page_whose_store_is_away_says_so_and_follows_until_it_is_back(tmp_path: Path) -> None:
    async with looking(tmp_path) as at:
        await at.store.close()
        page = await at.page("/-/sessions", 503)

        assert "The store is away" in page
        assert 'data-events="/-/events?since=' in page


async def test_a_page_is_told_apart_from_the_one_after_a_change(tmp_path: Path) -> None:
    async with looking(tmp_path) as at:
        before = _pulse(await at.page("/-/sessions"))
        assert before == _pulse(await at.page("/-/configuration"))

        at.file.write_text("server: {port: 9000}\n")
        os.utime(at.file, ns=(1, 1))
        assert before != _pulse(await at.page("/-/sessions"))


async def test_who_asks_only_for_the_head_of_what_has_no_end_gets_it(tmp_path: Path) -> None:
    async with looking(tmp_path) as at, asyncio.timeout(10):
        answer = await at.client.head("/-/events")

        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_file_may_be_kept_for_ever_only_under_the_address_that_names_this_very_one(
    tmp_path: Path,
) -> None:
    async with looking(tmp_path) as at:
        for name, asset in load_assets().items():
            named = await at.client.get(asset_url(name), headers={"accept-encoding": "gzip"})
            assert named.content == asset.plain
            assert named.headers["content-encoding"] == "gzip"
            assert gzip.decompress(asset.compressed) == asset.plain
            assert "immutable" in named.headers["cache-control"]

            plain = await at.client.get(f"/-/assets/{name}", headers={"accept-encoding": "identity"})
            assert plain.content == asset.plain
            assert plain.headers["cache-control"] == "no-cache"
            held = {"if-none-match": plain.headers["etag"]}
            assert (await at.client.get(f"/-/assets/{name}", headers=held)).status_code == 304


async def test_only_a_page_with_a_chart_loads_what_draws_it(tmp_path: Path) -> None:
    async with looking(tmp_path) as at:
        for path in ("/", "/-/sessions", "/-/configuration"):
            page = await at.page(path)
            assert (asset_url("chart.js") in page) == ('<figure class="chart"' in page)


def _pulse(page: str) -> str:
    return page.partition("?since=")[2][:16]
