"""The names of providers and models, as clients write them and as tables of prices do."""

from collections.abc import Iterator

from foveate.cost.price_facts import facts


def provider_id(name: str) -> str:
    """One name for a provider, whichever of its names it was given."""
    lowered = name.strip().lower()
    return facts().providers.get(lowered, lowered)


def says_its_price(name: str) -> bool:
    """Whether a provider says what it bills, and is to be believed."""
    return provider_id(name) in facts().says


def spellings(provider: str, model: str) -> Iterator[tuple[str, str]]:
    """Under which provider and name to look for a model: as it was written, then without the path to it.

    A path that names another provider is left alone: it may be another price.
    """
    name = model.strip().lower().removesuffix("[1m]")  # Claude Code's mark of a long window
    maker, slash, rest = name.partition("/")
    if provider == "litellm":
        if slash:
            yield from spellings(provider_id(maker), rest)
        return
    if provider == "huggingface":
        name, _, host = name.rpartition(":")
        yield f"huggingface_{host}", name
        return
    yield provider, name
    _, models, last = name.rpartition("models/")  # models/…, publishers/…/models/…, accounts/…/models/…
    if models:
        yield provider, last
    if slash and provider_id(maker) == provider:
        yield from spellings(provider, rest)
