"""`penstock log`: look at stored topics without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import Json, show, show_json

app = typer.Typer(help="Check and print stored topics; the broker must not be running.", no_args_is_help=True)
