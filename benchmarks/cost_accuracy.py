"""Costs of recorded usage by our prices, compared with genai-prices and with the costs in an agent's log.

Every usage that genai-prices has a price for is parsed and priced by Foveate, for each provider and route that
it lists; so is every call of a session log that contains the agent's own cost. Equal means equal to the last
digit (costs in logs are floats: to a billionth of a dollar). Each difference has a reason, which is checked:
the counts that genai-prices extracts must cost the same by our rules as by its installed tables, so that the
remaining cause is the extraction, or a change of the tables. Differences without a reason count as unexplained.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import genai_prices
from msgspec.structs import replace

from benchmarks.harness import BadData, Cell, Report
from benchmarks.recorded import DATA
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import Price
from foveate.formats.json_text.parse import as_dict
from foveate.formats.response.usage import BillableUnit, read_response_usage, split_usage
from foveate.model import CacheUsage, Format, Usage

USAGES = "priced_usages.json.gz"
LOGS = "sessions/pi"
# genai-prices uses today's prices, whenever the call was made: the script that wrote the data says so.
PEER_PRICES_AT = datetime(2025, 11, 6, 12, tzinfo=UTC).timestamp()
CENT_THOUSANDTH = Decimal("0.00001")
FLOAT_NOISE = Decimal("1e-9")

EQUAL = "equal"
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceComparison:
    """One price of Foveate and of the peer, and why they differ."""

    where: str
    ours: Decimal | None
    theirs: Decimal
    reason: str


FIGURES = (
    "prices",
    "equal_share",
    "equal_or_explained_share",
    "within_a_cent_thousandth_share",
    "unexplained",
    "unknown",
    "dollars",
    "dollars_of_theirs",
    "log_prices",
    "log_equal_share",
    "log_equal_or_explained_share",
    "log_within_a_cent_thousandth_share",
    "log_unexplained",
    "log_unknown",
    "log_dollars",
    "log_dollars_of_theirs",
    "bills",
    "readings_without_a_price_of_theirs",
)


def run(data: Path | None) -> Report:
    """Return the shares of prices that are equal, explained, and neither."""
    folder = data or DATA
    usages, logs = list(_files(folder, ".json", USAGES)), list(_files(folder, ".jsonl", f"{LOGS}/*.jsonl*"))
    if not usages and not logs:
        raise BadData(f"no priced usages ({USAGES}) and no session logs ({LOGS}) in {folder}")
    book = PriceBook()
    usage_rows = [row for path in usages for row in _rows(path)]
    prices = [compared for row in usage_rows for compared in _compare_usage(book, row)]
    logged = [compared for path in logs for compared in _compare_log(book, path)]
    figures = _figures("", prices) if prices else {}
    figures |= _figures("log_", logged) if logged else {}
    unpriced = sum("input_price" not in way for row in usage_rows for way in _ways(row))
    return Report(
        figures=figures
        | ({"bills": len(usage_rows), "readings_without_a_price_of_theirs": unpriced} if usage_rows else {}),
        rows=[*_reasons("bills", prices), *_reasons("logs", logged)],
    )


def _figures(prefix: str, comparisons: list[PriceComparison]) -> dict[str, float]:
    reasons = Counter(compared.reason for compared in comparisons)
    near = sum(
        compared.ours is not None and abs(compared.ours - compared.theirs) < CENT_THOUSANDTH
        for compared in comparisons
    )
    known = [compared for compared in comparisons if compared.ours is not None]
    return {
        f"{prefix}prices": len(comparisons),
        f"{prefix}equal_share": round(reasons[EQUAL] / len(comparisons), 4),
        f"{prefix}equal_or_explained_share": round(1 - reasons[UNEXPLAINED] / len(comparisons), 4),
        f"{prefix}within_a_cent_thousandth_share": round(near / len(comparisons), 4),
        f"{prefix}unexplained": reasons[UNEXPLAINED],
        f"{prefix}unknown": len(comparisons) - len(known),
        f"{prefix}dollars": float(sum(compared.ours or 0 for compared in known)),
        f"{prefix}dollars_of_theirs": float(sum(compared.theirs for compared in known)),
    }


def _reasons(kind: str, comparisons: list[PriceComparison]) -> Iterator[dict[str, Cell]]:
    """Return a row for each reason, with the largest difference and its location."""
    for reason, count in Counter(compared.reason for compared in comparisons).most_common():
        group = [compared for compared in comparisons if compared.reason == reason]
        largest = max(group, key=lambda compared: abs((compared.ours or Decimal(0)) - compared.theirs))
        yield {
            "of": kind,
            "reason": reason,
            "prices": count,
            "most_apart": largest.where,
            "ours": None if largest.ours is None else f"{largest.ours:f}",
            "theirs": f"{largest.theirs:f}",
        }


def _compare_usage(book: PriceBook, row: Mapping[str, Any]) -> Iterator[PriceComparison]:
    """Compare our price of a usage with each price of genai-prices."""
    body = {name: value for name, value in row["body"].items() if name != "file"}
    reply = json.dumps(body).encode()
    for entry in row["extracted"]:
        for way in entry["extractors"]:
            if "input_price" not in way:
                continue
            provider, flavour = str(way["provider_id"]), str(way["api_flavor"])
            usage = read_response_usage(_format(provider, flavour), reply)
            model = str(row.get("model", ""))
            location = f"{model} at {provider} ({flavour})"
            theirs = PeerPrice(
                input=Decimal(way["input_price"]),
                output=Decimal(way["output_price"]),
                total=Decimal(
                    way.get("total_price", Decimal(way["input_price"]) + Decimal(way["output_price"]))
                ),
                counts=entry["usage"],
            )
            if usage is None:
                yield PriceComparison(where=location, ours=None, theirs=theirs.total, reason=UNEXPLAINED)
                continue
            price = book.price(model, usage, provider=provider, at=PEER_PRICES_AT)
            reason = _reason(book, model, provider, usage, price, theirs)
            yield PriceComparison(
                where=location,
                ours=None if price is None else price.dollars,
                theirs=theirs.total,
                reason=reason,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPrice:
    """Price of a usage by genai-prices, and the counts that it extracts."""

    input: Decimal
    output: Decimal
    total: Decimal
    counts: Mapping[str, int]

    def is_equal(self, price: Price | None) -> bool:
        return price is not None and (price.input_dollars, price.output_dollars, price.dollars) == (
            self.input,
            self.output,
            self.total,
        )

    def usage(self) -> Usage:
        """Return the extracted counts as a `Usage`."""
        counts = Counter(self.counts)
        read, written = counts["cache_read_tokens"], counts["cache_write_tokens"]
        long = counts["cache_write_1h_tokens"]
        cache = CacheUsage(
            uncached=counts["input_tokens"] - read - written,
            read=read,
            written_5m=written - long,
            written_1h=long,
        )
        return Usage(
            cache=cache,
            output_tokens=counts["output_tokens"],
            reasoning_tokens=counts["output_reasoning_tokens"],
        )


def _reason(
    book: PriceBook, model: str, provider: str, usage: Usage, price: Price | None, theirs: PeerPrice
) -> str:
    """Return why the prices differ, if that can be shown."""

    def at_our_prices(read: Usage) -> Price | None:
        return book.price(model, read, provider=provider, at=PEER_PRICES_AT)

    if theirs.is_equal(price):
        return EQUAL
    if usage.reported_dollars is not None:  # as a whole
        is_equal = usage.reported_dollars == theirs.total
        return EQUAL if is_equal else "the provider itself says another price than the table"
    if price is None:
        return _unknown_reason(at_our_prices, usage)
    installed = _installed_price(model, provider, theirs)
    if installed is None or installed != _sums(at_our_prices(theirs.usage())):
        return UNEXPLAINED  # the extracted counts have another price by our rules than by theirs
    reasons = [*_find_misread(usage, theirs)]
    standard = at_our_prices(replace(usage, tier=""))
    if standard is not None and standard.dollars != price.dollars:
        reasons.append(f"theirs has the standard price for the tier {usage.tier}")
    if installed != (theirs.input, theirs.output):
        reasons.append("the tables have changed since theirs was made")
    return " and ".join(reasons) or UNEXPLAINED


def _unknown_reason(at_our_prices: Callable[[Usage], Price | None], usage: Usage) -> str:
    if at_our_prices(replace(usage, tier="")) is not None:
        return f"unknown to us: no price at the tier {usage.tier} then"
    if at_our_prices(replace(usage, raw=b"")) is not None:
        return "unknown to us: web searches, which have no price at this provider"
    return "unknown to us: the table names the model without a price (theirs: zero)"


def _find_misread(usage: Usage, theirs: PeerPrice) -> Iterator[str]:
    """Return what their extraction omits from a usage."""
    counts = Counter(theirs.counts)
    cache = usage.cache
    calls = split_usage(usage)
    if len(calls) > 1:
        yield "theirs leaves out the calls within the call (compaction, advisor)"
        return
    if counts["output_tokens"] == 0 < usage.output_tokens:
        yield "theirs reads a chat as an embedding, without its completion"
    elif counts["output_tokens"] < usage.output_tokens:
        yield "theirs leaves out reasoning that only the total holds"
    if counts["cache_read_tokens"] < cache.read:
        yield "theirs leaves out what the cache served"
    if counts["cache_write_tokens"] < cache.written_5m + cache.written_1h:
        yield "theirs leaves out what the cache kept"
    if counts["web_searches"] < dict(calls[0].units).get(BillableUnit.WEB_SEARCHES, 0):
        yield "theirs leaves out web searches"
    if calls[0].region == "us":
        yield "theirs leaves out what one region costs more"


def _installed_price(model: str, provider: str, theirs: PeerPrice) -> tuple[Decimal, Decimal] | None:
    """Return the price of their counts by the tables now installed; None if there is none."""
    moment = datetime.fromtimestamp(PEER_PRICES_AT, UTC)
    usage = genai_prices.Usage(**theirs.counts)
    try:
        found = genai_prices.calc_price(usage, model, provider_id=provider, genai_request_timestamp=moment)
    except (LookupError, ValueError):
        return None
    return found.input_price, found.output_price


def _sums(price: Price | None) -> tuple[Decimal, Decimal] | None:
    return None if price is None else (price.input_dollars, price.output_dollars)


def _compare_log(book: PriceBook, path: Path) -> Iterator[PriceComparison]:
    """Compare our price of each call in a pi log with the logged one."""
    for line in _lines(path):
        message = as_dict(line.get("message"))
        usage = as_dict(message.get("usage"))
        if "cost" not in usage:
            continue
        try:
            cache = CacheUsage(uncached=usage["input"], read=usage["cacheRead"], written_5m=usage["cacheWrite"])
            reported = Usage(cache=cache, output_tokens=usage["output"])
            model, provider, at = message["model"], message["provider"], message["timestamp"] / 1000
            theirs = Decimal(str(usage["cost"]["total"]))
        except (KeyError, TypeError, ArithmeticError) as error:
            raise BadData(f"{path}: a call whose usage or cost cannot be read: {error!r}") from error
        ours = book.price(model, reported, provider=provider, at=at)
        yield PriceComparison(
            where=f"{model} at {provider}",
            ours=None if ours is None else ours.dollars,
            theirs=theirs,
            reason=_logged_reason(book, model, provider, at, reported, theirs),
        )


def _logged_reason(
    book: PriceBook, model: str, provider: str, at: float, reported: Usage, theirs: Decimal
) -> str:
    ours = book.price(model, reported, provider=provider, at=at)
    if ours is None:
        return "unknown to us"
    if abs(ours.dollars - theirs) < FLOAT_NOISE:
        return EQUAL
    one_by_one = Decimal(0)
    for usage, count in _one_of_each(reported):
        price_row = book.price(model, usage, provider=provider, at=at)
        one_by_one += price_row.dollars * count if price_row else 0
    if abs(one_by_one - theirs) < FLOAT_NOISE:
        return "theirs leaves out what a long input costs more"
    return UNEXPLAINED


def _one_of_each(reported: Usage) -> Iterator[tuple[Usage, int]]:
    """Return a usage of one token of each kind, and the reported number of each."""
    cache = reported.cache
    yield Usage(cache=CacheUsage(uncached=1)), cache.uncached
    yield Usage(cache=CacheUsage(read=1)), cache.read
    yield Usage(cache=CacheUsage(written_5m=1)), cache.written_5m
    yield Usage(cache=CacheUsage(), output_tokens=1), reported.output_tokens


def _format(provider: str, flavour: str) -> Format:
    """Return the API format of a genai-prices route."""
    match provider, flavour:
        case ("anthropic" | "minimax", "default") | (_, "anthropic"):
            return Format.ANTHROPIC
        case (_, "responses"):
            return Format.RESPONSES
        case ("google", "default"):
            return Format.GEMINI
        case ("aws", "default"):
            return Format.BEDROCK
    return Format.CHAT


def _ways(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (way for entry in row["extracted"] for way in entry["extractors"])


def _files(path: Path, ending: str, pattern: str) -> Iterable[Path]:
    if path.is_dir():
        return sorted(path.glob(pattern))
    return [path] if path.name.removesuffix(".gz").endswith(ending) else []


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadData(f"{path}: {error}") from error


def _rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        rows = json.loads(_text(path))
    except ValueError as error:
        raise BadData(f"{path}: not JSON: {error}") from error
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and row.keys() >= {"body", "extracted"} for row in rows
    ):
        raise BadData(f"{path}: not a list of priced usages ('body' and 'extracted')")
    return rows


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError as error:
            raise BadData(f"{path}:{number}: not JSON: {error}") from error
        if isinstance(found, dict):
            yield found
