"""Tests that show the effect of each setting and environment variable.

Such a test changes one setting of a gateway or a command and observes the difference in requests, responses or
the store. `tests/e2e/test_setting_tests.py` fails if a setting is missing here.
"""

_SETTINGS = "test_settings.py"
_NUMBERS = "test_settings_numbers.py"
_SERVER = "test_settings_server.py"

_AGENTS = {
    "id": (_SETTINGS, "test_an_agent_is_known_by_its_id_its_key_and_its_user_agent"),
    "keys": (_SETTINGS, "test_an_agent_is_known_by_its_id_its_key_and_its_user_agent"),
    "user_agents": (_SETTINGS, "test_an_agent_is_known_by_its_id_its_key_and_its_user_agent"),
    "on_overflow": (_SETTINGS, "test_what_does_not_fit_the_agents_window_is_treated_as_it_wishes"),
    "window_tokens": (_SETTINGS, "test_what_does_not_fit_the_agents_window_is_treated_as_it_wishes"),
    "max_turns": (_SETTINGS, "test_turns_beyond_max_turns_are_left_out_in_batches"),
    "context_optimization.prompt_cache": (
        _SETTINGS,
        "test_breakpoints_are_placed_for_the_agents_that_have_the_prompt_cache_on",
    ),
    "context_optimization.client_breakpoints": (
        _SETTINGS,
        "test_breakpoints_of_a_client_are_replaced_only_if_that_is_set",
    ),
    "context_optimization.compaction": (_NUMBERS, "test_a_history_is_compacted_for_agents_that_have_it_on"),
    "context_optimization.token_counter": (
        _NUMBERS,
        "test_without_a_counter_the_window_is_left_to_the_provider",
    ),
    "context_optimization.workspace_cache": (_NUMBERS, "test_files_are_remembered_only_if_that_is_on"),
    "sections.workspace.root": (_SETTINGS, "test_the_files_of_a_workspace_are_injected"),
    "sections.workspace.scope": (_SETTINGS, "test_the_files_of_a_workspace_are_injected"),
    "sections.workspace.extras": (_SETTINGS, "test_the_files_of_a_workspace_are_injected"),
    "sections.skills": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.binding.peers": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.binding.channels": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.binding.language": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.memory.paths": (_SETTINGS, "test_notes_are_shown_as_their_settings_say"),
    "sections.memory.limit_tokens": (_SETTINGS, "test_notes_are_shown_as_their_settings_say"),
    "sections.memory.format": (_SETTINGS, "test_notes_are_shown_as_their_settings_say"),
    "sections.memory.follow_symlinks": (
        _SETTINGS,
        "test_links_out_of_a_folder_of_notes_are_followed_only_if_that_is_set",
    ),
    "sections.memory.embeddings.url": (
        _SETTINGS,
        "test_notes_are_compared_by_the_embeddings_endpoint_that_is_set",
    ),
    "sections.memory.embeddings.model": (
        _SETTINGS,
        "test_notes_are_compared_by_the_embeddings_endpoint_that_is_set",
    ),
    "sections.memory.embeddings.key_variable": (
        _SETTINGS,
        "test_notes_are_compared_by_the_embeddings_endpoint_that_is_set",
    ),
    "sections.memory.embeddings.dimensions": (
        _SETTINGS,
        "test_notes_are_compared_by_the_embeddings_endpoint_that_is_set",
    ),
    "sections.logs": (_SETTINGS, "test_the_newest_lines_of_logs_are_shown"),
    "sections.time.enabled": (_SETTINGS, "test_the_time_is_told_as_its_settings_say"),
    "sections.time.format": (_SETTINGS, "test_the_time_is_told_as_its_settings_say"),
    "sections.time.warning_minutes": (_SETTINGS, "test_the_time_is_told_as_its_settings_say"),
    "sections.time.zone": (_SETTINGS, "test_the_time_is_told_as_its_settings_say"),
    "sections.channel": (_SETTINGS, "test_the_channel_and_the_budget_are_told_only_if_that_is_set"),
    "sections.budget": (_SETTINGS, "test_the_channel_and_the_budget_are_told_only_if_that_is_set"),
    "sections.privacy_tags": (_SETTINGS, "test_notes_are_shown_as_their_settings_say"),
    "sections.limits": (_SETTINGS, "test_the_limits_of_sections_hold"),
}
_LIMITS = {
    "total_tokens": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "output_reserve": ("test_config.py", "test_conflicting_settings_are_rejected_with_their_line"),
    "ladder": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "ladder truncate_low_priority": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "ladder drop_low_priority": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "ladder progressive": (_SETTINGS, "test_a_long_log_is_cut_by_the_progressive_ladder"),
    "overflow_policy": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "sections": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "sections.*.enabled": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "sections.*.keep": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "sections.*.max_tokens": (_SETTINGS, "test_the_limits_of_sections_hold"),
    "sections.*.priority": (_SETTINGS, "test_a_priority_decides_which_section_is_cut"),
    "sections.*.share": (_SETTINGS, "test_the_limits_of_sections_hold"),
}
_CACHE = {
    "enabled": (_SETTINGS, "test_breakpoints_are_placed_only_if_the_prompt_cache_is_on"),
    "long_ttl_providers": (_SETTINGS, "test_an_hour_is_asked_for_only_of_long_ttl_providers"),
    "ttl": (_SETTINGS, "test_breakpoints_have_the_ttl_that_is_set"),
    "cache_tools": (_SETTINGS, "test_tools_have_a_breakpoint_only_if_they_may"),
    "client_breakpoints": (_SETTINGS, "test_breakpoints_of_a_client_are_replaced_only_if_that_is_set"),
    "pings.enabled": (_NUMBERS, "test_pings_are_sent_as_is_set"),
    "pings.most_in_a_row": (_NUMBERS, "test_pings_are_sent_as_is_set"),
    "pings.most_sessions": (_NUMBERS, "test_pings_are_sent_as_is_set"),
}
_COMPACTION = {
    "enabled": (_NUMBERS, "test_a_history_is_compacted_only_if_that_is_on"),
    "compact_at_pct": (_NUMBERS, "test_compaction_begins_at_the_share_that_is_set"),
    "tail_keep_tokens": (_NUMBERS, "test_so_much_of_the_end_is_kept"),
    "tool_result_max_pct": (_NUMBERS, "test_long_tool_results_are_cut_at_the_share_that_is_set"),
    "summarizer_model": (_NUMBERS, "test_summaries_are_written_by_the_model_that_is_set"),
    "lock_ttl_seconds": (_NUMBERS, "test_a_session_is_locked_for_as_long_as_is_set"),
    "min_turns_between": (_NUMBERS, "test_so_many_turns_pass_between_two_compactions"),
    "extractive": (_NUMBERS, "test_rules_make_the_summary_only_if_that_is_set"),
    "limit_seconds": (_NUMBERS, "test_a_compaction_may_take_as_long_as_is_set"),
}
_COUNTER = {
    "enabled": (_NUMBERS, "test_without_a_counter_the_window_is_left_to_the_provider"),
    "backend": (_NUMBERS, "test_the_backend_that_is_set_counts"),
    "cache_capacity": (_NUMBERS, "test_so_many_counts_are_remembered"),
    "use_endpoint": (_NUMBERS, "test_an_endpoint_counts_only_if_that_is_on"),
    "timeout_ms": (_NUMBERS, "test_an_endpoint_is_waited_for_as_long_as_is_set"),
}
_WORKSPACE = {
    "enabled": (_NUMBERS, "test_files_are_remembered_only_if_that_is_on"),
    "watch_debounce_ms": (_NUMBERS, "test_a_change_of_a_file_is_waited_for_as_long_as_is_set"),
    "max_age_seconds": (_NUMBERS, "test_files_are_read_again_after_the_age_that_is_set"),
}
_PRICES = "test_calls_are_priced_by_prices_of_ones_own"
_CACHE_PRICES = "test_what_the_cache_did_is_priced_by_prices_of_ones_own"
_COST = {
    "caps[].scope": (_NUMBERS, "test_a_session_and_a_day_are_capped_over_calls"),
    "caps[].dollars": (_NUMBERS, "test_caps_refuse_what_they_are_set_for"),
    "caps[].agent": (_NUMBERS, "test_caps_refuse_what_they_are_set_for"),
    "caps[].unknown": (_NUMBERS, "test_caps_refuse_what_they_are_set_for"),
    "caps[].warn_at": (_SERVER, "test_a_cap_is_near_from_the_share_on_that_is_set"),
    "allow_fields": (_NUMBERS, "test_a_field_of_unknown_cost_passes_a_cap_only_if_it_is_allowed"),
    "min_output_tokens": (_NUMBERS, "test_an_output_limit_that_fits_a_cap_is_set_down_to_the_least"),
    **{f"prices[].{key}": (_NUMBERS, _PRICES) for key in ("model", "provider", "since", "input", "output")},
    **{f"prices[].{key}": (_NUMBERS, _PRICES) for key in ("discount", "tiers", "tiers[].over_tokens")},
    **{f"prices[].{key}": (_NUMBERS, _CACHE_PRICES) for key in ("cached_read", "write_5m", "write_1h")},
    "prices[].reasoning": (_NUMBERS, "test_reasoning_is_priced_by_prices_of_ones_own"),
    **{
        f"prices[].tiers[].{key}": (_NUMBERS, "test_a_tier_has_prices_of_its_own")
        for key in ("input", "output", "cached_read", "write_5m", "write_1h", "reasoning")
    },
}
_SERVERS = {
    "host": (_SERVER, "test_the_gateway_listens_and_keeps_its_store_where_is_set"),
    "admin_keys": ("test_web_viewers.py", "test_an_admin_key_and_loopback_see_all_agents"),
    "port": (_SERVER, "test_the_gateway_listens_and_keeps_its_store_where_is_set"),
    "workers": ("test_serve_workers.py", "test_both_workers_have_a_share_of_the_work"),
    "body_limit_bytes": (_SERVER, "test_requests_beyond_a_limit_of_the_server_are_refused"),
    "body_memory_bytes": (_SERVER, "test_all_bodies_together_have_the_memory_that_is_set"),
    "body_timeout_seconds": (_SERVER, "test_a_body_has_to_arrive_in_the_time_that_is_set"),
    "max_messages": (_SERVER, "test_requests_beyond_a_limit_of_the_server_are_refused"),
    "max_tools": (_SERVER, "test_requests_beyond_a_limit_of_the_server_are_refused"),
    "max_depth": (_SERVER, "test_requests_beyond_a_limit_of_the_server_are_refused"),
    "timeouts.connect_seconds": (_SERVER, "test_a_connection_is_waited_for_as_long_as_is_set"),
    "timeouts.idle_seconds": (_SERVER, "test_an_upstream_is_waited_for_as_long_as_is_set"),
    "timeouts.total_seconds": (_SERVER, "test_an_upstream_is_waited_for_as_long_as_is_set"),
    "tls.certificate": ("test_serve_tls.py", "test_official_clients_that_trust_it_get_their_answers"),
    "tls.key": ("test_serve_tls.py", "test_official_clients_that_trust_it_get_their_answers"),
    "cors_origins": (_SERVER, "test_pages_of_listed_origins_may_ask"),
    "host_names": (_SERVER, "test_a_gateway_on_loopback_is_asked_by_listed_names"),
    "grace_seconds": ("test_serve_ending.py", "test_after_the_time_of_grace_what_is_under_way_is_broken_off"),
    "log": (_SERVER, "test_the_log_is_written_as_is_set"),
    "log_level": (_SERVER, "test_the_log_is_written_as_is_set"),
    "opentelemetry": (
        "test_observing_otel.py",
        "test_calls_are_sent_to_a_collector_once_that_is_switched_on",
    ),
    "page": (_SERVER, "test_the_gateways_pages_are_shown_only_if_they_are_on"),
}
_UPSTREAMS = {
    "base_url": (
        _SETTINGS,
        "test_an_upstreams_base_url_is_where_requests_go_with_or_without_a_version",
    ),
    "api": (_SETTINGS, "test_an_upstream_is_spoken_to_in_its_api"),
    "provider": (_SETTINGS, "test_an_upstreams_provider_decides_the_rules_of_its_cache"),
    "key_variable": (_SETTINGS, "test_an_upstreams_key_is_the_one_of_its_variable"),
    "deployments": (_SETTINGS, "test_a_deployment_is_the_model_that_it_is_said_to_be"),
    "threads": (_SETTINGS, "test_message_threads_are_held_refused_or_passed_as_is_set"),
    "allow": (_SERVER, "test_the_gateways_key_is_used_for_what_is_allowed"),
    "reuse": (_SERVER, "test_connections_to_an_upstream_are_reused_only_if_that_is_on"),
    "sign": (_SERVER, "test_requests_to_bedrock_are_signed_only_if_that_is_set"),
}

