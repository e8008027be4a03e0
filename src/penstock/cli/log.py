"""`penstock log`: look at stored topics without a broker."""

from __future__ import annotations

import typer

app = typer.Typer(help="Check and print stored topics; the broker must not be running.", no_args_is_help=True)
