"""Load times of the gateway's pages in Chromium with a month of data, and the delay they cause to agents.

The store has 10,000 sessions with 1,000,000 rows in its ledger and 500,000 traces, in SQLite. A real
`foveate serve` shows it. Each page is opened 20 times in one tab of a browser that has cached the static files:

- `first_byte`: from the start of the navigation to the first byte of the page
- `load`: to the end of the browser's load event; charts are drawn by then
- `painted`: to the second frame after that, when everything is on the screen
- `first_visit`: the load in a new tab of a browser with an empty cache

Then small requests are sent sequentially, with 10 ms between a response and the next request, in turns without
an open page and with a page that follows them. Browser, gateway and provider share the machine's cores.
"""

import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, BrowserContext, Page

from benchmarks.gateway_processes import Server, cpu_seconds, foveate, upstream
from benchmarks.gateway_rounds import LoadCase, LoadGenerator, load_generator, print_progress
from benchmarks.harness import BadData, Cell, Report
from benchmarks.web_data import fill_store
from tests.support.clients.browser import BrowserUnavailable, running_browser

SESSIONS, ROWS, LOADS = 10_000, 1_000_000, 20
QUICK_SESSIONS, QUICK_ROWS, QUICK_LOADS = 500, 20_000, 4
LOAD_AIM_MS = 300.0
_FIRST_VISITS, _QUICK_FIRST_VISITS = 5, 1
_ROUNDS, _QUICK_ROUNDS = 3, 1
SMALL = LoadCase(kind="small", connections=1, seconds=4.0, pause_seconds=0.01)
# Two frames after the load event, everything is on the screen.
_PAINT_SCRIPT = """
addEventListener("load", () =>
  requestAnimationFrame(() => requestAnimationFrame(() => { window.paintedMs = performance.now(); })));
"""
_TIMING_SCRIPT = """
() => {
  const [at] = performance.getEntriesByType("navigation");
  return {
    first_byte: at.responseStart, load: at.loadEventEnd, painted: window.paintedMs, bytes: at.decodedBodySize,
    charts: document.querySelectorAll("canvas").length,
    drawn: document.querySelectorAll("canvas[data-drawn]").length,
  };
}
"""
_PAINTED_SCRIPT = "() => window.paintedMs > 0 && performance.getEntriesByType('navigation')[0].loadEventEnd > 0"


FIGURES = (
    "<page>_load_p50_ms",
    "slowest_load_p50_ms",
    "slowest_load_p95_ms",
    "load_aim_p50_ms",
    "is_aim_met",
    "request_p50_added_by_a_page_ms",
    "sessions",
    "ledger_rows",
    "load_before",
    "cores",
)


def run(data: Path | None, *, quick: bool = False) -> Report:
    """Load every page in turns, then send requests with an idle and an open page.

    `data` is an existing store to show instead of a generated one.
    """
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foveate-bench-")))
        store = folder / "filled.sqlite"
        if data is None:
            _fill(store, *((QUICK_SESSIONS, QUICK_ROWS) if quick else (SESSIONS, ROWS)))
        else:
            shutil.copy(data, store)
        try:
            browser = stack.enter_context(running_browser())
        except BrowserUnavailable as reason:
            raise BadData(str(reason)) from None
        provider = stack.enter_context(upstream(folder))
        server = stack.enter_context(
            foveate(folder, provider.port, is_default=True, more=_configuration(store))
        )
        pages, sizes = _pages(store)
        page_times = _time_loads(browser, server, pages, QUICK_LOADS if quick else LOADS)
        first = {
            name: _first_visit(browser, server, path, _QUICK_FIRST_VISITS if quick else _FIRST_VISITS)
            for name, path in pages.items()
        }
        loaded = [_row(name, page_times[name], first[name]) for name in pages]
        load = stack.enter_context(load_generator(folder))
        request_rows = _request_times_with_page(
            browser, server, load, pages, _QUICK_ROUNDS if quick else _ROUNDS, quick=quick
        )
    slowest = {share: max(float(row[f"load_{share}_ms"] or 0) for row in loaded) for share in ("p50", "p95")}
    return Report(
        figures={
            **{f"{row['page']}_load_p50_ms": float(row["load_p50_ms"] or 0) for row in loaded},
            "slowest_load_p50_ms": slowest["p50"],
            "slowest_load_p95_ms": slowest["p95"],
            "load_aim_p50_ms": LOAD_AIM_MS,
            "is_aim_met": float(slowest["p50"] < LOAD_AIM_MS),
            "request_p50_added_by_a_page_ms": _added_p50_ms(request_rows),
            **sizes,
            "load_before": round(load_before, 2),
            "cores": os.cpu_count() or 0,
        },
        rows=loaded,
        tables={"a small request, while somebody looks": request_rows},
    )


def _configuration(store: Path) -> str:
    return f"store: {{url: 'sqlite:///{store}'}}\n"


def _fill(store: Path, sessions: int, rows: int) -> None:
    print_progress(f"filling a store with {sessions:,} sessions and {rows:,} rows, which takes minutes")
    started = time.monotonic()
    fill_store(f"sqlite:///{store}", sessions, rows)
    print_progress(f"that took {time.monotonic() - started:.0f} s; it has {store.stat().st_size / 1e6:,.0f} MB")


