"""Labels stay few and short, whatever clients send."""

from foveate.engine.labels import MOST_LETTERS, OTHER, Few
from foveate.engine.metrics import Metrics
from foveate.prompt.workspace import WorkspaceCounts


def test_what_is_long_or_too_many_is_one_value() -> None:
    few = Few(["known " * 40], most=2)

    assert few.of("a" * (MOST_LETTERS + 1)) == OTHER
    assert few.of("known " * 40) == "known " * 40
    assert [few.of(name) for name in "abca"] == ["a", "b", OTHER, "a"]


def test_a_workspace_is_shown_by_its_path_however_long_that_is() -> None:
    """Defect: paths of more than 80 letters were all the same."""
    metrics = Metrics(version="1", clock=lambda: 0.0)
    root = "/home/ana/" + "projects/" * 30 + "workspace"
    metrics.workspaces({root: WorkspaceCounts(hits=1, misses=2, invalidations=3)})

    assert root in {value for sample in metrics.samples() for value in sample.labels}
