"""The gateway of one run, as a process of its own: `python -m foveate.cli.run.gateway_child PORT [CONFIG]`.

It listens on loopback, prints its URL on standard output once it serves, and ends when its standard input is
closed, which also happens if the run is killed.
"""

import os
import sys
from pathlib import Path

from foveate.config.load import ServeFlags
from foveate.errors import CannotListen, FoveateError
from foveate.gateway.server.serve import load_live_config, serve, start_logging
from foveate.http.listening_sockets import find_listener_command, open_listening_socket, socket_url
from foveate.paths import data_folder, default_config_paths

HOST = "127.0.0.1"


def main(port: int, config: Path | None) -> None:
    environment = dict(os.environ)
    flags = ServeFlags(host=HOST, port=port, workers=1, is_plain_http=True)
    paths = () if config else default_config_paths(Path(), data_folder(environment, sys.platform))
    live_config = load_live_config(config, environment, flags, default_paths=paths)
    start_logging(live_config.current().value.settings.server)
    with open_listening_socket(HOST, port) as listener:

        def print_url() -> None:
            sys.stdout.write(f"{socket_url(listener)}\n")
            sys.stdout.close()

        serve(listener, live_config, environment, on_ready=print_url, lifeline=sys.stdin.fileno())


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    except CannotListen as error:  # only if the agent has this port in a file of its own
        finder = find_listener_command(error.port, sys.platform)
        sys.exit(
            f"foveate: {error}; end what uses it ({finder}), or change the port both in"
            " foveate.yaml (server.port) and in the settings of the agent"
        )
    except FoveateError as error:
        sys.exit(f"foveate: {error}")
