"""Every transcript of the corpus on Spark, with every restart a real one; says how many do not run there, and why.

python chaos/transcripts_on_spark.py [FILE.yaml …]"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from penstock.profile import Profile
from penstock.testing.judge import run_files
from penstock.testing.on_spark import SparkHost

CORPUS = Path(__file__).parents[1] / "tests" / "transcripts"


def main() -> int:
    files = [Path(name) for name in sys.argv[1:]] or sorted(CORPUS.glob("*.yaml"))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-transcripts-") as data:
        report = run_files(files, lambda: SparkHost(Profile(data=Path(data), spark="local[2]")))
    print("\n".join(report.lines()))
    print(f"{time.monotonic() - begin:.0f} s")
    return 0 if report.ok and not report.refused else 1


if __name__ == "__main__":
    sys.exit(main())
