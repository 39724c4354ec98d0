"""`foveate prices`: show the price of a model and its source, and read newer price files."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import ConfigFile, find_config_file
from foveate.cli.shared.tables import Column, Fit, format_table, wrap_text
from foveate.cli.store import AsJson
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.cost.pricing.price_book import PriceBook, PriceDifference
    from foveate.cost.pricing.price_file import ImportedPrices
    from foveate.cost.pricing.rates import Rates, TokenKind

app = typer.Typer(
    name="prices",
    help="Show the prices of a model and their sources, and import newer price files.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# JSON has all differences; text lists this many.
_MAX_LINES = 20
_SERVICE_TIERS = ("batch", "flex", "priority", "fast", "ultrafast")
_DIFFERENCE_COLUMNS = (
    Column(heading="change"),
    Column(heading="provider"),
    Column(heading="model", fit=Fit.SHORTEN),
    Column(heading="dollars per million tokens", fit=Fit.WRAP),
    Column(heading="before", fit=Fit.WRAP, optional=True),
)


@app.command("show")
def show(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model name, as clients send it, e.g. claude-fable-5-2.")
    ],
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="Provider of the model, e.g. anthropic. Default: derived from the model name.",
        ),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the prices, context window and cache rules of a model, with their sources.

    Example: foveate prices show claude-fable-5-2
    """
    with report_errors(as_json=json):
        if not model.strip():
            raise BadOption("MODEL must not be empty")
        from foveate.cost.pricing.price_facts import normalize_provider

        host = normalize_provider(provider or _likely_provider(model))
        found = _model_object(model, host, _load_price_book(config), at=time())
        if json:
            console.print_object(found)
        else:
            console.print_lines(_model_lines(found, console.display_for(sys.stdout)))


