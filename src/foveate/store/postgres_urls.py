"""What the URL of a PostgreSQL database says, and how it may be shown."""

from collections.abc import Mapping

from foveate.errors import BadOption


def parse_server_url(url: str) -> Mapping[str, object]:
    """What a URL says of a server, by libpq's names; a password among it.

    Raises:
        BadOption: it is none of a PostgreSQL database.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return conninfo_to_dict(url)
    except ProgrammingError:
        # What libpq says of it would show the password.
        raise BadOption(
            "store: this is no URL of a PostgreSQL database (postgresql://user@host/name)"
        ) from None


def redact_server_url(url: str) -> str:
    """What a URL leads to, in words that may be shown: without a password."""
    parts = parse_server_url(url)
    host = f"{parts.get('host', '')}:{parts['port']}" if "port" in parts else parts.get("host", "")
    return f"postgresql://{host}/{parts.get('dbname', '')}"
