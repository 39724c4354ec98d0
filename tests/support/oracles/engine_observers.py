"""Observers of the engine that record its reports."""

from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver
from foveate.engine.request import IncomingRequest, StepFailure


class StepObserver(NullObserver):
    """Records the names of steps, and failures."""

    def __init__(self) -> None:
        self.problems: list[StepFailure] = []
        self.steps: list[str] = []

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        self.problems.append(problem)

    def on_step(self, step: str, seconds: float) -> None:
        self.steps.append(step)


class EventObserver(NullObserver):
    """Records every report as a line of text."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        self.events.append(f"{problem.step} failed: {problem.reason}")

    def on_step(self, step: str, seconds: float) -> None:
        self.events.append(f"{step} took {seconds:g}")

    def on_finished(self, exchange: Exchange) -> None:
        self.events.append(f"ended with {exchange.status}")
