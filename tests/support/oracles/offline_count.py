"""Count of a request by rules alone, without the evidence of recordings."""

from collections.abc import Mapping
from typing import Any

from foveate import formats
from foveate.model import Format
from foveate.tokens.accuracy import AccuracyAssessment, AccuracyProfile
from foveate.tokens.counter import RequestCount, RequestCounter
from foveate.tokens.rendering.chat_templates import ChatTemplateRules, find_template
from foveate.tokens.rendering.gemini import GeminiRules, build_gemini_rules
from foveate.tokens.tokenizers.bpe import BpeTokenizer
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary

Body = Mapping[str, Any]

STUDIO = "generativelanguage.googleapis.com"
VERTEX = "aiplatform.googleapis.com"


class RulesAlone:
    """Trusts the rules, whatever recordings say."""

    def assess(self, profile: AccuracyProfile) -> AccuracyAssessment:
        return AccuracyAssessment(exact=profile.certain, bounds=((0.0, 0.0, 1.0),), floors=())


def rules_for(model: str, host: str) -> GeminiRules | ChatTemplateRules:
    if "gemini" in model:
        return build_gemini_rules(model, host)
    return ChatTemplateRules(find_template(model, host))


def count_offline(body: Body, model: str, host: str = "", api_format: Format | None = None) -> RequestCount:
    rules = rules_for(model, host)
    tokenizer = BpeTokenizer(bundled_vocabulary(rules.vocabulary))
    counter = RequestCounter(
        model=model, backend="offline", tokenizer=tokenizer, rules=rules, assessor=RulesAlone()
    )
    return counter.count_request(formats.parse_request(body, api_format))
