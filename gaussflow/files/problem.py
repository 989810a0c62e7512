"""Problem files: a Gaussian, layers and options in TOML.

    title = "three equilibria"
    [initial]                       # mean defaults to 0; covariance, or factor, or samples = "tokens.npy"
    covariance = [[1.0, 0.0], [0.0, 1.0]]
    [parameters]                    # a scalar c means c times the identity; { file = "weights.npz", key = "A" }
    A = [[10.0, -17.0], [0.0, 8.0]]
    V = [[-10.0, 4.0], [4.0, -2.0]]
    B = 1.0
    [simulate]
    t1 = 5.0

Several heads are a list of matrices for B and V. Layers that change in depth are a list of ``[[schedule]]`` tables
instead of ``[parameters]``, each with A, B, V, b and ``until``, the time at which it ends (left out in the last one, it
acts for ever). Paths are relative to the problem file. A table of numbers takes ``{ file = "x.csv", columns = [0, 1] }``.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gaussflow.errors import InvalidInput, UnreadableFile
from gaussflow.files.arrays_on_disk import check_readable, read_array
from gaussflow.gaussian import Gaussian
from gaussflow.layers.parameters import Parameters
from gaussflow.layers.schedule import PiecewiseConstant

TABLES = ("title", "description", "initial", "parameters", "schedule", "simulate", "target", "classify", "steer", "sweep")
GAUSSIAN_KEYS = ("mean", "covariance", "factor", "samples")
LAYER_KEYS = ("A", "B", "V", "b")
SIMULATE_KEYS = ("t0", "t1", "ts", "points", "method", "solver", "step", "rtol", "atol", "max_steps", "error")
FILE_KEYS = ("file", "key", "columns")


class Problem(NamedTuple):
    """What a problem file says.

    ``parameters`` is a :class:`Parameters` or a :class:`PiecewiseConstant`; ``simulate`` holds keyword arguments for
    :func:`gaussflow.simulate`; ``other`` the tables of other commands, unread.
    """

    title: str
    initial: Gaussian
    parameters: Any
    simulate: dict[str, Any]
    target: Gaussian | None
    source: Path
    other: dict[str, Any]


def load_problem(path: Any) -> Problem:
    """Read and check a problem file.

    Raises
    ------
    UnreadableFile
        if it, or a file it names, is missing, empty or damaged.
    InvalidInput
        if something in it cannot be used; the one-line text names file and key.
    """
    path = Path(path)
    check_readable(path, "problem file")
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"problem file: {path} is not text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UnreadableFile(f"problem file: {path} is no TOML: {error}") from error
    try:
        return _problem(content, path)
    except InvalidInput as error:
        located = InvalidInput(f"{path}: {error.argument}", got=error.got, wanted=error.wanted, fix=error.fix)
        raise located from error
    except UnreadableFile as error:
        raise UnreadableFile(f"{path}: {error}") from error


def _problem(content: dict[str, Any], path: Path) -> Problem:
    _known(content, TABLES, "")
    for name in ("initial",):
        if name not in content:
            raise InvalidInput(name, got="no such table", wanted=f"a table [{name}]")
    if ("parameters" in content) == ("schedule" in content):
        got = "both" if "parameters" in content else "neither"
        raise InvalidInput("parameters", got=f"{got} of [parameters] and [[schedule]]", wanted="exactly one of the two")
    folder = path.parent
    parameters = _layers(content, folder)
    initial = _gaussian(_table(content, "initial"), "initial", folder, parameters.dim)
    if parameters.dim is not None and parameters.dim != initial.dim:
        name = "parameters" if "parameters" in content else "schedule"
        raise InvalidInput(
            name, got=f"layers of dimension {parameters.dim}", wanted=f"dimension {initial.dim}, as in [initial]"
        )
    target = None
    if "target" in content:
        target = _gaussian(_table(content, "target"), "target", folder, initial.dim)
    title = content.get("title", path.stem)
    if not isinstance(title, str):
        raise InvalidInput("title", got=repr(title), wanted="text in quotes")
    others = {name: content[name] for name in ("classify", "steer", "sweep") if name in content}
    return Problem(title, initial, parameters, _options(content), target, path, others)


def _layers(content: dict[str, Any], folder: Path) -> Any:
    if "parameters" in content:
        table = _table(content, "parameters")
        _known(table, LAYER_KEYS, "parameters.")
        return _parameters(table, "parameters", folder)
    entries = content["schedule"]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput("schedule", got=type(entries).__name__, wanted="a list of [[schedule]] tables")
    layers, times = [], [_number(content.get("simulate", {}), "t0", "simulate", 0.0)]
    for i, entry in enumerate(entries):
        name = f"schedule[{i}]"
        _known(entry, (*LAYER_KEYS, "until"), f"{name}.")
        layers.append(_parameters({key: entry[key] for key in entry if key != "until"}, name, folder))
        if "until" in entry:
            until = _number(entry, "until", name, 0.0)
            if until <= times[-1]:
                raise InvalidInput(f"{name}.until", got=f"{until:g}", wanted=f"a time after {times[-1]:g}")
            times.append(until)
        elif i + 1 < len(entries):
            raise InvalidInput(f"{name}.until", got="nothing", wanted="the time at which this layer ends")
    return PiecewiseConstant(times, layers)


def _parameters(table: dict[str, Any], name: str, folder: Path) -> Parameters:
    try:
        return Parameters(**{key: _value(table[key], f"{name}.{key}", folder) for key in table})
    except InvalidInput as error:
        if error.argument.startswith(name):
            raise
        raise InvalidInput(f"{name}.{error.argument}", got=error.got, wanted=error.wanted, fix=error.fix) from error


def _gaussian(table: dict[str, Any], name: str, folder: Path, dim: int | None) -> Gaussian:
    _known(table, GAUSSIAN_KEYS, f"{name}.")
    given = [key for key in GAUSSIAN_KEYS[1:] if key in table]
    if len(given) != 1:
        got = " and ".join(given) or "nothing"
        raise InvalidInput(name, got=got, wanted="exactly one of covariance, factor and samples")
    kind = given[0]
    values = _value(table[kind], f"{name}.{kind}", folder, samples=kind == "samples")
    mean = _value(table["mean"], f"{name}.mean", folder) if "mean" in table else None
    try:
        if kind == "samples":
            gaussian = Gaussian.from_samples(values)
            return gaussian if mean is None else Gaussian.from_factor(mean, gaussian.factor)
        values = np.asarray(values)
        if values.ndim == 0 and kind == "covariance":
            dim = len(mean) if mean is not None and np.ndim(mean) == 1 else dim
            if dim is None:
                raise InvalidInput(kind, got="a scalar, with nothing to fix the dimension", wanted="a (d, d) matrix")
            values = values * np.eye(dim)
        if mean is None:
            mean = np.zeros(values.shape[0] if values.ndim else 0)
        return Gaussian(mean, **{kind: values})
    except InvalidInput as error:
        if error.argument.startswith(name):
            raise
        raise InvalidInput(f"{name}.{error.argument}", got=error.got, wanted=error.wanted, fix=error.fix) from error


def _value(value: Any, name: str, folder: Path, *, samples: bool = False) -> Any:
    """A number, nested lists, or the array in a file, as an array of numbers."""
    if isinstance(value, str) and samples:
        value = {"file": value}
    if isinstance(value, dict):
        _known(value, FILE_KEYS, f"{name}.")
        if not isinstance(value.get("file"), str):
            raise InvalidInput(name, got="a table without file", wanted='{ file = "weights.npz", key = "A" }')
        return read_array(folder / value["file"], name, key=value.get("key"), columns=value.get("columns"))
    _only_numbers(value, name)
    try:
        return np.asarray(value, dtype=np.float64)
    except ValueError:
        raise InvalidInput(
            name,
            got="rows of different lengths",
            wanted="a rectangular array of real numbers",
            fix="check that every row has the same number of entries",
        ) from None
    except OverflowError:
        raise InvalidInput(name, got="an integer too large for a float", wanted="real numbers") from None


def _only_numbers(value: Any, name: str) -> None:
    if isinstance(value, list):
        for item in value:
            _only_numbers(item, name)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        fix = "take the quotes away" if isinstance(value, str) else ""
        raise InvalidInput(name, got=repr(value), wanted="numbers", fix=fix)


def _options(content: dict[str, Any]) -> dict[str, Any]:
    table = _table(content, "simulate") if "simulate" in content else {}
    _known(table, SIMULATE_KEYS, "simulate.")
    options = dict(table)
    for key in ("t0", "t1", "step", "rtol", "atol"):
        if key in options:
            options[key] = _number(options, key, "simulate", 0.0)
    for key in ("points", "max_steps"):
        if key in options and (isinstance(options[key], bool) or not isinstance(options[key], int)):
            raise InvalidInput(f"simulate.{key}", got=repr(options[key]), wanted="a whole number")
    for key in ("method", "solver"):
        if key in options and not isinstance(options[key], str):
            raise InvalidInput(f"simulate.{key}", got=repr(options[key]), wanted="a name in quotes")
    if "error" in options and not isinstance(options["error"], bool):
        raise InvalidInput("simulate.error", got=repr(options["error"]), wanted="true or false")
    if "ts" in options:
        options["ts"] = _value(options["ts"], "simulate.ts", Path())
    return options


def _number(table: dict[str, Any], key: str, name: str, default: float) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name}.{key}", got=repr(value), wanted="a number")
    return float(value)


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(content[name], dict):
        raise InvalidInput(name, got=repr(content[name]), wanted=f"a table [{name}]")
    return content[name]


def _known(table: dict[str, Any], names: tuple[str, ...], prefix: str) -> None:
    """Refuse keys that nobody reads: a misspelt one would otherwise be a silent default."""
    for key in table:
        if key not in names:
            folded = {name.lower(): name for name in names}
            close = difflib.get_close_matches(key.lower(), list(folded), n=1, cutoff=0.5)
            raise InvalidInput(
                f"{prefix}{key}",
                got="an unknown key",
                wanted=f"one of {', '.join(names)}",
                fix=f"did you mean {folded[close[0]]}?" if close else "",
            )


