"""A Spark session: the JVM started directly, quickly, quietly, and ended without leaving anything behind.

`spark-submit` starts a shell and a second JVM first, and asks for a Java module that small runtimes lack; so the JVM is started
here and tells port and secret in a file. If that fails, `spark-submit` is the fall-back. Classes come from an archive that is
made once per Java and class path (`archive.py`).

Invariant: at most one session per process; the JVM ends when this process ends, however it ends, because it watches its
standard input. Everything it writes lies in the data directory. Not here: finding Java (`java.py`), running pipelines (`run.py`)."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingPart, PenstockError
from penstock.profile import Profile
from penstock.spark import jvm_connector
from penstock.spark.archive import WRITE_S_MAX, Archive, archive_for
from penstock.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S_MAX = 90.0
STOP_S_MAX = 20.0
_POLL_S = 0.005
# How numba finds compiled code on executors, in order; ours takes only what comes from our archive (`loop_cache.py`).
LOCATORS = "penstock.spark.loop_cache.ByContent,UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,ZipCacheLocator"
QUICK = "penstock.quick"  # a setting of ours in the profile's conf: "true" starts sooner and peaks lower

# What Spark reflects into. The list is Spark's own, less the vector module, which small runtimes lack and Spark can do without.
_OPENS = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip

# Jars that a streaming query never loads. Fewer jars make a shorter start; `full_class_path` brings them back.
_UNUSED = re.compile(
    r"(kubernetes|volcano|vertx|hive-(?!storage)|datanucleus|derby|spark-(mllib|hive|kubernetes|yarn|repl|graphx|connect|pipelines)|breeze|spire|"
    r"algebra|cats-kernel|JTransforms|JLargeArrays|arpack|lapack|blas|scala-compiler|jline|HikariCP|zjsonpatch|antlr-runtime|ST4|super-csv|"
    r"netty-.*(osx|windows|kqueue)|opencsv|libthrift|libfb303|jdo-api|javax.jdo|jta|transaction-api|bonecp|commons-dbcp|stax-api)"
)

# Why each: see docs/internals/spark.md.
_CONF = {
    "spark.app.name": "penstock",
    "spark.sql.ansi.enabled": "false",  # a bad cast gives NULL, not a dead query
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # The default one forks over a hundred shells per batch on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.python.worker.reuse": "true",
    # Data sources never have it; with it, functions would get a second daemon, which imports everything again.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.python.daemon.module": "penstock.spark.daemon",
    "spark.ui.port": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "200",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "true",
    "spark.io.compression.codec": "lz4",
}

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


@dataclass(slots=True)
class _Running:
    """The session of this process, its JVM and where it writes."""

    spark: SparkSession
    process: subprocess.Popen[bytes] | None  # None: started through spark-submit
    log: Path
    scratch: Path
    archive: Archive


_running: _Running | None = None


def session(profile: Profile, *, memory_mb: int = 1024, quick: bool = False, full_class_path: bool = False) -> SparkSession:
    """The Spark session of this process, started if there is none.

    `quick` compiles lightly: a shorter start and slower peak, for tests."""
    global _running
    if _running is not None:
        return _running.spark
    java = find_java()
    scratch = Path(tempfile.mkdtemp(prefix="spark-", dir=_made(profile.data / "tmp")))
    log = _made(profile.data / "logs") / f"spark-{os.getpid()}.log"
    jars = _jars(full=full_class_path)
    archive = archive_for(java, jars)
    conf, environment = _conf(profile, scratch), _environment(profile, scratch)
    quick = quick or profile.conf.get(QUICK) == "true"
    options = [*_options(java, scratch, log, memory_mb, quick), *archive.options]
    try:
        process = _start_jvm([str(java.program), "-cp", jars, *options], conf, environment, log, scratch)
        spark = _connect(process, conf, environment, java, log)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _running = _Running(spark, process, log, scratch, archive)
    threading.Thread(target=_warm, args=(spark, cores(profile)), name="penstock-warm", daemon=True).start()
    if not profile.is_local:
        spark.sparkContext.addPyFile(str(package_archive(scratch)))
    return spark


def _warm(spark: SparkSession, tasks: int) -> None:
    """Start the Python workers while the query is being planned: planning uses one core and waits much."""
    with contextlib.suppress(Exception):  # the session may end first; the query would find its own workers
        spark.range(0, tasks, 1, tasks).mapInArrow(_nothing, "id BIGINT").collect()


def _nothing(batches: Any) -> Any:
    yield from batches


def log_file() -> Path | None:
    """Where Spark's log of this process is."""
    return _running.log if _running else None


def stop_session(*, wait_s_max: float = STOP_S_MAX) -> None:
    """End the session and its JVM, and remove its temporary files. Nothing is left running."""
    global _running
    if _running is None:
        return
    running, _running = _running, None
    from pyspark import SparkContext

    try:
        running.spark.stop()
    finally:
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        if gateway is not None:
            gateway.shutdown()
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            os.environ.pop(name, None)
        process = running.process or getattr(gateway, "proc", None)
        if process is not None:
            _end(process, wait_s_max if running.archive.writing is None else WRITE_S_MAX)
            running.archive.keep(exit_code=process.returncode)
        shutil.rmtree(running.scratch, ignore_errors=True)


atexit.register(stop_session)


def package_archive(folder: Path) -> Path:
    """Our package as a zip, the form in which Spark hands it to executors (`addPyFile`)."""
    import penstock

    root = Path(penstock.__file__).parent
    path = folder / "penstock.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*.py")):
            archive.write(file, Path("penstock") / file.relative_to(root))
    return path


