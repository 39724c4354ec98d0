"""Labels stay few and short, whatever clients send."""

from foveate.context.workspace_cache import WorkspaceCacheStats
from foveate.engine.metrics.collector import MetricsCollector
from foveate.engine.metrics.labels import MAX_LABEL_CHARS, OTHER, CardinalityLimiter


def test_what_is_long_or_too_many_is_one_value() -> None:
    few = CardinalityLimiter(["known " * 40], max_values=2)

    assert few.label("a" * (MAX_LABEL_CHARS + 1)) == OTHER
    assert few.label("known " * 40) == "known " * 40
    assert [few.label(name) for name in "abca"] == ["a", "b", OTHER, "a"]


def test_a_workspace_is_shown_by_its_path_however_long_that_is() -> None:
    """Defect: paths of more than 80 letters were all the same."""
    metrics = MetricsCollector(version="1", clock=lambda: 0.0)
    root = "/home/ana/" + "projects/" * 30 + "workspace"
    metrics.set_workspace_counts({root: WorkspaceCacheStats(hits=1, misses=2, invalidations=3)})

    assert root in {value for sample in metrics.samples() for value in sample.labels}
