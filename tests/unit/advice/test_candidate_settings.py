"""Candidate settings: what they change, and their YAML."""

import yaml

from foveate.advice.candidate_settings import (
    Mechanism,
    apply_changes,
    gateway_options,
    list_candidates,
    merge_changes,
    to_inline_yaml,
    to_yaml,
)
from foveate.config.load import parse_settings
from foveate.config.settings import Settings


def test_every_candidate_changes_the_current_settings() -> None:
    defaults = Settings()

    candidates = list_candidates(defaults)

    assert len(candidates) >= 8
    for candidate in candidates:
        assert apply_changes(defaults, candidate.changes.items()) != defaults
        assert candidate.risk


def test_what_is_set_already_is_no_candidate_but_its_opposite_is() -> None:
    settings = parse_settings(
        b"context_optimization:\n"
        b"  prompt_cache: {client_breakpoints: replace, pings: {enabled: true}}\n"
        b"  compaction: {enabled: true, compact_at_pct: 0.5}\n",
        "foveate.yaml",
    )

    names = {candidate.name for candidate in list_candidates(settings)}

    assert "no keep-alive requests" in names
    assert "no compaction" in names
    assert "the client's cache breakpoints stay" in names
    assert "compaction at 25% of the window" in names
    assert "compaction at 50% of the window" not in names
    assert "keep-alive requests" not in names


def test_the_yaml_of_a_candidate_gives_the_simulated_options() -> None:
    defaults = Settings()
    for candidate in list_candidates(defaults):
        loaded = parse_settings(to_yaml(candidate.changes).encode(), "foveate.yaml")

        assert gateway_options(loaded, {}) == gateway_options(defaults, candidate.changes)


def test_the_yaml_on_one_line_means_the_same() -> None:
    by_mechanism = {candidate.mechanism: candidate for candidate in list_candidates(Settings())}
    group = [by_mechanism[name] for name in (Mechanism.COMPACTION, Mechanism.KEEP_ALIVE, Mechanism.BREAKPOINTS)]
    changes = merge_changes(group)

    assert yaml.safe_load(to_inline_yaml(changes)) == yaml.safe_load(to_yaml(changes))
    assert "\n" not in to_inline_yaml(changes)


def test_other_settings_stay() -> None:
    settings = parse_settings(b"server: {port: 9}\ncontext_optimization: {prompt_cache: {ttl: 5m}}", "f.yaml")
    (candidate,) = [each for each in list_candidates(settings) if each.mechanism is Mechanism.KEEP_ALIVE]

    changed = apply_changes(settings, candidate.changes.items())

    assert changed.server.port == 9
    assert changed.context_optimization.prompt_cache.ttl == "5m"
    assert changed.context_optimization.prompt_cache.pings.enabled