def cores(profile: Profile) -> int:
    """How many tasks run at once; for a cluster, what its settings say."""
    if match := re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", profile.spark):
        count = match.group(1)
        return (len(os.sched_getaffinity(0)) if count == "*" else int(count)) if count else 1
    return int(profile.conf.get("spark.cores.max") or profile.conf.get("spark.default.parallelism") or 4)


def _conf(profile: Profile, scratch: Path) -> dict[str, str]:
    conf = dict(_CONF)
    conf["spark.master"] = profile.spark
    conf["spark.sql.shuffle.partitions"] = str(cores(profile))
    conf["spark.local.dir"] = str(_made(scratch / "local"))
    conf["spark.sql.warehouse.dir"] = str(scratch / "warehouse")
    conf["spark.hadoop.hadoop.tmp.dir"] = str(scratch / "hadoop")
    if _on_loopback(profile):
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if not profile.is_local:
        # The executor's working directory holds what addPyFile sent; the daemon starts before a worker would put it on its path.
        conf["spark.executorEnv.PYTHONPATH"] = "penstock.zip"
        conf["spark.executorEnv.NUMBA_CACHE_LOCATOR_CLASSES"] = LOCATORS
    if profile.connector == "jvm":
        conf |= jvm_connector.session_conf()
    return conf | {name: value for name, value in profile.conf.items() if name != QUICK}


def _on_loopback(profile: Profile) -> bool:
    return profile.is_local or bool(re.match(r"spark://(127\.0\.0\.1|localhost)[:,]", profile.spark))


def _environment(profile: Profile, scratch: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_CONNECT_MODE="0")
    environment["POLARS_MAX_THREADS"] = environment.get("POLARS_MAX_THREADS", "1")  # tasks are the parallelism
    environment["MALLOC_ARENA_MAX"] = "2"
    environment["TMPDIR"] = str(scratch)
    if _on_loopback(profile):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_HOME"):
        environment.pop(name, None)
    return environment


def _options(java: Java, scratch: Path, log: Path, memory_mb: int, quick: bool) -> list[str]:
    settings = scratch / "log4j2.properties"
    settings.write_text(_LOG4J.format(log=log))
    options = [f"-Xmx{memory_mb}m", "-Xss4m", "-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UseParallelGC", f"-Djava.io.tmpdir={scratch}"]
    options += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
    options += [
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djdk.reflect.useDirectMethodHandle=false",
        f"-Dlog4j2.configurationFile={settings}",
    ]
    if java.major >= 24:
        options += ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return [*options, "-XX:TieredStopAtLevel=1"] if quick else options


def _start_jvm(command: list[str], conf: dict[str, str], environment: dict[str, str], log: Path, scratch: Path) -> subprocess.Popen[bytes]:
    command = [*command, "org.apache.spark.deploy.SparkSubmit"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    # SPARK_HOME stays unset: with it, workers would import PySpark from a zip of sources and compile it anew each time.
    environment = environment | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(scratch / "gateway")}
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, "pyspark-shell"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=scratch,
            start_new_session=True,
        )


def _connect(process: subprocess.Popen[bytes], conf: dict[str, str], environment: dict[str, str], java: Java, log: Path) -> SparkSession:
    """Import PySpark while the JVM starts, then connect to it."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    scratch = Path(conf["spark.local.dir"]).parent
    told = _gateway(process, scratch / "gateway")
    if told is None:
        return _by_submit(conf, environment, java, log)
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(told[0]), told[1]
    os.environ["PYSPARK_PYTHON"] = environment["PYSPARK_PYTHON"]
    try:
        return SparkSession.builder.config(conf=SparkConf().setAll(list(conf.items()))).getOrCreate()
    except BaseException as error:
        _end(process, STOP_S_MAX)
        raise PenstockError(f"Spark does not start: {first_line(error)}", remedy=f"the whole story is in {log}") from error


def _gateway(process: subprocess.Popen[bytes], path: Path) -> tuple[int, str] | None:
    """Port and secret, as the JVM writes them: | port i32 | length i32 | secret |. None if the JVM ended instead."""
    deadline = time.monotonic() + START_S_MAX
    while not path.is_file():
        if process.poll() is not None:
            return None
        if time.monotonic() > deadline:
            _end(process, STOP_S_MAX)
            return None
        time.sleep(_POLL_S)
    told = path.read_bytes()
    port, length = struct.unpack(">ii", told[:8])
    return port, told[8 : 8 + length].decode()


def _by_submit(conf: dict[str, str], environment: dict[str, str], java: Java, log: Path) -> SparkSession:
    """The fall-back: Spark's own launcher."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    settings = SparkConf(loadDefaults=False)
    settings.setAll(list(conf.items()))
    os.environ.update({name: environment[name] for name in ("PYSPARK_PYTHON",)}, JAVA_HOME=str(java.home))
    try:
        with log.open("ab") as output:
            SparkContext._gateway = launch_gateway(settings, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        SparkContext._jvm = SparkContext._gateway.jvm
        return SparkSession.builder.config(conf=SparkConf().setAll(list(conf.items()))).getOrCreate()
    except Exception as error:
        raise MissingPart(
            f"Spark's JVM does not start with {java.program}", remedy=f"see the end of {log}; run `penstock doctor`"
        ) from error


def _jars(*, full: bool) -> str:
    folder = Path(_spark_home()) / "jars"
    if full:
        return str(folder / "*")
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")) if not _UNUSED.match(jar.name))


def _spark_home() -> str:
    import importlib.util

    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingPart("PySpark is not installed", remedy="run: pip install 'penstock[spark]'")
    return str(Path(spec.origin).parent)


def _end(process: Any, wait_s_max: float) -> None:
    """Close the JVM's standard input, which ends it; then insist."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(wait_s_max)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PenstockError(
            f"cannot make {folder}: {error.strerror}", remedy="choose another data directory with --data or PENSTOCK_DATA"
        ) from error
    return folder


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
