"""Drive kcat and kafkajs through produce, consume, groups and transactions against the embedded broker, or `--address` of any other.

kcat comes from Debian's packages (`apt-get`, as root or through sudo), kafkajs from npm into a cache directory. Each client runs
unchanged; what it wrote is read back by librdkafka and the other way round."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from penstock.broker.embedded import broker
from penstock.spark.jars import cache_directory
from penstock.testing.contract import Subject

KAFKAJS_VERSION = "2.2.4"
COMMAND_S = 120


class Missing(Exception):
    """A client that cannot be installed here."""


def run(*command: str, given: str = "", cwd: Path | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=COMMAND_S, check=False, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(command)[:200]}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    return done.stdout


def kcat_program() -> str:
    if found := shutil.which("kcat"):
        return found
    apt = shutil.which("apt-get")
    if apt is None:
        raise Missing("kcat: no apt-get here")
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["install", "-y", "-qq", "kcat"], ["update", "-qq"], ["install", "-y", "-qq", "kcat"]):
        done = subprocess.run([*prefix, apt, *arguments], capture_output=True, text=True, timeout=600, check=False, env=environment)
        if found := shutil.which("kcat"):
            return found
    raise Missing(f"kcat: apt-get says: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")


def kafkajs_directory() -> Path:
    directory = cache_directory() / "clients" / f"kafkajs-{KAFKAJS_VERSION}"
    if (directory / "node_modules" / "kafkajs" / "package.json").exists():
        return directory
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Missing("kafkajs: no node and npm here")
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["install", "--no-audit", "--no-fund", "--no-save", f"kafkajs@{KAFKAJS_VERSION}"]
    done = subprocess.run([npm, *arguments], cwd=directory, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise Missing(f"kafkajs: npm says: {(done.stdout + done.stderr).strip()[-300:]}")
    return directory


def check_kcat(subject: Subject) -> None:
    """Metadata, produce with keys and headers, consume by offset and by time, a group, and a transaction."""
    program, topic, group = kcat_program(), subject.topic(partitions=2), subject.fresh("group")
    kcat = [program, "-b", subject.address]
    assert f'topic "{topic}" with 2 partitions' in run(*kcat, "-L", "-t", topic)
    run(
        *kcat,
        "-P",
        "-t",
        topic,
        "-p",
        "0",
        "-K:",
        "-H",
        "from=kcat",
        "-X",
        "enable.idempotence=true",
        given="".join(f"k{n}:v{n}\n" for n in range(100)),
    )
    messages = subject.read(topic)
    assert [(m.key(), m.value(), m.headers()) for m in messages] == [(b"k%d" % n, b"v%d" % n, [("from", b"kcat")]) for n in range(100)]
    subject.send(topic, [b"from librdkafka"], partition=1)
    assert (
        run(*kcat, "-C", "-t", topic, "-p", "0", "-o", "90", "-e", "-q", "-f", "%o %k %s %h\\n").splitlines()[0] == "90 k90 v90 from=kcat"
    )
    at = messages[0].timestamp()[1]
    assert len(run(*kcat, "-C", "-t", topic, "-p", "0", "-o", f"s@{at}", "-e", "-q").splitlines()) == 100
    assert run(*kcat, "-Q", "-t", f"{topic}:0:{at}").strip().endswith("offset 0")
    read = run(*kcat, "-G", group, "-X", "auto.offset.reset=earliest", "-c", "101", "-q", topic)
    assert len(read.splitlines()) == 101
    assert subject.committed(group, topic) == 100
    run(*kcat, "-P", "-t", topic, "-p", "1", "-X", f"transactional.id={subject.fresh('txn')}", given="in a transaction\n")
    assert subject.values(topic, partition=1, isolation_level="read_committed") == [b"from librdkafka", b"in a transaction"]


SCRIPT = """
const { Kafka, logLevel, CompressionTypes } = require('kafkajs')
const [address, topic, group, txn] = process.argv.slice(2)
const assert = require('assert')
async function main() {
  const kafka = new Kafka({ clientId: 'js', brokers: [address], logLevel: logLevel.ERROR })
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '-1' }] }] })
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = [...Array(100).keys()].map(n => ({ key: `k${n}`, value: `v${n}`, partition: n % 2, headers: { from: 'kafkajs' } }))
  await producer.send({ topic, messages, compression: CompressionTypes.GZIP })
  const transactional = kafka.producer({ transactionalId: txn, maxInFlightRequests: 1, idempotent: true })
  await transactional.connect()
  for (const commit of [true, false]) {
    const transaction = await transactional.transaction()
    await transaction.send({ topic, messages: [{ value: commit ? 'kept' : 'dropped', partition: 0 }] })
    await (commit ? transaction.commit() : transaction.abort())
  }
  const consumer = kafka.consumer({ groupId: group })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const seen = []
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${seen.length} records`)), 60000).unref()
    consumer.run({ eachMessage: async ({ message }) => { seen.push(message.value.toString()); if (seen.length === 101) resolve() } }).catch(reject)
  })
  assert(!seen.includes('dropped') && seen.includes('kept'))
  await consumer.disconnect()
  const offsets = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  assert(offsets[0].partitions.length === 2)
  assert((await admin.fetchTopicOffsets(topic)).every(p => Number(p.high) >= 50))
  await Promise.all([producer.disconnect(), transactional.disconnect(), admin.disconnect()])
  console.log('done', seen.length)
}
main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })
"""


def check_kafkajs(subject: Subject) -> None:
    directory = kafkajs_directory()
    (directory / "drive.js").write_text(SCRIPT)
    topic = subject.fresh("topic")
    output = run(
        "node",
        "--no-deprecation",
        "drive.js",
        subject.address.split(",")[0],
        topic,
        subject.fresh("group"),
        subject.fresh("txn"),
        cwd=directory,
    )
    assert output.strip() == "done 101", output
    values = subject.values(topic, isolation_level="read_committed") + subject.values(topic, partition=1, isolation_level="read_committed")
    assert sorted(v or b"" for v in values) == sorted([b"kept", *(b"v%d" % n for n in range(100))])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--address", help="a running broker instead of an embedded one")
    options = parser.parse_args()
    failed = False
    with contextlib.ExitStack() as stack:
        address = options.address or stack.enter_context(broker()).address
        for check in (check_kcat, check_kafkajs):
            name = check.__name__.removeprefix("check_")
            try:
                check(Subject("server", address))
                print(f"{name}: works")
            except Missing as error:
                failed = failed or not os.environ.get("SKIP_MISSING")
                print(f"{name}: not tried, {error}")
            except AssertionError as error:
                failed = True
                print(f"{name}: FAILED: {error}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
