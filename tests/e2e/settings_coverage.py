"""Tests that show the effect of each setting and environment variable.

Such a test changes one setting of a gateway or a command and observes the difference in requests, responses or
the store. `tests/e2e/test_settings_coverage.py` fails if a setting is missing here.
"""

_SETTINGS = "test_settings.py"
_NUMBERS = "test_settings_numbers.py"
_PAYING = "test_gateway_paying_edits.py"
_SERVER = "test_settings_server.py"
_PROXY = "test_gateway_proxies.py"

_AGENTS = {
    "id": (_SETTINGS, "test_an_agent_is_recognised_by_its_id_key_or_user_agent"),
    "keys": (_SETTINGS, "test_an_agent_is_recognised_by_its_id_key_or_user_agent"),
    "user_agents": (_SETTINGS, "test_an_agent_is_recognised_by_its_id_key_or_user_agent"),
    "on_overflow": (_SETTINGS, "test_a_request_that_does_not_fit_the_window_is_handled_as_configured"),
    "window_tokens": (_SETTINGS, "test_a_request_that_does_not_fit_the_window_is_handled_as_configured"),
    "max_turns": (_SETTINGS, "test_turns_beyond_max_turns_are_dropped_in_batches"),
    "context_optimization.prompt_cache": (
        _SETTINGS,
        "test_breakpoints_are_placed_for_the_agents_that_have_the_prompt_cache_on",
    ),
    "context_optimization.client_breakpoints": (
        _SETTINGS,
        "test_breakpoints_of_a_client_are_replaced_only_if_configured",
    ),
    "context_optimization.compaction": (_NUMBERS, "test_history_is_compacted_for_agents_that_enable_it"),
    "context_optimization.compaction_trigger": (_PAYING, "test_trigger_and_clearing_can_be_set_for_one_agent"),
    "context_optimization.clearing": (_PAYING, "test_trigger_and_clearing_can_be_set_for_one_agent"),
    "context_optimization.token_counter": (
        _NUMBERS,
        "test_without_a_counter_the_window_is_left_to_the_provider",
    ),
    "context_optimization.workspace_cache": (_NUMBERS, "test_files_are_cached_only_if_enabled"),
    "sections.workspace.root": (_SETTINGS, "test_the_files_of_a_workspace_are_injected"),
    "sections.workspace.scope": (_SETTINGS, "test_the_files_of_a_workspace_are_injected"),
    "sections.workspace.extras": (_SETTINGS, "test_the_files_of_a_workspace_are_injected"),
    "sections.skills": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.binding.peers": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.binding.channels": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.binding.language": (_SETTINGS, "test_skills_and_the_binding_are_injected"),
    "sections.memory.paths": (_SETTINGS, "test_notes_are_shown_as_configured"),
    "sections.memory.limit_tokens": (_SETTINGS, "test_notes_are_shown_as_configured"),
    "sections.memory.format": (_SETTINGS, "test_notes_are_shown_as_configured"),
    "sections.memory.follow_symlinks": (
        _SETTINGS,
        "test_links_out_of_a_folder_of_notes_are_followed_only_if_configured",
    ),
    "sections.memory.embeddings.url": (
        _SETTINGS,
        "test_notes_are_compared_by_the_configured_embeddings_endpoint",
    ),
    "sections.memory.embeddings.model": (
        _SETTINGS,
        "test_notes_are_compared_by_the_configured_embeddings_endpoint",
    ),
    "sections.memory.embeddings.key_variable": (
        _SETTINGS,
        "test_notes_are_compared_by_the_configured_embeddings_endpoint",
    ),
    "sections.memory.embeddings.dimensions": (
        _SETTINGS,
        "test_notes_are_compared_by_the_configured_embeddings_endpoint",
    ),
    "sections.logs": (_SETTINGS, "test_the_newest_lines_of_logs_are_shown"),
    "sections.time.enabled": (_SETTINGS, "test_the_time_is_injected_as_configured"),
    "sections.time.format": (_SETTINGS, "test_the_time_is_injected_as_configured"),
    "sections.time.warning_minutes": (_SETTINGS, "test_the_time_is_injected_as_configured"),
    "sections.time.zone": (_SETTINGS, "test_the_time_is_injected_as_configured"),
    "sections.channel": (_SETTINGS, "test_the_channel_and_the_budget_are_injected_only_if_configured"),
    "sections.budget": (_SETTINGS, "test_the_channel_and_the_budget_are_injected_only_if_configured"),
    "sections.privacy_tags": (_SETTINGS, "test_notes_are_shown_as_configured"),
    "sections.limits": (_SETTINGS, "test_section_limits_are_enforced"),
}
_LIMITS = {
    "total_tokens": (_SETTINGS, "test_section_limits_are_enforced"),
    "output_reserve": ("test_config.py", "test_conflicting_settings_are_rejected_with_their_line"),
    "ladder": (_SETTINGS, "test_section_limits_are_enforced"),
    "ladder truncate_low_priority": (_SETTINGS, "test_section_limits_are_enforced"),
    "ladder drop_low_priority": (_SETTINGS, "test_section_limits_are_enforced"),
    "ladder progressive": (_SETTINGS, "test_a_long_log_is_cut_by_the_progressive_ladder"),
    "overflow_policy": (_SETTINGS, "test_section_limits_are_enforced"),
    "sections": (_SETTINGS, "test_section_limits_are_enforced"),
    "sections.*.enabled": (_SETTINGS, "test_section_limits_are_enforced"),
    "sections.*.keep": (_SETTINGS, "test_section_limits_are_enforced"),
    "sections.*.max_tokens": (_SETTINGS, "test_section_limits_are_enforced"),
    "sections.*.priority": (_SETTINGS, "test_a_priority_decides_which_section_is_cut"),
    "sections.*.share": (_SETTINGS, "test_section_limits_are_enforced"),
}
_CACHE = {
    "enabled": (_SETTINGS, "test_breakpoints_are_placed_only_if_the_prompt_cache_is_on"),
    "long_ttl_providers": (_SETTINGS, "test_a_ttl_of_an_hour_is_requested_only_from_long_ttl_providers"),
    "ttl": (_SETTINGS, "test_breakpoints_have_the_configured_ttl"),
    "cache_tools": (_SETTINGS, "test_tools_have_a_breakpoint_only_if_it_is_enabled"),
    "client_breakpoints": (_SETTINGS, "test_breakpoints_of_a_client_are_replaced_only_if_configured"),
    "pings.enabled": (_NUMBERS, "test_keep_alives_are_sent_as_configured"),
    "pings.most_in_a_row": (_NUMBERS, "test_keep_alives_are_sent_as_configured"),
    "pings.most_sessions": (_NUMBERS, "test_keep_alives_are_sent_as_configured"),
}
_COMPACTION = {
    "enabled": (_NUMBERS, "test_history_is_compacted_only_if_enabled"),
    "trigger": (_PAYING, "test_a_long_session_is_compacted_because_it_pays_and_costs_less"),
    "clearing": (_PAYING, "test_tool_results_are_cleared_once_the_cache_has_expired"),
    "compact_at_pct": (_NUMBERS, "test_compaction_begins_at_the_configured_share"),
    "tail_keep_tokens": (_NUMBERS, "test_compaction_keeps_the_configured_tokens_of_recent_history"),
    "tool_result_max_pct": (_NUMBERS, "test_long_tool_results_are_cut_at_the_configured_share"),
    "summarizer_model": (_NUMBERS, "test_summaries_are_written_by_the_configured_model"),
    "lock_ttl_seconds": (_NUMBERS, "test_a_session_is_locked_for_the_configured_time"),
    "min_turns_between": (_NUMBERS, "test_the_configured_number_of_turns_passes_between_compactions"),
    "extractive": (_NUMBERS, "test_a_failed_summary_is_replaced_by_an_extractive_one_only_if_configured"),
    "limit_seconds": (_NUMBERS, "test_a_compaction_has_the_configured_timeout"),
}
_COUNTER = {
    "enabled": (_NUMBERS, "test_without_a_counter_the_window_is_left_to_the_provider"),
    "backend": (_NUMBERS, "test_the_configured_backend_counts"),
    "cache_capacity": (_NUMBERS, "test_the_configured_number_of_counts_is_cached"),
    "use_endpoint": (_NUMBERS, "test_a_counting_endpoint_is_used_only_if_enabled"),
    "timeout_ms": (_NUMBERS, "test_a_counting_endpoint_has_the_configured_timeout"),
}
_WORKSPACE = {
    "enabled": (_NUMBERS, "test_files_are_cached_only_if_enabled"),
    "watch_debounce_ms": (_NUMBERS, "test_a_changed_file_is_read_after_the_configured_delay"),
    "max_age_seconds": (_NUMBERS, "test_files_are_read_again_after_the_configured_age"),
}
_PRICES = "test_calls_are_priced_by_configured_prices"
_CACHE_PRICES = "test_cache_reads_and_writes_are_priced_by_configured_prices"
_COST = {
    "caps[].scope": (_NUMBERS, "test_session_and_day_caps_add_up_over_calls"),
    "caps[].dollars": (_NUMBERS, "test_caps_reject_the_calls_they_are_configured_for"),
    "caps[].agent": (_NUMBERS, "test_caps_reject_the_calls_they_are_configured_for"),
    "caps[].unknown": (_NUMBERS, "test_caps_reject_the_calls_they_are_configured_for"),
    "caps[].warn_at": (_SERVER, "test_a_cap_warns_from_the_configured_share"),
    "allow_fields": (_NUMBERS, "test_a_field_of_unknown_cost_passes_a_cap_only_if_allowed"),
    "min_output_tokens": (_NUMBERS, "test_the_output_limit_is_lowered_to_fit_a_cap_down_to_the_minimum"),
    **{f"prices[].{key}": (_NUMBERS, _PRICES) for key in ("model", "provider", "since", "input", "output")},
    **{f"prices[].{key}": (_NUMBERS, _PRICES) for key in ("discount", "tiers", "tiers[].over_tokens")},
    **{f"prices[].{key}": (_NUMBERS, _CACHE_PRICES) for key in ("cached_read", "write_5m", "write_1h")},
    "prices[].reasoning": (_NUMBERS, "test_reasoning_is_priced_by_configured_prices"),
    **{
        f"prices[].tiers[].{key}": (_NUMBERS, "test_a_service_tier_has_its_own_prices")
        for key in ("input", "output", "cached_read", "write_5m", "write_1h", "reasoning")
    },
}
_SERVERS = {
    "host": (_SERVER, "test_the_gateway_uses_the_configured_address_and_store"),
    "admin_keys": ("test_web_authorization.py", "test_an_admin_key_and_loopback_see_all_agents"),
    "port": (_SERVER, "test_the_gateway_uses_the_configured_address_and_store"),
    "workers": ("test_serve_workers.py", "test_both_workers_serve_requests"),
    "body_limit_bytes": (_SERVER, "test_requests_above_a_server_limit_are_rejected"),
    "body_memory_bytes": (_SERVER, "test_all_bodies_together_stay_within_the_configured_memory"),
    "body_timeout_seconds": (_SERVER, "test_a_body_must_arrive_within_the_configured_time"),
    "max_messages": (_SERVER, "test_requests_above_a_server_limit_are_rejected"),
    "max_tools": (_SERVER, "test_requests_above_a_server_limit_are_rejected"),
    "max_depth": (_SERVER, "test_requests_above_a_server_limit_are_rejected"),
    "timeouts.connect_seconds": (_SERVER, "test_a_connection_has_the_configured_timeout"),
    "timeouts.idle_seconds": (_SERVER, "test_an_upstream_has_the_configured_timeout"),
    "timeouts.total_seconds": (_SERVER, "test_an_upstream_has_the_configured_timeout"),
    "timeouts.keep_alive_seconds": (_SERVER, "test_an_unused_connection_is_closed_after_the_configured_time"),
    "proxy": (_PROXY, "test_requests_use_the_configured_proxy"),
    "tls.certificate": ("test_serve_tls.py", "test_official_clients_that_trust_the_certificate_get_responses"),
    "tls.key": ("test_serve_tls.py", "test_official_clients_that_trust_the_certificate_get_responses"),
    "cors_origins": (_SERVER, "test_pages_of_listed_origins_may_send_requests"),
    "host_names": (_SERVER, "test_a_gateway_on_loopback_accepts_listed_host_names"),
    "grace_seconds": (
        "test_serve_shutdown.py",
        "test_requests_in_flight_are_interrupted_after_the_grace_period",
    ),
    "log": (_SERVER, "test_the_log_is_written_as_configured"),
    "log_level": (_SERVER, "test_the_log_is_written_as_configured"),
    "opentelemetry": (
        "test_observability_otel.py",
        "test_calls_are_sent_to_a_collector_once_it_is_enabled",
    ),
    "page": (_SERVER, "test_the_gateways_pages_are_shown_only_if_enabled"),
}
_UPSTREAMS = {
    "base_url": (
        _SETTINGS,
        "test_an_upstreams_base_url_is_where_requests_go_with_or_without_a_version",
    ),
    "api": (_SETTINGS, "test_requests_use_the_api_format_of_the_upstream"),
    "provider": (_SETTINGS, "test_the_provider_of_an_upstream_decides_its_cache_rules"),
    "key_variable": (_SETTINGS, "test_an_upstreams_key_is_read_from_its_variable"),
    "deployments": (_SETTINGS, "test_a_deployment_maps_to_its_configured_model"),
    "threads": (_SETTINGS, "test_message_threads_are_stored_rejected_or_forwarded_as_configured"),
    "allow": (_SERVER, "test_the_gateways_key_is_used_only_where_allowed"),
    "reuse": (_SERVER, "test_connections_to_an_upstream_are_reused_only_if_enabled"),
    "sign": (_SERVER, "test_requests_to_bedrock_are_signed_only_if_configured"),
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
            "test_requests_are_stored_only_if_enabled_and_within_days_and_bytes",
        )
        for key in ("enabled", "days", "most_bytes")
    },
    "routes": (_SETTINGS, "test_requests_are_routed_by_model_and_renamed"),
    **{
        f"routes[].{key}": (_SETTINGS, "test_requests_are_routed_by_model_and_renamed")
        for key in ("models", "upstream", "model")
    },
    **{f"server.{key}": test for key, test in _SERVERS.items()},
    "store.url": (_SERVER, "test_the_gateway_uses_the_configured_address_and_store"),
    "store.keep_days": (_SERVER, "test_sessions_unused_for_the_configured_days_are_deleted"),
    "upstreams": _UPSTREAMS["api"],
    **{f"upstreams.*.{key}": test for key, test in _UPSTREAMS.items()},
}
"""Test file in this folder and test of each setting, by its path in the golden file."""

