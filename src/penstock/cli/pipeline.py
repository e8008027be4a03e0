"""`penstock run` and `penstock explain`: a pipeline file, here or on a cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.broker import writable
from penstock.cli.options import Address, ConfigFile, Data, Json, ProfileName, admin, broker_address, need_spark, settle, show_json
from penstock.cli.topic import known
from penstock.profile import Profile, load

if TYPE_CHECKING:
    from penstock.dataflow.pipeline import Pipeline

RUN_EXAMPLES = "Example: penstock run app.py   •   penstock run app.py --profile cluster   •   penstock run app.py --until-caught-up"
EXPLAIN_EXAMPLES = "Example: penstock explain app.py   •   penstock explain app.py --mermaid"
File = Annotated[Path, typer.Argument(help="A Python file that builds a pipeline.", show_default=False)]
PROGRESS_S = 1.0


def run(
    file: File,
    name: Annotated[str | None, typer.Option("--name", help="The job's name; its checkpoint is kept under it. Default: the file's name.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the checkpoint and begin anew.")] = False,
    until_caught_up: Annotated[bool, typer.Option("--until-caught-up", help="Process what is in the topics now, close all windows, and end.")] = False,
    spark: Annotated[str | None, typer.Option("--spark", help="Spark master, e.g. spark://host:7077.")] = None,
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Run a pipeline until Ctrl-C, or until it has caught up."""
    need_spark()
    settings = load(profile, file=config, broker=broker, data=data, spark=spark)
    from dataclasses import replace

    from penstock.dataflow.load import load_pipeline

    pipeline = load_pipeline(file)
    settings = replace(settings, broker=broker_address(settings))
    writable(settings.data)
    _check_topics(pipeline, settings)
    from penstock.spark.run import run as run_pipeline

    running = run_pipeline(pipeline, settings, name=name or file.stem, fresh=fresh, bounded=until_caught_up)
    try:
        if not json:
            print(f"running {file} on {settings.spark}; Spark's page: {running.ui}; Ctrl-C stops it")
        while not running.ended:
            running.check()
            time.sleep(PROGRESS_S / 5)
        running.check()
    except KeyboardInterrupt:
        print("stopping")
    finally:
        running.stop()
    totals = running.totals()
    show_json(totals) if json else print(", ".join(f"{key} {value}" for key, value in sorted(totals.items())))


def _check_topics(pipeline: Pipeline, profile: Profile) -> None:
    """Before Spark starts: the topics that are read are there, and keep records as long as the windows need them."""
    from confluent_kafka.admin import ConfigResource

    from penstock.dataflow import plan, review

    client = admin(str(profile.broker), profile.security)
    topics = sorted({topic for node in plan.walk(pipeline.sinks) if isinstance(node, plan.Read) for topic in node.topics})
    for topic in topics:
        known(client, topic)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    found = settle(client.describe_configs(resources), "describe topic") if resources else {}
    kept_ms = {resource.name: int(entries["retention.ms"].value) for resource, entries in found.items()}
    review.check_retention(pipeline.sinks, {topic: None if value < 0 else value * 1000 for topic, value in kept_ms.items()})


def explain(
    file: File, mermaid: Annotated[bool, typer.Option("--mermaid", help="Draw the plan as a Mermaid diagram.")] = False, json: Json = False
) -> None:
    """Print the logical and the physical plan, with the reason for each choice."""
    need_spark()
    from penstock.dataflow.load import load_pipeline

    pipeline = load_pipeline(file)
    if mermaid:
        print(pipeline.mermaid())
    elif json:
        print(pipeline.to_json())
    else:
        from penstock.planner.explain import explain as explained

        print(explained(pipeline))
