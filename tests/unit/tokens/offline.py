"""A request's count by rules alone, with the vocabulary that they name."""

from collections.abc import Mapping
from typing import Any

from foveate import wire
from foveate.tokens.counter import RequestCounter
from foveate.tokens.evidence import Profile, Verdict
from foveate.tokens.request_count import RequestCount
from foveate.tokens.rulers import BpeRuler
from foveate.tokens.rules.gemini import GeminiRules, gemini_rules
from foveate.tokens.rules.template import TemplateRules, template_for
from foveate.tokens.vocabulary import bundled
from foveate.values import Format

Body = Mapping[str, Any]

STUDIO = "generativelanguage.googleapis.com"
VERTEX = "aiplatform.googleapis.com"


class RulesAlone:
    """Takes the rules at their word, whatever recordings say."""

    def verdict(self, profile: Profile) -> Verdict:
        return Verdict(exact=profile.certain, bounds=((0.0, 0.0, 1.0),), floors=())


def rules_for(model: str, host: str) -> GeminiRules | TemplateRules:
    if "gemini" in model:
        return gemini_rules(model, host)
    return TemplateRules(template_for(model, host))


def counted(body: Body, model: str, host: str = "", wire_format: Format | None = None) -> RequestCount:
    rules = rules_for(model, host)
    ruler = BpeRuler(bundled(rules.vocabulary))
    counter = RequestCounter(model=model, backend="offline", ruler=ruler, rules=rules, judge=RulesAlone())
    return counter.request(wire.read(body, wire_format))
