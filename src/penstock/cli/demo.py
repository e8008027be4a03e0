"""`penstock demo`: the fire alarm, from nothing to an alarm."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.broker import writable
from penstock.cli.options import Address, ConfigFile, Data, Json, ProfileName, need_spark, show_json
from penstock.errors import ConfigError
from penstock.profile import load

EXAMPLES = "Example: penstock demo   •   penstock demo --seconds 300 --seed 7 --speed 60 --json"


def demo(
    seconds: Annotated[int, typer.Option("--seconds", help="How long, in the building's own time.")] = 600,
    seed: Annotated[int, typer.Option("--seed", help="Which building; the same seed gives the same readings.")] = 1,
    speed: Annotated[float, typer.Option("--speed", help="The building's time against the clock on the wall.")] = 20.0,
    fresh: Annotated[bool, typer.Option("--fresh/--continue", help="Start anew, or go on after the last run.")] = True,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The broker's port; 0 takes a free one.")] = 0,
    profile: ProfileName = None, config: ConfigFile = None, broker: Address = None, data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Watch a stream pipeline raise a fire alarm: a broker, sensors that misbehave, Spark, and a live view."""
    need_spark()
    if speed <= 0:
        raise ConfigError(f"--speed {speed:g} stands still", remedy="give a number above zero")
    settings = load(profile, file=config, broker=broker, data=data)
    writable(settings.data)
    from penstock.demo.fire_alarm import run
    from penstock.demo.sensors import building

    building(seed=seed, seconds=seconds)  # refuses what cannot be shown, before anything starts
    if json:
        show_json(run(settings, seconds=seconds, seed=seed, speed=speed, fresh=fresh, port=port).summary())
        return
    from penstock.demo.view import View

    with View() as view:
        summary = run(settings, seconds=seconds, seed=seed, speed=speed, fresh=fresh, port=port, on_change=view.show).summary()
    areas = ", ".join(f"{alarm['area']} at {alarm['at']}" for alarm in summary["alarms"]) or "none"
    print(f"\nfire in {summary['fire']['area']} at {summary['fire']['at']}; alarms: {areas}")
    print(
        f"{summary['records']:,} records: {summary['late']} too late, {summary['bad']} bad, {summary['duplicates']} sent twice; first alarm after {summary['first_alarm_s']} s"
    )
    print(f"look around: penstock broker start --data {settings.data}/demo; penstock consume alarms --from-beginning --show key,timestamp")
