"""One of several processes that serve at one socket: run as a module, it does as its standard input says.

The first line there is an order; where it ends, the worker does too, so it never outlives its parent.
"""

import logging
import os
import socket
import sys
from pathlib import Path

import msgspec

from foveate.errors import FoveateError
from foveate.gateway.serving import live_choices, serve, start_logging
from foveate.gateway.workers import READY, Order

_LOG = logging.getLogger(__name__)


def main() -> None:
    """Serve until somebody ends it."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    environment = dict(os.environ)
    try:
        path = Path(order.config) if order.config else None
        usual = [Path(place) for place in order.usual]
        choices = live_choices(path, environment, order.flags, usual=usual, held=order.held, tells=False)
        now = choices.now()
        start_logging(now.made.settings.server)
        if now.problem is not None:
            _LOG.error("worker %d goes by what held before: %s", order.number, now.problem)
        serve(
            socket.socket(fileno=order.descriptor),
            choices,
            environment,
            ready=_tell,
            lifeline=sys.stdin.fileno(),
            forgets=order.number == 0,
        )
    except FoveateError as error:
        sys.stderr.write(f"foveate: worker {order.number}: {error}\n")
        sys.exit(1)


def _tell() -> None:
    os.write(sys.stdout.fileno(), READY)


if __name__ == "__main__":
    main()