@app.command("update")
def update(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Price file: data.json from github.com/pydantic/genai-prices, or "
            "model_prices_and_context_window.json from github.com/BerriAI/litellm.",
        ),
    ],
    day: Annotated[
        str | None,
        typer.Option(
            "--date",
            metavar="DATE",
            help="Date of the prices (2026-11-01). Default: the day the file was last modified (UTC).",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Import a newer price file. A running gateway uses it starting with the next request.

    Example: foveate prices update data.json --date 2026-11-16
    """
    with report_errors(as_json=json):
        from foveate.config.files import display_path, read_bytes
        from foveate.config.price_file import default_price_file, write_price_file
        from foveate.cost.pricing.price_book import PriceBook, find_differences
        from foveate.cost.pricing.price_file import MAX_FILE_BYTES, read_price_file

        now, price_store = time(), default_price_file(os.environ)
        data = read_bytes(file, limit_bytes=MAX_FILE_BYTES)
        price_update = read_price_file(data, day=_parse_day(day, file, now), source=display_path(file))
        changes = find_differences(PriceBook(load_imported=price_store.current_prices), price_update, at=now)
        write_price_file(price_store, price_update)
        if json:
            console.print_object(_update_object(price_update, changes, price_store.path))
        else:
            display = console.display_for(sys.stdout)
            console.print_lines(_update_lines(price_update, changes, price_store.path, display))


def _load_price_book(config: Path | None) -> "PriceBook":
    from foveate.config.cost_settings import load_cost
    from foveate.config.price_file import default_price_file
    from foveate.cost.pricing.price_book import PriceBook

    path = find_config_file(config)
    return PriceBook(
        load_cost(path).prices if path is not None else (),
        load_imported=default_price_file(os.environ).current_prices,
    )


def _likely_provider(model: str) -> str:
    from foveate.prompt_cache.rules import rules_for

    return rules_for(model).provider


def _parse_day(text: str | None, file: Path, now: float) -> date:
    today = datetime.fromtimestamp(now, UTC).date()
    if text is None:
        return min(today, datetime.fromtimestamp(file.stat().st_mtime, UTC).date())
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise BadOption(f"--date takes a date, e.g. 2026-11-01, not {text!r:.40}") from None
    if day > today:
        raise BadOption(f"--date {day} is in the future")
    return day


def _model_object(model: str, provider: str, book: "PriceBook", *, at: float) -> dict[str, object]:
    from foveate.budget.model_limits import find_context_window, find_output_limit
    from foveate.prompt_cache.rules import rules_for

    window, max_output, rules = (
        find_context_window(model),
        find_output_limit(model),
        rules_for(model, provider or None),
    )
    return {
        "model": model,
        "provider": provider,
        "price": _price_object(book, model, provider, at),
        "window": window
        and {
            "tokens": window.tokens,
            "inherited": window.inherited,
            "source": window.source,
            "as_of": window.as_of,
        },
        "longest_answer": max_output
        and {"tokens": max_output.tokens, "source": max_output.source, "as_of": max_output.as_of},
        "cache": {
            "minimum_tokens": rules.minimum_tokens,
            "read_price": rules.read_price,
            "write_prices": {str(ttl): price for ttl, price in rules.write_prices.items()},
            "binds_thinking": rules.binds_thinking,
            "inherited": rules.inherited,
            "source": rules.source,
            "as_of": rules.as_of,
        },
    }


def _price_object(book: "PriceBook", model: str, provider: str, at: float) -> dict[str, object] | None:
    rates = book.rates(model, provider=provider, at=at)
    if rates is None:
        return None
    tiers = {tier: book.rates(model, provider=provider, at=at, tier=tier) for tier in _SERVICE_TIERS}
    return {
        "source": rates.source.value,
        "origin": rates.origin,
        "inherited": bool(rates.inherited_from),
        "family": rates.inherited_from or None,
        "sure": not rates.assumed,
        **_rates_object(rates),
        "service_tiers": {tier: _rates_object(found) for tier, found in tiers.items() if found is not None},
    }


def _rates_object(rates: "Rates") -> dict[str, object]:
    from foveate.cost.pricing.price_book import dollars_per_million

    sizes = sorted({step.over_tokens for rate in rates.by_kind.values() for step in rate.tiers})
    return {
        "dollars_per_million": _by_setting_name(dollars_per_million(rates)),
        "tiers": [
            {"over_tokens": size, "dollars_per_million": _by_setting_name(dollars_per_million(rates, size + 1))}
            for size in sizes
        ],
    }


def _by_setting_name(dollars: "Mapping[TokenKind, Decimal]") -> dict[str, str]:
    from foveate.config.cost_settings import TOKEN_KIND_BY_KEY

    names = {kind: name for name, kind in TOKEN_KIND_BY_KEY.items()}
    return {names[kind]: f"{amount:f}" for kind, amount in dollars.items()}


def _model_lines(found: Mapping[str, object], display: console.Display) -> Iterator[str]:
    price, window, max_output, cache = (found[key] for key in ("price", "window", "longest_answer", "cache"))
    provider = str(found["provider"]) or "an unknown provider"
    yield from wrap_text(f"{found['model']} at {provider}", display, style="bold")
    facts: list[tuple[str, str]] = []
    if isinstance(price, dict):
        yield ""
        yield from _price_table(price, display)
        yield ""
        inherited = f"inherited from {price['family']}, " if price["inherited"] else ""
        facts.append(("price source", f"{inherited}{price['origin']}"))
    else:
        facts.append(("price", "unknown: set it under cost.prices, or run `foveate prices update FILE`"))
    for name, fact in (("context window", window), ("max output", max_output)):
        tokens = f"{fact['tokens']:,} tokens{_source_note(fact)}" if isinstance(fact, dict) else "unknown"
        facts.append((name, tokens))
    assert isinstance(cache, dict)
    writes = "".join(f", {ttl} writes {factor:g}x" for ttl, factor in cache["write_prices"].items())
    factors = f"reads {cache['read_price']:g}x{writes} the input price"
    facts.append(("prompt cache", f"from {cache['minimum_tokens']:,} tokens, {factors}{_source_note(cache)}"))
    yield from format_table((Column(), Column(fit=Fit.WRAP)), facts, display)


def _price_table(price: Mapping[str, Any], display: console.Display) -> list[str]:
    rates = {
        "standard": price,
        **{f"above {tier['over_tokens']:,} tokens": tier for tier in price["tiers"]},
        **price["service_tiers"],
    }
    kinds = list(dict.fromkeys(kind for rate in rates.values() for kind in rate["dollars_per_million"]))
    amounts = [[rate["dollars_per_million"].get(kind) for rate in rates.values()] for kind in kinds]
    columns = [
        Column(heading="dollars per million tokens", fit=Fit.SHORTEN),
        *(Column(heading=kind, align="right") for kind in kinds),
    ]
    return format_table(columns, list(zip(rates, *map(_align_decimals, amounts), strict=True)), display)


def _align_decimals(amounts: Sequence[str | None]) -> list[str]:
    """Give all amounts of a column as many decimals as the most precise one."""
    digits = max(len(amount.partition(".")[2]) for amount in amounts if amount is not None)
    return ["-" if amount is None else f"{Decimal(amount):.{digits}f}" for amount in amounts]


def _source_note(fact: Mapping[str, object]) -> str:
    qualifier = "inherited, " if fact.get("inherited") else ""
    return f" ({qualifier}{fact['source']}, {fact['as_of']})"


def _format_amounts(dollars: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in dollars.items())


def _format_rates(rates: "Rates | None") -> str:
    from foveate.cost.pricing.price_book import dollars_per_million

    if rates is None:
        return "unknown"
    sizes = sorted({step.over_tokens for rate in rates.by_kind.values() for step in rate.tiers})
    parts = [_format_amounts(_by_setting_name(dollars_per_million(rates)))]
    parts += [
        f"above {size:,} {_format_amounts(_by_setting_name(dollars_per_million(rates, size + 1)))}"
        for size in sizes
    ]
    return "; ".join(parts)


def _update_object(
    price_update: "ImportedPrices", differences: "Sequence[PriceDifference]", path: Path
) -> dict[str, object]:
    from foveate.cost.pricing.price_book import PriceChange

    return {
        "file": str(path),
        "format": price_update.format,
        "as_of": price_update.day.isoformat(),
        "models": len(differences),
        "skipped": dict(price_update.skipped),
        "counts": {
            change.value: sum(difference.change is change for difference in differences)
            for change in PriceChange
        },
        "differences": [
            {
                "provider": difference.provider,
                "model": difference.model,
                "change": difference.change.value,
                "before": difference.before and _rates_object(difference.before),
                "after": difference.after and _rates_object(difference.after),
            }
            for difference in differences
            if difference.change is not PriceChange.SAME
        ],
    }


def _update_lines(
    price_update: "ImportedPrices",
    differences: "Sequence[PriceDifference]",
    path: Path,
    display: console.Display,
) -> Iterator[str]:
    from foveate.cost.pricing.price_book import PriceChange
    from foveate.cost.pricing.price_facts import load_price_facts

    models = f"{len(differences):,} model{'s' * (len(differences) != 1)}"
    yield display.escape(f"wrote {path}: {models}, {price_update.origin}")
    for reason, number in price_update.skipped.items():
        yield display.escape(f"skipped {number:,}: {reason}")
    counts = {change: sum(difference.change is change for difference in differences) for change in PriceChange}
    yield (
        f"{counts[PriceChange.NEW]:,} new, {counts[PriceChange.CHANGED]:,} changed, "
        f"{counts[PriceChange.SAME]:,} unchanged, {counts[PriceChange.KEPT]:,} ignored (a newer price is known)"
    )
    if price_update.day < load_price_facts().as_of:
        installed = load_price_facts().as_of
        yield f"the file is older than the built-in prices ({installed}): it only adds models that they lack"
    shown_differences = [
        difference
        for change in (PriceChange.CHANGED, PriceChange.NEW)
        for difference in differences
        if difference.change is change
    ]
    rows = [
        (
            difference.change.value,
            difference.provider,
            difference.model,
            _format_rates(difference.after),
            _format_rates(difference.before) if difference.change is PriceChange.CHANGED else "",
        )
        for difference in shown_differences[:_MAX_LINES]
    ]
    if rows:
        yield ""
        yield from format_table(_DIFFERENCE_COLUMNS, rows, display)
    if len(shown_differences) > _MAX_LINES:
        yield f"{len(shown_differences) - _MAX_LINES:,} more: use --json to list all"
