"""A prefix of paths that names a run of an agent, for agents that cannot send headers of ours.

`foveate run` gives an agent the base URL `http://127.0.0.1:8090/run/RUN/AGENT`. The prefix names, and never
authorises: AGENT counts as if it were in `x-foveate-agent`. The ids of a run's requests start with RUN, so that
its calls are found in the ledger. Sessions do not depend on it: a run may have several (sub-agents, a new
conversation), and a conversation may continue in another run. In files of agents, RUN is `NO_RUN`: such an
address names only the agent.
"""

import re
import secrets
from dataclasses import dataclass

_RUN_CHARS = 16
NO_RUN = "0" * _RUN_CHARS
# Shorter than a gateway key, which must not be in a path.
_MAX_AGENT_CHARS = 32
_AGENT = re.compile(rf"[0-9A-Za-z][0-9A-Za-z._-]{{0,{_MAX_AGENT_CHARS - 1}}}")
_OTHER_CHARS = re.compile(r"[^0-9A-Za-z._-]+")
_PREFIX = re.compile(rf"/run/([0-9a-f]{{{_RUN_CHARS}}})/({_AGENT.pattern})(?=/)")


@dataclass(frozen=True, slots=True)
class RunPrefix:
    run: str
    agent: str

    def __str__(self) -> str:
        return f"/run/{self.run}/{self.agent}"


def parse_run_prefix(path: str) -> RunPrefix | None:
    """Parse the prefix of a path that is not decoded yet; None if it has none."""
    match = _PREFIX.match(path)
    return None if match is None else RunPrefix(match[1], match[2])


def new_run(agent: str) -> RunPrefix:
    """Start a run with an id of its own. Characters that a path cannot contain are left out of the name."""
    name = _OTHER_CHARS.sub("-", agent).lstrip("._-")[:_MAX_AGENT_CHARS]
    return RunPrefix(secrets.token_hex(_RUN_CHARS // 2), name or "agent")


def make_request_id(random_bits: int, run: str = "") -> str:
    """Return the id of a request from 128 random bits, of which a run replaces the first 64."""
    run = "" if run == NO_RUN else run
    return f"req_{run}{f'{random_bits:032x}'[len(run) :]}"


def request_id_prefix(run: str) -> str:
    return f"req_{run}"
