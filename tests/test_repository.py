"""What the repository says of itself is so: layers, folders, files named in ARCHITECTURE.md, sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "penstock"
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70


def test_imports_go_down_the_layers() -> None:
    result = subprocess.run([Path(sys.executable).with_name("lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_architecture_names_every_folder() -> None:
    named = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    packages = {f"src/penstock/{path.name}" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    beside = {"examples", "benchmarks", "chaos", "tests", "docs"}
    assert named == packages | beside


def test_every_file_that_architecture_names_is_there() -> None:
    named = set(re.findall(r"`([a-z]+/[a-z_/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()))
    assert named
    assert not [name for name in sorted(named) if not (PACKAGE / name).is_file()]


def test_files_and_functions_stay_readable() -> None:
    long_files, long_functions = [], []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if text.count("\n") > FILE_LINES_MAX:
            long_files.append(str(path.relative_to(ROOT)))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno > FUNCTION_LINES_MAX:
                long_functions.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert (long_files, long_functions) == ([], [])


def test_import_is_light() -> None:
    """`import penstock` loads no heavy library: the command line answers at once, and a broker stays small."""
    script = "import sys, penstock; print([name for name in ('pyspark', 'pyarrow', 'numba', 'polars', 'pandas', 'duckdb', 'sqlglot', 'kio') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_wheel_holds_the_command_and_the_demo(tmp_path: Path) -> None:
    """What `pip install` would lay out, in an empty folder, with nothing of the repository on the path."""
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    laid_out = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(laid_out)
    (entry_points,) = laid_out.glob("*.dist-info/entry_points.txt")
    assert "penstock = penstock.cli:main" in entry_points.read_text()
    script = "import penstock.demo.fire_alarm as demo; print(demo.pipeline_file().name, demo.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(laid_out)}
    )
    assert result.stdout.split() == ["fire_alarm_pipeline.py", str(laid_out / "penstock" / "demo" / "fire_alarm.py")]