SETTINGS: dict[str, tuple[str, str]] = {
    "agents": _AGENTS["id"],
    **{f"agents[].{key}": test for key, test in _AGENTS.items()},
    **{f"budget: {key}": test for key, test in _LIMITS.items()},
    **{f"context_optimization.prompt_cache.{key}": test for key, test in _CACHE.items()},
    **{f"context_optimization.compaction.{key}": test for key, test in _COMPACTION.items()},
    **{f"context_optimization.token_counter.{key}": test for key, test in _COUNTER.items()},
    **{f"context_optimization.workspace_cache.{key}": test for key, test in _WORKSPACE.items()},
    **{f"cost.{key}": test for key, test in _COST.items()},
    **{
        f"keep_requests.{key}": (
            _SERVER,
            "test_requests_are_kept_only_if_that_is_on_and_within_days_and_bytes",
        )
        for key in ("enabled", "days", "most_bytes")
    },
    "routes": (_SETTINGS, "test_requests_are_routed_by_model_and_renamed"),
    **{
        f"routes[].{key}": (_SETTINGS, "test_requests_are_routed_by_model_and_renamed")
        for key in ("models", "upstream", "model")
    },
    **{f"server.{key}": test for key, test in _SERVERS.items()},
    "store.url": (_SERVER, "test_the_gateway_listens_and_keeps_its_store_where_is_set"),
    "store.keep_days": (_SERVER, "test_what_was_not_seen_for_so_many_days_is_forgotten"),
    "upstreams": _UPSTREAMS["api"],
    **{f"upstreams.*.{key}": test for key, test in _UPSTREAMS.items()},
}
"""Test file in this folder and test of each setting, by its path in the golden file."""

