"""`penstock transcript`: run transcripts of windows, triggers and lateness, and print what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.options import Data, Json, need_spark, show_json
from penstock.profile import load

EXAMPLES = "Example: penstock transcript tests/transcripts/*.yaml   •   penstock transcript late.yaml --on spark"


def transcript(
    files: Annotated[list[Path], typer.Argument(help="YAML files with transcripts.", show_default=False)],
    on: Annotated[Literal["simulator", "spark"], typer.Option("--on", help="The test host (milliseconds) or the real engine.")] = "simulator",
    data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Run transcripts. Exit code 1 if one fails."""
    need_spark()
    from penstock.testing.transcript import run_files

    report = run_files(files, on=on, profile=load("local", data=data))
    show_json(report.to_json()) if json else print(report.text())
    if not report.passed:
        raise typer.Exit(1)