_KEYS = ("ANTHROPIC", "OPENAI", "OPENROUTER", "DEEPSEEK", "NVIDIA", "GEMINI")
_CHANGES_REQUEST = (_SERVER, "test_environment_variables_change_the_sent_request")
_REMOVES_SECTIONS = (_SERVER, "test_environment_variables_remove_sections")
VARIABLES: dict[str, tuple[str, str]] = {
    **{f"{name}_API_KEY": (_SERVER, "test_keys_of_upstreams_come_from_their_variables") for name in _KEYS},
    "ANTHROPIC_BASE_URL": ("test_status.py", "test_the_documented_commands_print_a_line"),
    "ANTHROPIC_CACHE_BETA": _CHANGES_REQUEST,
    "CONTEXT_LOG_LIMIT": _CHANGES_REQUEST,
    "CONTEXT_MAX_TOKENS": _REMOVES_SECTIONS,
    "CONTEXT_SEMANTIC_THRESHOLD": (
        _SERVER,
        "test_a_variable_sets_the_minimum_similarity_of_notes",
    ),
    "DEADLINE_WARNING_MINUTES": _CHANGES_REQUEST,
    "FORWARDED_ALLOW_IPS": (
        "test_web_access.py",
        "test_the_page_shows_the_public_address_behind_a_proxy",
    ),
    "ALL_PROXY": (_PROXY, "test_requests_use_the_proxy_of_the_environment"),
    "HTTPS_PROXY": (_PROXY, "test_requests_use_the_proxy_of_the_environment"),
    "HTTP_PROXY": (_PROXY, "test_upstreams_are_reached_directly_as_the_environment_says"),
    "NO_PROXY": (_PROXY, "test_upstreams_are_reached_directly_as_the_environment_says"),
    "FOVEATE_HOME": (_SERVER, "test_variables_set_the_store_and_the_data_folder"),
    "FOVEATE_METRICS": ("test_observability.py", "test_every_worker_shows_the_metrics_of_all_workers"),
    "FOVEATE_RUN_URL": ("test_run.py", "test_pi_is_given_its_address_by_a_variable"),
    "FOVEATE_STORE": (_SERVER, "test_variables_set_the_store_and_the_data_folder"),
    "TIME_AWARENESS": _REMOVES_SECTIONS,
    "TIME_FORMAT": _CHANGES_REQUEST,
}
"""The same for environment variables."""

SYSTEM_VARIABLES = frozenset(
    ("COLUMNS", "HOME", "NO_COLOR", "PATH", "TERM", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
)
"""Variables that every terminal program follows; not settings of Foveate."""
