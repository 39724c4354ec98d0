"""Runs of the gateway with several configurations through a session."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from foveate.compaction.tool_results import TOOL_RESULT_MAX_PCT
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions
from foveate.model import Format
from foveate.replay.simulator.abbreviated_prompt import AbbreviatedPrompts
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, AdaptiveRun
from foveate.replay.simulator.cost_policy import make_edit_policy
from foveate.replay.simulator.editing_run import (
    EditingRun,
    SimulatedCall,
    SimulatedSummary,
    context_window_tokens,
)
from foveate.replay.simulator.keep_alives import SimulatedKeepAlive
from foveate.replay.simulator.reconstruct import ReconstructedCall, find_rates
from foveate.replay.simulator.tool_results import ResultTruncation


class GatewayRun:
    """The gateway with one configuration. It may share `adaptive` with others, until the first edit."""

    def __init__(
        self,
        adaptive: AdaptiveRun,
        editing: EditingRun | None = None,
        truncation: ResultTruncation | None = None,
    ) -> None:
        self._adaptive = adaptive
        self._editing = editing
        self._truncation = truncation

    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        if self._truncation is not None:
            call = self._truncation.apply(call, context_window_tokens(call.call.model, None))
        if self._editing is not None:
            return self._editing.simulate(call)
        return SimulatedCall(usage=self._adaptive.serve(call)[0].usage)

    def last_summaries(self) -> Iterator[tuple[ReconstructedCall, SimulatedSummary]]:
        """The summaries that are written after the last call, with the call before each."""
        return self._editing.finish() if self._editing is not None else iter(())

    def finish(self) -> Sequence[SimulatedKeepAlive]:
        """End the session, and return all keep-alive requests that were sent in it."""
        return (self._editing.adaptive if self._editing is not None else self._adaptive).finish()


def start_gateway_runs(
    configurations: Iterable[AgentOptions], book: PriceBook, *, api_format: Format
) -> list[GatewayRun]:
    """Start the gateway with each of these configurations at the beginning of a session.

    As in `start_runs`, they share work, and all must receive the same calls in turn. Configurations that differ
    only in compaction are the same run until the first compaction. Unlike the policies, they send keep-alive
    requests and truncate tool results.
    """
    abbreviated = AbbreviatedPrompts()
    shared: list[tuple[AgentOptions, AdaptiveRun]] = []
    runs = []
    for options in configurations:
        if options.compacts and options.tool_result_max_pct != TOOL_RESULT_MAX_PCT:
            adaptive = AdaptiveRun(AbbreviatedPrompts(), options, options.keep_alive)
            truncation = ResultTruncation(options.tool_result_max_pct)
            runs.append(GatewayRun(adaptive, _start_editing(adaptive, options, book, api_format), truncation))
            continue
        uncompacted = dataclasses.replace(
            options,
            compaction=False,
            compaction_options=DEFAULT_GATEWAY.compaction_options,
            trigger=DEFAULT_GATEWAY.trigger,
            clearing=DEFAULT_GATEWAY.clearing,
            tool_result_max_pct=TOOL_RESULT_MAX_PCT,
        )
        known = next((run for other, run in shared if other == uncompacted), None)
        if known is None:
            known = AdaptiveRun(abbreviated, uncompacted, options.keep_alive)
            shared.append((uncompacted, known))
        runs.append(
            GatewayRun(
                known,
                _start_editing(known, options, book, api_format)
                if options.compacts or options.clears
                else None,
            )
        )
    return runs


def _start_editing(
    adaptive: AdaptiveRun, options: AgentOptions, book: PriceBook, api_format: Format
) -> EditingRun:
    return EditingRun(
        adaptive,
        make_edit_policy(options, partial(find_rates, book)),
        api_format=api_format,
        window_tokens=None,
        options=options.compaction_options,
    )
