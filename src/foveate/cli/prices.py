"""`foveate prices`: what a model costs and who says so, and newer price files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import telling
from foveate.cli.store import AsJson
from foveate.cli.usual import ConfigFile, usual_config
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.cost.price_book import PriceBook
    from foveate.cost.price_differences import Difference
    from foveate.cost.price_update import PriceUpdate
    from foveate.cost.prices import Kind, Rates

app = typer.Typer(
    name="prices",
    help="Shows what a model costs and who says so, and reads newer price files.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Of so many models one is told what changes; JSON has them all.
_MAX_LINES = 20
_SERVICE_TIERS = ("batch", "flex", "priority", "fast")


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The name, as clients send it.")],
    provider: Annotated[
        str | None,
        typer.Option("--provider", metavar="P", help="Who is called; default: whom the name points to."),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the prices, tiers, window and cache rules of a model, and where each comes from.

    Example: foveate prices show claude-fable-5-2
    """
    with telling(as_json=json):
        if not model.strip():
            raise BadOption("MODEL needs a name")
        from foveate.cost.price_names import provider_id

        host = provider_id(provider or _likely_provider(model))
        found = _model_object(model, host, _book(config), at=time())
        if json:
            screen.print_object(found)
        else:
            screen.print_lines(_model_lines(found))


