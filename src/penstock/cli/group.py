"""`penstock group`: consumer groups, their members, their lag, and moving their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import TIMEOUT_S, Address, ConfigFile, Json, ProfileName, admin, connect, settle, show, show_json
from penstock.cli.records import milliseconds
from penstock.cli.topic import known, offsets
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="List, describe, reset and delete consumer groups; show their lag.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The group.")]


@app.command("list", epilog="Example: penstock group list")
def list_(profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False) -> None:
    """List groups and their states."""
    client = admin(*connect(profile, config, broker))
    listing = client.list_consumer_groups(request_timeout=TIMEOUT_S).result()
    rows: list[dict[str, object]] = [
        {"group": entry.group_id, "state": entry.state.name.lower()}
        for entry in sorted(listing.valid, key=lambda entry: str(entry.group_id))
    ]
    show(rows, columns=("group", "state"), empty="no groups", as_json=json)


@app.command(epilog="Example: penstock group describe dashboard")
def describe(name: Name, profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False) -> None:
    """Show a group's members and what is assigned to them."""
    client = admin(*connect(profile, config, broker))
    found = _described(client, name)
    members: list[dict[str, object]] = [
        {
            "member": member.member_id, "client": member.client_id, "host": member.host, "instance": member.group_instance_id,
            "partitions": ", ".join(f"{place.topic}:{place.partition}" for place in member.assignment.topic_partitions),
        }
        for member in found.members
    ]  # fmt: skip
    if json:
        show_json({"group": name, "state": found.state.name.lower(), "assignor": found.partition_assignor, "members": members})
        return
    print(f"{name}: {found.state.name.lower()}" + (f", {found.partition_assignor}" if found.partition_assignor else ""))
    show(members, columns=("member", "client", "host", "instance", "partitions"), empty="no members", as_json=False)


@app.command(epilog="Example: penstock group lag dashboard --json")
def lag(name: Name, profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False) -> None:
    """Show how far a group is behind, partition by partition."""
    client = admin(*connect(profile, config, broker))
    committed = _committed(client, name)
    rows: list[dict[str, object]] = []
    for topic in sorted({place.topic for place in committed}):
        places = {place.partition: place.offset for place in committed if place.topic == topic}
        for partition, (_, end) in sorted(offsets(client, topic, sorted(places)).items()):
            rows.append(
                {"topic": topic, "partition": partition, "committed": places[partition], "end": end, "lag": end - places[partition]}
            )
    show(rows, columns=("topic", "partition", "committed", "end", "lag"), empty=f"group '{name}' has committed nothing", as_json=json)


@app.command(epilog="Example: penstock group reset dashboard views --to earliest")
def reset(
    name: Name,
    topic: Annotated[str, typer.Argument(help="The topic.")],
    to: Annotated[str, typer.Option("--to", help="earliest, latest, an offset, or a time (ISO 8601).")],
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False,
) -> None:  # fmt: skip
    """Move a group that has no members to another place in a topic."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    client = admin(*connect(profile, config, broker))
    partitions = sorted(known(client, topic).partitions)
    spans = offsets(client, topic, partitions)
    targets = _targets(client, topic, spans, to)
    request = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, index, offset) for index, offset in targets.items()])
    result = settle(client.alter_consumer_group_offsets([request]), "reset group")[name]
    if failed := [place for place in result.topic_partitions if place.error]:
        raise PenstockError(f"cannot reset group '{name}': {failed[0].error.str()}", remedy="stop its members first")
    rows: list[dict[str, object]] = [{"topic": topic, "partition": index, "offset": offset} for index, offset in targets.items()]
    show(rows, columns=("topic", "partition", "offset"), empty="", as_json=json)


@app.command(epilog="Example: penstock group delete dashboard")
def delete(name: Name, profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, json: Json = False) -> None:
    """Forget a group that has no members, and its offsets."""
    client = admin(*connect(profile, config, broker))
    settle(client.delete_consumer_groups([name]), "delete group")
    show_json({"group": name, "deleted": True}) if json else print(f"deleted {name}")


def _described(client: AdminClient, name: str) -> Any:
    found = settle(client.describe_consumer_groups([name]), "describe group")[name]
    if found.state.name.lower() == "dead":
        raise PenstockError(f"there is no group '{name}'", remedy="see 'penstock group list'")
    return found


def _committed(client: AdminClient, name: str) -> list[Any]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    answer = settle(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]), "read offsets of group")[name]
    return [place for place in answer.topic_partitions if place.offset >= 0]


def _targets(client: AdminClient, topic: str, spans: dict[int, tuple[int, int]], to: str) -> dict[int, int]:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    if to == "earliest":
        return {index: start for index, (start, _) in spans.items()}
    if to == "latest":
        return {index: end for index, (_, end) in spans.items()}
    if to.isdigit():
        if outside := [index for index, (start, end) in spans.items() if not start <= int(to) <= end]:
            start, end = spans[outside[0]]
            raise ConfigError(f"offset {to} is outside partition {outside[0]} of '{topic}'", remedy=f"it holds {start} to {end}")
        return dict.fromkeys(spans, int(to))
    wanted = {TopicPartition(topic, index): OffsetSpec.for_timestamp(milliseconds(to)) for index in spans}
    found = settle(client.list_offsets(wanted), "read offsets of")
    return {place.partition: result.offset if result.offset >= 0 else spans[place.partition][1] for place, result in found.items()}
