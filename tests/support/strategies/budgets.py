"""Hypothesis strategies for budgets."""

from hypothesis import strategies as st

from foveate.budget import Budget, Keep, Ladder, Priority, SectionRule
from foveate.budget.ladder import BUILT_IN_LADDERS, CUSTOM_LADDER_NAME, Drop, LastLines, Replace, Truncate

# Valid section names: printable on one line. Some look like other YAML values.
names = st.one_of(
    st.sampled_from(
        ["logs", "no", "on", "null", "12:30", "1e3", "<<", "- a", "a: b", "#x", "🎉", "系统", "*a", "'"]
    ),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8),
)
# Everything that UTF-8 can encode, including control characters and unusual line ends.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
caps = st.integers(0, 20_000)
shares = st.floats(0, 1)

rules = st.builds(
    SectionRule,
    priority=st.none() | st.sampled_from(Priority),
    max_tokens=st.none() | caps,
    share=st.none() | shares,
    keep=st.none() | st.sampled_from(Keep),
    enabled=st.none() | st.booleans(),
)

_some_names = st.lists(names, min_size=1, max_size=3).map(tuple)
rungs = st.one_of(
    st.builds(Truncate, st.just(()) | _some_names),
    st.builds(Drop, st.just(()) | _some_names),
    st.builds(LastLines, _some_names, st.integers(1, 99)),
    st.builds(Replace, _some_names, texts),
)
ladders = st.sampled_from(list(BUILT_IN_LADDERS.values())) | st.builds(
    Ladder, st.sampled_from([CUSTOM_LADDER_NAME, "mine", "progressive"]), st.lists(rungs, max_size=3).map(tuple)
)


def budgets(sections: st.SearchStrategy[str] = names, *, min_rules: int = 0) -> st.SearchStrategy[Budget]:
    """Return a strategy for budgets with rules for some of `sections`."""
    return st.builds(
        Budget,
        total_tokens=st.none() | caps,
        output_reserve=caps,
        ladder=ladders,
        sections=st.dictionaries(sections, rules, min_size=min_rules, max_size=4),
    )


def leaves_room(budget: Budget) -> bool:
    """Return whether a budget leaves room for a prompt, as far as that is known."""
    return budget.total_tokens is None or budget.total_tokens > budget.output_reserve
