"""Options of token counting: the backend by name, and the offline counters."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from foveate.caching import DEFAULT_CAPACITY
from foveate.errors import BadOption
from foveate.tokens.counter import RequestCounter
from foveate.tokens.families import counter_for, counter_from_file, estimating_counter_for


class Backend(StrEnum):
    """Names of counting backends. `tiktoken` is accepted for `offline`."""

    AUTO = "auto"
    OFFLINE = "offline"
    ESTIMATE = "estimate"
    ENDPOINT = "endpoint"
    ANTHROPIC_API = "anthropic_api"
    OPENAI_API = "openai_api"
    GEMINI_API = "gemini_api"

    @classmethod
    def from_name(cls, name: str) -> "Backend":
        """Return the backend called `name`.

        Raises:
            BadOption: there is no such backend.
        """
        if name == "tiktoken":
            return cls.OFFLINE
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise BadOption(f"unknown backend {name!r}; use one of {known}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterOptions:
    """Options of counting. With `use_endpoint`, `auto` may ask the server at `endpoint_url`."""

    backend: Backend = Backend.AUTO
    use_endpoint: bool = False
    endpoint_url: str = ""
    api_key: str = ""
    vocabulary: Path | None = None
    timeout_ms: int = 2000
    cache_capacity: int = DEFAULT_CAPACITY

    @property
    def uses_network(self) -> bool:
        match self.backend:
            case Backend.OFFLINE | Backend.ESTIMATE:
                return False
            case Backend.AUTO:
                return self.use_endpoint if self.endpoint_url else bool(self.api_key)
            case _:
                return True


def offline_counter_factory(options: CounterOptions) -> Callable[[str], RequestCounter]:
    """Return the function that gives the offline counter of a model.

    Raises:
        BadVocabulary: at the first count, if the user's vocabulary cannot be used.
    """
    if options.vocabulary is not None:
        return partial(counter_from_file, vocabulary=options.vocabulary, capacity=options.cache_capacity)
    if options.backend is Backend.ESTIMATE:
        return partial(estimating_counter_for, capacity=options.cache_capacity)
    return partial(counter_for, capacity=options.cache_capacity)
