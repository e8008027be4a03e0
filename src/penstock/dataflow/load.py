"""Finds the pipeline in a Python file.

The file is executed. If it has a variable `pipeline`, that is the pipeline; otherwise all streams that it writes are one pipeline, named after the
file. The file's module is not left in `sys.modules`, so that its functions travel to workers by value."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType

from penstock.dataflow.pipeline import Pipeline, collecting
from penstock.errors import ConfigError, PenstockError


def load_pipeline(path: Path | str) -> Pipeline:
    """The pipeline of a file; every mistake in it is one line that names the file and the line."""
    path = Path(path)
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read {path}: {reason}", remedy="give the path of a Python file that builds a pipeline") from None
    try:
        code = compile(source, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{path}{line} is not Python: {getattr(error, 'msg', error)}", remedy="correct it and run again") from None
    module = ModuleType(path.stem.replace("-", "_"))
    module.__file__ = str(path)
    with collecting() as sinks:
        _execute(code, module, path)
    found = vars(module).get("pipeline")
    if isinstance(found, Pipeline):
        return found
    if not sinks:
        raise ConfigError(f"{path} writes no stream", remedy='end a stream with .write("<topic>"), or set the variable pipeline')
    return Pipeline(tuple(dict.fromkeys(sinks)), path.stem)


def _execute(code: CodeType, module: ModuleType, path: Path) -> None:
    shadowed = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look their module up while the file runs
    sys.path.insert(0, str(path.parent.resolve()))  # the file may import its neighbours, as a script does
    try:
        exec(code, vars(module))
    except PenstockError as error:
        raise ConfigError(f"{path}, line {_line(error, path)}: {error}") from error
    except Exception as error:
        raise ConfigError(
            f"{path}, line {_line(error, path)}: {type(error).__name__}: {error}", remedy="correct it and run again"
        ) from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
        del sys.modules[module.__name__]
        if shadowed is not None:
            sys.modules[module.__name__] = shadowed


def _line(error: BaseException, path: Path) -> int:
    """The last line of the file that was running when the error came."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return next((line for line in reversed(lines) if line is not None), 0)
