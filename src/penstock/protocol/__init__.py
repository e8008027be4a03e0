"""The Kafka wire protocol: messages to bytes and back. Knows nothing of logs, sockets or groups."""