_KEYS = ("ANTHROPIC", "OPENAI", "OPENROUTER", "DEEPSEEK", "NVIDIA", "GEMINI")
_SENT = (_SERVER, "test_variables_of_the_environment_change_what_is_sent")
_TAKEN = (_SERVER, "test_variables_of_the_environment_take_sections_away")
VARIABLES: dict[str, tuple[str, str]] = {
    **{f"{name}_API_KEY": (_SERVER, "test_keys_of_upstreams_come_from_their_variables") for name in _KEYS},
    "ANTHROPIC_CACHE_BETA": _SENT,
    "CONTEXT_LOG_LIMIT": _SENT,
    "CONTEXT_MAX_TOKENS": _TAKEN,
    "CONTEXT_SEMANTIC_THRESHOLD": (
        _SERVER,
        "test_the_similarity_from_which_on_notes_are_shown_is_a_variable",
    ),
    "DEADLINE_WARNING_MINUTES": _SENT,
    "FORWARDED_ALLOW_IPS": (
        "test_web_access.py",
        "test_the_address_on_the_page_is_the_one_that_a_proxy_before_the_gateway_was_asked_by",
    ),
    "FOVEATE_HOME": (_SERVER, "test_the_store_and_the_data_folder_are_variables"),
    "FOVEATE_METRICS": ("test_observing.py", "test_any_worker_shows_what_all_have_counted"),
    "FOVEATE_STORE": (_SERVER, "test_the_store_and_the_data_folder_are_variables"),
    "TIME_AWARENESS": _TAKEN,
    "TIME_FORMAT": _SENT,
}
"""The same for environment variables."""

OF_THE_SYSTEM = frozenset(("COLUMNS", "HOME", "NO_COLOR", "TERM", "XDG_DATA_HOME"))
"""Variables that every terminal program follows; not settings of Foveate."""
