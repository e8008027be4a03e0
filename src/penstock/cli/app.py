"""The root of the command line: which commands there are. What they do stands in the files beside this one."""

from __future__ import annotations

from typing import Annotated

import typer

import penstock
from penstock.cli import broker, demo, doctor, group, kafka, log, pipeline, records, topic, transcript
from penstock.cli.options import Json, show_json

app = typer.Typer(
    name="penstock",
    help="Stream processing for Python people: a Kafka-protocol log, and the Dataflow model on Spark.",
    epilog="Start with: penstock demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
app.command("run", epilog=pipeline.RUN_EXAMPLES)(pipeline.run)
app.command("explain", epilog=pipeline.EXPLAIN_EXAMPLES)(pipeline.explain)
app.command("transcript", epilog=transcript.EXAMPLES)(transcript.transcript)
app.add_typer(topic.app, name="topic")
app.command("produce", epilog=records.PRODUCE_EXAMPLES)(records.produce)
app.command("consume", epilog=records.CONSUME_EXAMPLES)(records.consume)
app.add_typer(group.app, name="group")
app.add_typer(broker.app, name="broker")
app.add_typer(kafka.app, name="kafka")
app.add_typer(log.app, name="log")
app.command("doctor")(doctor.doctor)


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        show_json({"penstock": penstock.__version__})
    else:
        print(f"penstock {penstock.__version__}")


@app.callback()
def root(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False) -> None:
    if show_version:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit
