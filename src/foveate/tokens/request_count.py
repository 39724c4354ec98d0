"""The count of a request."""

import re
from dataclasses import dataclass

from foveate.model import TokenCount
from foveate.notebook import BarRow, format_tokens, render_bars

# Not visible in the request, but covered by the bound: images have a maximum size, encrypted thinking is at
# most as long as its data, and a guardrail is not part of the input.
BOUNDED_UNEXPLAINED = frozenset(("image (url)", "image (file)", "sealed reasoning", "guardrailConfig"))


# Model names that select a system of the provider, which decides what it adds to the input: Groq's compound
# systems search and run code, OpenRouter's presets contain prompts, and `:online` adds the results of a web
# search (console.groq.com/docs/compound, openrouter.ai/docs; November 2026).
PROVIDER_SYSTEMS = {
    "compound system": re.compile(r"(^|/)compound(-|$)"),
    "preset": re.compile(r"(^|@)@?preset/"),
    "web plugin": re.compile(r":online$"),
}


def provider_systems(model: str) -> tuple[str, ...]:
    """Provider-side systems that a model name selects; usually none."""
    name = model.lower().strip()
    return tuple(system for system, pattern in PROVIDER_SYSTEMS.items() if pattern.search(name))


@dataclass(frozen=True, slots=True)
class PartCount:
    """One row of a request's breakdown."""

    name: str
    tokens: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestCount:
    """Count of a request: the total, its parts, and what is not visible in the request.

    `unexplained` names what the provider adds that the request does not show, such as the results of a
    server-side tool. `total.upper` bounds the rest.
    """

    model: str
    backend: str
    total: TokenCount
    parts: tuple[PartCount, ...] = ()
    unexplained: tuple[str, ...] = ()

    @property
    def upper(self) -> int | None:
        """Upper bound for all input that is charged. None if the provider decides how much it adds."""
        return self.total.upper if BOUNDED_UNEXPLAINED.issuperset(self.unexplained) else None

    def __repr__(self) -> str:
        """Without the parts: there is one for each message."""
        hidden = f", not counted: {', '.join(self.unexplained)}" if self.unexplained else ""
        return f"<RequestCount {self.model}: {self._size}, {len(self.parts):,} parts{hidden}>"

    @property
    def _size(self) -> str:
        if self.total.exact:
            return f"{self.total.tokens:,} tokens"
        return f"~{self.total.tokens:,} tokens, at most {self.total.upper:,}"

    def _repr_html_(self) -> str:
        rows = [
            BarRow(
                name=part.name,
                tokens=part.tokens,
                tokens_before=part.tokens,
                size=format_tokens(part.tokens, exact=part.exact),
            )
            for part in self.parts
            if part.tokens
        ]
        return render_bars(f"{self.model}: {self._size}", rows)