def _pages(store: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Return each page by name, with the longest session and a typical one; and the size of the store."""
    with closing(sqlite3.connect(store)) as connection:
        by_length = connection.execute(
            "SELECT session_id FROM traces_v1 GROUP BY session_id ORDER BY count(*) DESC"
        ).fetchall()
        ((agent,),) = connection.execute(
            "SELECT agent FROM sessions_v1 GROUP BY agent ORDER BY count(*) LIMIT 1"
        )
        ((sessions,),) = connection.execute("SELECT count(*) FROM sessions_v1")
        ((rows,),) = connection.execute("SELECT count(*) FROM ledger_v1")
    (longest_session,), (median_session,) = by_length[0], by_length[len(by_length) // 2]
    pages = {
        "overview": "/",
        "sessions": "/-/sessions",
        "sessions_dearest": "/-/sessions?order=dearest",
        "sessions_of_an_agent": f"/-/sessions?agent={quote(str(agent))}",
        "session_longest": f"/-/sessions/{longest_session}",
        "session_usual": f"/-/sessions/{median_session}",
        "agents": "/-/agents",
        "memory": "/-/memory",
        "configuration": "/-/configuration",
    }
    return pages, {"sessions": sessions, "ledger_rows": rows}


def _time_loads(
    browser: Browser, server: Server, pages: Mapping[str, str], count: int
) -> dict[str, list[Mapping[str, float]]]:
    """Return the time of each load of each page; the first of each is a warm-up."""
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in pages}
    context = _context(browser, server)
    page = context.new_page()
    for turn in range(count + 1):
        for name, path in pages.items():
            took = _load(page, path)
            if turn:
                found[name].append(took)
    context.close()
    return found


def _first_visit(browser: Browser, server: Server, path: str, count: int) -> float:
    """Return the median load time in a browser with an empty cache."""
    took = []
    for _ in range(count):
        context = _context(browser, server)
        took.append(_load(context.new_page(), path)["load"])
        context.close()
    return statistics.median(took)


def _context(browser: Browser, server: Server) -> BrowserContext:
    context = browser.new_context(base_url=f"http://127.0.0.1:{server.port}")
    context.add_init_script(_PAINT_SCRIPT)
    return context


def _load(page: Page, path: str) -> Mapping[str, float]:
    response = page.goto(path)
    if response is None or response.status != 200:
        raise BadData(f"{path} is answered with {response.status if response else 'nothing'}")
    page.wait_for_function(_PAINTED_SCRIPT)
    took: Mapping[str, float] = page.evaluate(_TIMING_SCRIPT)
    if took["charts"] != took["drawn"]:
        raise BadData(f"{path}: {took['charts'] - took['drawn']} of {took['charts']} charts were not drawn")
    return took


def _row(name: str, took: Sequence[Mapping[str, float]], first_visit_ms: float) -> dict[str, Cell]:
    row: dict[str, Cell] = {"page": name}
    for what in ("first_byte", "load", "painted"):
        for share in (50, 95):
            row[f"{what}_p{share}_ms"] = round(_percentile([times[what] for times in took], share), 1)
    print_progress(f"{name}: {row['load_p50_ms']} ms")
    return row | {
        "first_visit_p50_ms": round(first_visit_ms, 1),
        "html_kb": round(took[-1]["bytes"] / 1e3, 1),
        "charts": int(took[-1]["charts"]),
        "loads": len(took),
    }


def _request_times_with_page(
    browser: Browser, server: Server, load: LoadGenerator, pages: Mapping[str, str], rounds: int, *, quick: bool
) -> list[dict[str, Cell]]:
    """Measure a small request without an open page, and with a page that follows it."""
    looked = {"nobody looks": None, "overview": pages["overview"], "sessions": pages["sessions"]}
    answer_ms: dict[str, list[float]] = {name: [] for name in looked}
    cpu: dict[str, list[float]] = {name: [] for name in looked}
    seconds = SMALL.seconds / 4 if quick else SMALL.seconds
    load.measure(server, SMALL, seconds=seconds / 2)
    for _ in range(rounds):
        for name, path in looked.items():
            with _open_page(browser, server, path):
                before, started = cpu_seconds(server.pid), time.monotonic()
                answer_ms[name] += load.measure(server, SMALL, seconds=seconds).answer_ms
                cpu[name].append((cpu_seconds(server.pid) - before) / (time.monotonic() - started))
    return [
        {
            "while": name,
            **{f"p{share}_ms": round(_percentile(took, share), 3) for share in (50, 95, 99)},
            "gateway_cores": round(statistics.fmean(cpu[name]), 3),
            "requests": len(took),
        }
        for name, took in answer_ms.items()
    ]


@contextmanager
def _open_page(browser: Browser, server: Server, path: str | None) -> Iterator[None]:
    """Open a page with live updates until the end of the block; none without a path."""
    if path is None:
        yield
        return
    context = _context(browser, server)
    page = context.new_page()
    page.goto(path)
    page.wait_for_selector("#live[data-state=live]")
    yield
    context.close()


def _added_p50_ms(rows: Sequence[Mapping[str, Cell]]) -> float:
    """Return how much longer a median request takes with the overview open."""
    p50_by_state = {row["while"]: float(row["p50_ms"] or 0) for row in rows}
    return round(p50_by_state["overview"] - p50_by_state["nobody looks"], 3)


def _percentile(values: Sequence[float], share: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share / 100 * (len(ordered) - 1)))]
