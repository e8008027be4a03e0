"""The `penstock` command. Heavy libraries load inside the commands that need them: `penstock --help` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; a `PenstockError` becomes one line on standard error and its exit code."""
    from penstock.cli.app import app
    from penstock.errors import PenstockError

    try:
        app()
    except PenstockError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
