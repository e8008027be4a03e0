"""`penstock transcript`: run transcripts of windows, triggers and lateness, and print what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.options import Data, Json, need_spark, show_json
from penstock.errors import ConfigError
from penstock.profile import load

EXAMPLES = "Example: penstock transcript tests/transcripts/*.yaml   •   penstock transcript late.yaml --on spark"


def transcript(
    files: Annotated[list[Path], typer.Argument(help="YAML files with transcripts.", show_default=False)],
    on: Annotated[Literal["simulator", "spark"], typer.Option("--on", help="The test host (milliseconds) or the real engine.")] = "simulator",
    data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Run transcripts. Exit code 1 if one fails."""
    need_spark()
    from penstock.testing.judge import Host, run_files

    def host() -> Host:
        if on == "simulator":
            from penstock.testing.host import Simulator

            return Simulator()
        from penstock.testing.on_spark import SparkHost

        return SparkHost(load("local", data=data))

    if missing := [str(file) for file in files if not file.exists()]:
        raise ConfigError(f"there is no file {missing[0]}", remedy="check the path")
    report = run_files(files, host)
    if json:
        show_json(report.to_json())
    else:
        print("\n".join(report.lines()))
    if not report.ok:
        raise typer.Exit(1)
