"""The log as a library: topics, partitions and segments on disk, without a network."""

from penstock.log.commit import Committer
from penstock.log.config import ConfigEntry, TopicConfig
from penstock.log.log import Log, LogConfig
from penstock.log.partition import Appended, Partition
from penstock.log.storage import DiskStorage, Storage
from penstock.log.topics import Topic

__all__ = ["Appended", "Committer", "ConfigEntry", "DiskStorage", "Log", "LogConfig", "Partition", "Storage", "Topic", "TopicConfig"]