@app.command("update")
def update(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="genai-prices' data.json, or LiteLLM's model_prices_and_context_window.json.",
        ),
    ],
    day: Annotated[
        str | None,
        typer.Option("--date", metavar="DAY", help="The day of its prices (2026-11-01); default: its file's."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Read a newer price file into the data folder; a running gateway uses it from the next request on.

    Example: foveate prices update data.json --date 2026-11-16
    """
    with telling(as_json=json):
        from foveate.config.files import read_bytes, shown
        from foveate.config.price_file import price_file, write_price_file
        from foveate.cost.price_book import PriceBook
        from foveate.cost.price_differences import differences
        from foveate.cost.price_update import MAX_FILE_BYTES, read_price_file

        now, kept = time(), price_file(os.environ)
        data = read_bytes(file, limit_bytes=MAX_FILE_BYTES)
        read = read_price_file(data, day=_day(day, file, now), source=shown(file))
        found = differences(PriceBook(updates=kept.now), read, at=now)
        write_price_file(kept, read)
        if json:
            screen.print_object(_update_object(read, found, kept.path))
        else:
            screen.print_lines(_update_lines(read, found, kept.path))


def _book(config: Path | None) -> "PriceBook":
    from foveate.config.cost import load_cost
    from foveate.config.price_file import price_file
    from foveate.cost.price_book import PriceBook

    path = usual_config(config)
    return PriceBook(load_cost(path).prices if path is not None else (), updates=price_file(os.environ).now)


def _likely_provider(model: str) -> str:
    from foveate.cache.rules import rules_for

    return rules_for(model).provider


def _day(said: str | None, file: Path, now: float) -> date:
    today = datetime.fromtimestamp(now, UTC).date()
    if said is None:
        return min(today, datetime.fromtimestamp(file.stat().st_mtime, UTC).date())
    try:
        found = date.fromisoformat(said)
    except ValueError:
        raise BadOption(f"--date is a day such as 2026-11-01, not {said!r:.40}") from None
    if found > today:
        raise BadOption(f"--date {found} is in the future")
    return found


def _model_object(model: str, provider: str, book: "PriceBook", *, at: float) -> dict[str, object]:
    from foveate.budget.answers import longest_answer_of
    from foveate.budget.windows import window_of
    from foveate.cache.rules import rules_for

    window, answer, rules = window_of(model), longest_answer_of(model), rules_for(model, provider or None)
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
        "longest_answer": answer and {"tokens": answer.tokens, "source": answer.source, "as_of": answer.as_of},
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
    from foveate.cost.price_differences import per_million

    sizes = sorted({step.over_tokens for rate in rates.by_kind.values() for step in rate.steps})
    return {
        "dollars_per_million": _named(per_million(rates)),
        "tiers": [
            {"over_tokens": size, "dollars_per_million": _named(per_million(rates, size + 1))} for size in sizes
        ],
    }


def _named(dollars: "Mapping[Kind, Decimal]") -> dict[str, str]:
    """Amounts by the keys that the configuration has for them."""
    from foveate.config.cost import KINDS

    names = {kind: name for name, kind in KINDS.items()}
    return {names[kind]: f"{amount:f}" for kind, amount in dollars.items()}


def _model_lines(found: Mapping[str, object]) -> Iterator[str]:
    price, window, answer = found["price"], found["window"], found["longest_answer"]
    host = screen.plain(str(found["provider"])) or "an unknown provider"
    yield f"{screen.plain(str(found['model']))} at {host}"
    if isinstance(price, dict):
        kind = f"inherited from {price['family']}: " if price["inherited"] else ""
        yield f"  price    {kind}{price['origin']}"
        yield f"           {_amounts(price['dollars_per_million'])}, in dollars per million tokens"
        for tier in price["tiers"]:
            yield f"           above {tier['over_tokens']:,}: {_amounts(tier['dollars_per_million'])}"
        for name, tier in price["service_tiers"].items():
            yield f"           {name}: {_amounts(tier['dollars_per_million'])}"
    else:
        yield "  price    unknown: write it under cost.prices, or bring a price file (foveate prices update)"
    if isinstance(window, dict):
        yield f"  window   {window['tokens']:,} tokens{_from(window)}"
    else:
        yield "  window   unknown"
    yield (
        f"  answer   {answer['tokens']:,} tokens{_from(answer)}"
        if isinstance(answer, dict)
        else "  answer   unknown"
    )
    cache = found["cache"]
    assert isinstance(cache, dict)
    writes = "".join(f", {ttl} writes {times:g}" for ttl, times in cache["write_prices"].items())
    yield (
        f"  cache    from {cache['minimum_tokens']:,} tokens on, reads {cache['read_price']:g}{writes} times"
        f" the price of input{_from(cache)}"
    )


def _from(said: Mapping[str, object]) -> str:
    word = "inherited, " if said.get("inherited") else ""
    return f" ({word}{said['source']}; {said['as_of']})"


def _amounts(dollars: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in dollars.items())


def _with_tiers(rates: "Rates | None") -> str:
    """All prices in a line, as many as tiers make of each."""
    from foveate.cost.price_differences import per_million

    if rates is None:
        return "unknown"
    sizes = sorted({step.over_tokens for rate in rates.by_kind.values() for step in rate.steps})
    parts = [_amounts(_named(per_million(rates)))]
    parts += [f"above {size:,} {_amounts(_named(per_million(rates, size + 1)))}" for size in sizes]
    return "; ".join(parts)


def _update_object(read: "PriceUpdate", found: "Sequence[Difference]", path: Path) -> dict[str, object]:
    from foveate.cost.price_differences import Change

    return {
        "file": str(path),
        "format": read.format,
        "as_of": read.day.isoformat(),
        "models": len(found),
        "skipped": dict(read.skipped),
        "counts": {change.value: sum(one.change is change for one in found) for change in Change},
        "differences": [
            {
                "provider": one.provider,
                "model": one.model,
                "change": one.change.value,
                "before": one.before and _rates_object(one.before),
                "after": one.after and _rates_object(one.after),
            }
            for one in found
            if one.change is not Change.SAME
        ],
    }


def _update_lines(read: "PriceUpdate", found: "Sequence[Difference]", path: Path) -> Iterator[str]:
    from foveate.cost.price_differences import Change
    from foveate.cost.price_facts import facts

    left_out = "".join(f"; {number:,} left out ({reason})" for reason, number in read.skipped.items())
    yield f"wrote {screen.plain(str(path))}: {len(found):,} models ({read.origin}){left_out}"
    counts = {change: sum(one.change is change for one in found) for change in Change}
    yield (
        f"{counts[Change.NEW]:,} new, {counts[Change.CHANGED]:,} changed, {counts[Change.SAME]:,} as before, "
        f"{counts[Change.KEPT]:,} kept, since newer tables have them"
    )
    if read.day < facts().as_of:
        yield f"older than the installed tables ({facts().as_of}): its prices hold for models that these lack"
    told = [one for change in (Change.CHANGED, Change.NEW) for one in found if one.change is change]
    for one in told[:_MAX_LINES]:
        name = screen.plain(f"{one.provider} {one.model}")
        before = f" (before: {_with_tiers(one.before)})" if one.change is Change.CHANGED else ""
        yield f"  {one.change.value:8} {name}: {_with_tiers(one.after)}{before}"
    if len(told) > _MAX_LINES:
        yield f"  {len(told) - _MAX_LINES:,} more; --json has them all"
