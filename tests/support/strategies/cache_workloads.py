"""Workloads of one agent for property tests: several regimes in a row, each with its own pace."""

from dataclasses import dataclass

from hypothesis import strategies as st

from benchmarks.cache_workloads import Builder, Workload

# Seconds between the first requests of conversations that start together.
_BURST_SECONDS = 1.0

_Texts = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Behaviour of an agent for a while. Sizes are in tokens, `gap` and `between` are mean seconds.

    `parallel` lanes run conversations of up to `turns` requests, or of one with probability `single_share`.
    With `is_in_step`, the lanes start their conversations together. With `has_clock`, the system prompt differs
    in every request; with `changes_tools`, the tools differ in every third. With `is_return`, prompts of an
    earlier regime are used.
    """

    calls: int
    tools: int = 0
    system: int = 0
    examples: int = 0
    first: int = 2048
    parallel: int = 1
    is_in_step: bool = False
    single_share: float = 0.0
    turns: int = 2
    has_clock: bool = False
    changes_tools: bool = False
    growth: int = 512
    gap: float = 20.0
    between: float = 30.0
    is_return: bool = False


regimes = st.builds(
    Regime,
    calls=st.integers(10, 80),
    tools=st.sampled_from((0, 1024, 8192)),
    system=st.sampled_from((0, 512, 2048, 8192)),
    examples=st.sampled_from((0, 0, 4096)),
    first=st.sampled_from((64, 256, 2048, 16384)),
    parallel=st.sampled_from((1, 2, 3, 5, 8, 12)),
    is_in_step=st.booleans(),
    single_share=st.sampled_from((0.0, 0.2, 0.5, 0.8, 1.0)),
    turns=st.integers(2, 12),
    has_clock=st.booleans(),
    changes_tools=st.booleans(),
    growth=st.sampled_from((64, 512, 2048)),
    gap=st.sampled_from((2.0, 20.0, 60.0, 400.0)),
    between=st.sampled_from((1.0, 30.0, 120.0, 900.0)),
    is_return=st.booleans(),
)


def generate_workload(planned_regimes: list[Regime], seed: int) -> Workload:
    """Generate the requests of these regimes.

    More than three lanes of a new regime start one after the other.
    """
    build, at = Builder(seed), 0.0
    earlier: list[tuple[_Texts, _Texts, _Texts]] = []
    for regime in planned_regimes:
        if regime.is_return and earlier:
            tools, system, examples = build.random.choice(earlier)
        else:
            tools = [build.text(regime.tools // 2) for _ in range(2)] if regime.tools else []
            system = [build.text(regime.system)] if regime.system else []
            examples = [build.text(regime.examples)] if regime.examples else []
            earlier.append((tools, system, examples))
        apart = regime.gap + 2 if regime.parallel > 3 else 0.0
        lanes = [at + number * apart for number in range(regime.parallel)]
        calls = conversations = 0
        while calls < regime.calls:
            lane = min(range(len(lanes)), key=lanes.__getitem__)
            if regime.is_in_step and conversations and conversations % len(lanes) == 0:
                lanes, lane = [max(lanes) + number * _BURST_SECONDS for number in range(len(lanes))], 0
            conversations += 1
            session, messages = build.session(), [*examples, build.text(regime.first)]
            is_single = build.random.random() < regime.single_share
            for _ in range(1 if is_single else build.random.randint(2, regime.turns)):
                if regime.has_clock and system:
                    system = [build.text(regime.system)]
                if regime.changes_tools and tools and calls % 3 == 0:
                    tools = tools[::-1] if calls % 2 else [build.text(512), *tools[1:]]
                build.call(lanes[lane], session, tools=tools, system=system, messages=messages)
                messages = [*messages, *(build.text(regime.growth) for _ in range(2))]
                lanes[lane] += build.random.expovariate(1 / regime.gap)
                calls += 1
            lanes[lane] += build.random.expovariate(1 / regime.between)
        at = max(lanes) + 1
    return build.workload()
