"""A profile comes from the file, the environment and flags, later ones winning; every mistake is one line with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.profile import Profile, load

CLUSTER = """
[profile.cluster]
spark = "spark://spark-1:7077"
broker = "kafka-1:9092,kafka-2:9092"
checkpoint = "hdfs://checkpoints"
[profile.cluster.security]
"security.protocol" = "SASL_SSL"
"enable.ssl.certificate.verification" = true
"""


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PENSTOCK_PROFILE", "PENSTOCK_BROKER", "PENSTOCK_SPARK", "PENSTOCK_DATA", "PENSTOCK_CHECKPOINT", "PENSTOCK_CONNECTOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def write(text: str) -> None:
    Path("penstock.toml").write_text(text)


def test_local_is_built_in_and_stays_under_one_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/home/ada/data")
    profile = load()
    assert profile == Profile(data=Path("/home/ada/data/penstock"))
    assert profile.is_local
    assert profile.checkpoints == "/home/ada/data/penstock/checkpoints"


def test_a_section_of_the_file_is_a_profile() -> None:
    write(CLUSTER)
    profile = load("cluster")
    assert (profile.spark, profile.broker, profile.checkpoints) == (
        "spark://spark-1:7077",
        "kafka-1:9092,kafka-2:9092",
        "hdfs://checkpoints",
    )
    assert profile.security == {"security.protocol": "SASL_SSL", "enable.ssl.certificate.verification": "true"}
    assert not profile.is_local


def test_flags_win_over_the_environment_and_that_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write(CLUSTER)
    monkeypatch.setenv("PENSTOCK_BROKER", "from-environment:1")
    assert load("cluster").broker == "from-environment:1"
    assert load("cluster", broker="from-flag:1").broker == "from-flag:1"
    monkeypatch.setenv("PENSTOCK_PROFILE", "cluster")
    assert load().spark == "spark://spark-1:7077"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (CLUSTER, "clutser", "there is no profile 'clutser'; did you mean 'cluster'?"),
        ("[profile.x\n", "x", "penstock.toml is not valid TOML"),
        ('[profile.x]\nbrokr = "a:1"', "x", "[profile.x] in penstock.toml has no setting 'brokr'; did you mean 'broker'?"),
        ("[profile.x]\nbroker = 9092", "x", "'broker' in [profile.x] in penstock.toml is 9092; give text in quotes"),
        ('[profile.x]\nconnector = "java"', "x", "connector 'java' in [profile.x] in penstock.toml is unknown; use one of python, jvm"),
        ('[profile.x]\nspark = "spark://a:7077"', "x", "names no checkpoint location"),
        ('profile = "x"', "x", "'profile' in penstock.toml is not a table"),
        ('[profile.x]\nsecurity = "tls"', "x", "'security' in [profile.x] in penstock.toml is not a table"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(text: str, name: str, says: str) -> None:
    write(text)
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
