"""The names of providers and models, as clients write them and as tables of prices do."""

from collections.abc import Iterator

from foveate.cost.price_facts import load_price_facts


def normalize_provider(name: str) -> str:
    """One name for a provider, whichever of its names it was given."""
    lowered = name.strip().lower()
    return load_price_facts().providers.get(lowered, lowered)


def states_its_price(name: str) -> bool:
    """Whether a provider says what it bills, and is to be believed."""
    return normalize_provider(name) in load_price_facts().price_stating_providers


def candidate_names(provider: str, model: str) -> Iterator[tuple[str, str]]:
    """Under which provider and name to look for a model: as it was written, then without the path to it.

    A path that names another provider is left alone: it may be another price.
    """
    name = model.strip().lower().removesuffix("[1m]")  # Claude Code's mark of a long window
    maker, slash, rest = name.partition("/")
    if provider == "litellm":
        if slash:
            yield from candidate_names(normalize_provider(maker), rest)
        return
    if provider == "huggingface":
        name, _, host = name.rpartition(":")
        yield f"huggingface_{host}", name
        return
    yield provider, name
    _, models, last = name.rpartition("models/")  # models/…, publishers/…/models/…, accounts/…/models/…
    if models:
        yield provider, last
    if slash and normalize_provider(maker) == provider:
        yield from candidate_names(provider, rest)
