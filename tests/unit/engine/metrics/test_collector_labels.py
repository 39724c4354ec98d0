"""Labels are few and short, whatever clients send."""

from foveate.context.workspace_cache import WorkspaceCacheStats
from foveate.engine.metrics.collector import MAX_LABEL_CHARS, OTHER, CardinalityLimiter, MetricsCollector


def test_long_or_excessive_values_share_one_label() -> None:
    limiter = CardinalityLimiter(["known " * 40], max_values=2)

    assert limiter.label("a" * (MAX_LABEL_CHARS + 1)) == OTHER
    assert limiter.label("known " * 40) == "known " * 40
    assert [limiter.label(name) for name in "abca"] == ["a", "b", OTHER, "a"]


def test_a_workspace_has_its_path_as_label_however_long() -> None:
    """Defect: all paths of more than 80 characters had the same label."""
    metrics = MetricsCollector(version="1", clock=lambda: 0.0)
    root = "/home/ana/" + "projects/" * 30 + "workspace"
    metrics.set_workspace_counts({root: WorkspaceCacheStats(hits=1, misses=2, invalidations=3)})

    assert root in {value for sample in metrics.samples() for value in sample.labels}
