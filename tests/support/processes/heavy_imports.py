"""Run the command and print the heavy modules that it imports."""

HEAVY_IMPORTS_SCRIPT = """
import sys
from foveate.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    heavy = {"sqlalchemy", "alembic", "psycopg", "numpy", "aiohttp"}
    print(*sorted(heavy & sys.modules.keys()), file=sys.stderr)
"""
