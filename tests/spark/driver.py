"""A driver process that a test can kill: plays the toy chain's script into a folder. Run as `python -m tests.spark.driver FOLDER [MASTER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import cloudpickle

from penstock.profile import Profile
from penstock.spark.collected import collect_to
from penstock.spark.compile import compile_chain
from penstock.spark.scripted import scripted
from penstock.spark.session import session, stop_session
from tests.spark import toy


def main(folder: Path, master: str) -> None:
    cloudpickle.register_pickle_by_value(toy)
    spark = session(Profile(data=folder / "data", spark=master, checkpoint=str(folder), conf={"spark.cores.max": "2"}), quick=True)
    frame = compile_chain(toy.chain(on_tick=True), scripted(spark, folder / "script.arrow"), job="toy")
    writer = collect_to(spark, frame.writeStream, folder / "out").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    stop_session()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "local[2]")
