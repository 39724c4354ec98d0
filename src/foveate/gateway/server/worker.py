"""A worker process. Run as a module, it reads its order from standard input.

The first line is the order. The worker ends when its standard input does, so it never outlives the supervisor.
"""

import logging
import os
import socket
import sys
from pathlib import Path

import msgspec

from foveate.errors import FoveateError
from foveate.gateway.server.balancing import ConnectionCounts
from foveate.gateway.server.broadcast import WorkerBroadcast
from foveate.gateway.server.serve import load_live_config, serve, start_logging
from foveate.gateway.server.supervisor import READY_MESSAGE, WorkerOrder

_LOG = logging.getLogger(__name__)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerOrder)
    environment = dict(os.environ)
    try:
        path = Path(order.config) if order.config else None
        default_paths = [Path(place) for place in order.default_paths]
        live_config = load_live_config(
            path,
            environment,
            order.flags,
            default_paths=default_paths,
            last_valid=order.last_valid,
            logs_changes=False,
        )
        current = live_config.current()
        start_logging(current.value.settings.server)
        if current.problem is not None:
            _LOG.error(
                "worker %d: new configuration is invalid, keeping the previous one: %s",
                order.number,
                current.problem,
            )
        serve(
            socket.socket(fileno=order.descriptor),
            live_config,
            environment,
            on_ready=_report_ready,
            lifeline=sys.stdin.fileno(),
            worker=order.number,
            counts=ConnectionCounts(order.counts_descriptor),
            broadcast=WorkerBroadcast(order.broadcast_descriptor, order.number),
        )
    except FoveateError as error:
        sys.stderr.write(f"foveate: worker {order.number}: {error}\n")
        sys.exit(1)


def _report_ready() -> None:
    os.write(sys.stdout.fileno(), READY_MESSAGE)


if __name__ == "__main__":
    main()
