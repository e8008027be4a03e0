"""The contract of a Kafka-protocol server, as cases that any such server must pass: the embedded broker and Apache Kafka alike.

Each case is a function of a `Subject` (the server under test) and asserts one law through public clients, or through raw
frames where clients hide the matter. Invariant: cases share the server but no topic, group or transactional id, so they run in
any order and in parallel. Not here: crashes (`history`, `chaos/`), speed (`benchmarks/`), and how the server is started."""

from penstock.testing.contract.frame import CASES, Case, Subject

# Importing the modules registers their cases.
from penstock.testing.contract import admin, groups, records, retention, transactions, wire  # noqa: F401  # isort: skip

__all__ = ["CASES", "Case", "Subject"]
