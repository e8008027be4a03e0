"""The table of what this broker answers: every API, its versions, its handler. What is not in here is not advertised.

The lowest versions are those of Kafka 4 (KIP-896). The highest are the last before a version means something that is not here:
Produce 12 and EndTxn 5 (transactions of KIP-890), AddPartitionsToTxn 4 (between brokers), OffsetCommit 10 and OffsetFetch 10 (topic ids)."""

from __future__ import annotations

from penstock.broker.handlers import cluster, configs, fetch, groups, list_offsets, offsets, produce, topics, transactions
from penstock.broker.server import Served
from penstock.protocol.api import Api

APIS: dict[Api, Served] = {
    Api.PRODUCE: Served(range(3, 12), handle_raw=produce.produce),
    Api.FETCH: Served(range(4, 17), handle_raw=fetch.fetch),
    Api.LIST_OFFSETS: Served(range(1, 10), list_offsets.list_offsets),
    Api.METADATA: Served(range(13), cluster.metadata),
    Api.OFFSET_COMMIT: Served(range(2, 10), offsets.offset_commit),
    Api.OFFSET_FETCH: Served(range(1, 10), offsets.offset_fetch),
    Api.FIND_COORDINATOR: Served(range(6), cluster.find_coordinator),
    Api.JOIN_GROUP: Served(range(10), groups.join_group),
    Api.HEARTBEAT: Served(range(5), groups.heartbeat),
    Api.LEAVE_GROUP: Served(range(6), groups.leave_group),
    Api.SYNC_GROUP: Served(range(6), groups.sync_group),
    Api.DESCRIBE_GROUPS: Served(range(7), groups.describe_groups),
    Api.LIST_GROUPS: Served(range(6), groups.list_groups),
    Api.API_VERSIONS: Served(range(5), cluster.api_versions),
    Api.CREATE_TOPICS: Served(range(2, 8), topics.create_topics),
    Api.DELETE_TOPICS: Served(range(1, 7), topics.delete_topics),
    Api.DELETE_RECORDS: Served(range(3), topics.delete_records),
    Api.INIT_PRODUCER_ID: Served(range(5), transactions.init_producer_id),
    Api.OFFSET_FOR_LEADER_EPOCH: Served(range(2, 5), list_offsets.offset_for_leader_epoch),
    Api.ADD_PARTITIONS_TO_TXN: Served(range(4), transactions.add_partitions_to_txn),
    Api.ADD_OFFSETS_TO_TXN: Served(range(4), transactions.add_offsets_to_txn),
    Api.END_TXN: Served(range(4), transactions.end_txn),
    Api.TXN_OFFSET_COMMIT: Served(range(4), transactions.txn_offset_commit),
    Api.DESCRIBE_CONFIGS: Served(range(1, 5), configs.describe_configs),
    Api.ALTER_CONFIGS: Served(range(3), configs.alter_configs),
    Api.CREATE_PARTITIONS: Served(range(4), topics.create_partitions),
    Api.DELETE_GROUPS: Served(range(3), groups.delete_groups),
    Api.INCREMENTAL_ALTER_CONFIGS: Served(range(2), configs.incremental_alter_configs),
    Api.OFFSET_DELETE: Served(range(1), offsets.offset_delete),
    Api.DESCRIBE_CLUSTER: Served(range(2), cluster.describe_cluster),
    Api.DESCRIBE_TRANSACTIONS: Served(range(1), transactions.describe_transactions),
    Api.LIST_TRANSACTIONS: Served(range(2), transactions.list_transactions),
}
