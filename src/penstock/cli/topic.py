"""`penstock topic`: create, list, describe, alter and delete topics, on any broker that speaks the Kafka protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import TIMEOUT_S, Address, ConfigFile, Json, ProfileName, admin, connect, settings, settle, show, show_json
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The topic.")]


@app.command(epilog="Example: penstock topic create page-views --partitions 4 --set retention.ms=86400000")
def create(
    name: Name,
    partitions: Annotated[int, typer.Option("--partitions", "-n", min=1)] = 1,
    replication: Annotated[int, typer.Option("--replication", min=1, help="Copies; more than 1 needs a Kafka cluster.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A topic setting, name=value; may be repeated.")] = None,
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False,
) -> None:  # fmt: skip
    """Create a topic."""
    from confluent_kafka.admin import NewTopic

    client = admin(*connect(profile, config, broker))
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=settings(set_ or []))
    settle(client.create_topics([topic]), "create topic")
    show_json({"topic": name, "partitions": partitions}) if json else print(f"created {name} with {partitions} partition(s)")


@app.command("list", epilog="Example: penstock topic list --json")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics (their names begin with _) too.")] = False,
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False,
) -> None:  # fmt: skip
    """List topics."""
    client = admin(*connect(profile, config, broker))
    topics = client.list_topics(timeout=TIMEOUT_S).topics
    rows: list[dict[str, object]] = [
        {"topic": name, "partitions": len(topics[name].partitions)} for name in sorted(topics) if internal or not name.startswith("_")
    ]
    show(rows, columns=("topic", "partitions"), empty="no topics yet; make one with 'penstock topic create NAME'", as_json=json)


@app.command(epilog="Example: penstock topic describe alarms")
def describe(name: Name, profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False) -> None:
    """Show a topic's partitions, offsets and settings."""
    from confluent_kafka.admin import ConfigResource

    address, security = connect(profile, config, broker)
    client = admin(address, security)
    topic = known(client, name)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    configs = settle(client.describe_configs([resource]), "describe topic")[resource]
    ends = offsets(client, name, sorted(topic.partitions))
    rows: list[dict[str, object]] = [
        {
            "partition": index, "start": ends[index][0], "end": ends[index][1], "records": ends[index][1] - ends[index][0],
            "leader": topic.partitions[index].leader, "replicas": ",".join(map(str, topic.partitions[index].replicas)),
        }
        for index in sorted(topic.partitions)
    ]  # fmt: skip
    changed = {entry.name: entry.value for entry in configs.values() if not entry.is_default}
    if json:
        show_json({"topic": name, "partitions": rows, "settings": {entry.name: entry.value for entry in configs.values()}})
        return
    show(rows, columns=("partition", "start", "end", "records", "leader", "replicas"), empty="", as_json=False)
    print("settings: " + (", ".join(f"{key}={value}" for key, value in sorted(changed.items())) or "all at their defaults"))


@app.command(epilog="Example: penstock topic alter page-views --partitions 8 --set cleanup.policy=compact")
def alter(
    name: Name,
    partitions: Annotated[int | None, typer.Option("--partitions", "-n", min=1, help="The new total; it can only grow.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A topic setting, name=value; may be repeated.")] = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", help="Back to the default; may be repeated.")] = None,
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False,
) -> None:  # fmt: skip
    """Add partitions to a topic, or change its settings."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

    client = admin(*connect(profile, config, broker))
    known(client, name)
    if partitions is not None:
        settle(client.create_partitions([NewPartitions(name, partitions)]), "add partitions to")
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings(set_ or []).items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset or []]
    if entries:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        settle(client.incremental_alter_configs([resource]), "alter topic")
    show_json({"topic": name, "altered": True}) if json else print(f"altered {name}")


@app.command(epilog="Example: penstock topic delete page-views --yes")
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False,
) -> None:  # fmt: skip
    """Delete a topic and its records."""
    client = admin(*connect(profile, config, broker))
    known(client, name)
    if not yes and not json:
        typer.confirm(f"Delete topic '{name}' and all its records?", abort=True)
    settle(client.delete_topics([name]), "delete topic")
    show_json({"topic": name, "deleted": True}) if json else print(f"deleted {name}")


def known(client: AdminClient, name: str) -> Any:
    """The topic's metadata; a name that is not there is told with the nearest one that is."""
    import difflib

    topics = client.list_topics(timeout=TIMEOUT_S).topics
    if name in topics:
        return topics[name]
    close = difflib.get_close_matches(name, topics, n=1)
    raise PenstockError(
        f"there is no topic '{name}'", remedy=f"did you mean '{close[0]}'?" if close else f"create it with 'penstock topic create {name}'"
    )


def offsets(client: AdminClient, name: str, partitions: list[int]) -> dict[int, tuple[int, int]]:
    """First and next offset of each partition."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    where = [TopicPartition(name, index) for index in partitions]
    starts = settle(client.list_offsets({partition: OffsetSpec.earliest() for partition in where}), "read offsets of")
    ends = settle(client.list_offsets({partition: OffsetSpec.latest() for partition in where}), "read offsets of")
    first = {partition.partition: result.offset for partition, result in starts.items()}
    return {partition.partition: (first[partition.partition], result.offset) for partition, result in ends.items()}
