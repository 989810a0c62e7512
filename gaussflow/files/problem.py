"""Problem files: a Gaussian, layers and options in TOML.

    title = "three equilibria"
    [initial]                       # mean defaults to 0; covariance, or factor, or samples = "tokens.npy"
    covariance = [[1.0, 0.0], [0.0, 1.0]]
    [parameters]                    # a scalar c means c times the identity; what is left out is zero
    A = [[10.0, -17.0], [0.0, 8.0]]
    V = { file = "weights.npz", key = "V" }
    B = 1.0
    [simulate]                      # arguments of gaussflow.simulate
    t1 = 5.0
    [target]                        # a second Gaussian, written like [initial], for steering
    covariance = 0.5

Several heads are a list of matrices, or of files, for B and V. An array can stand in a file (.npy, .npz with ``key``,
.csv with ``columns``), its path relative to the problem file. Layers that change in depth are ``[[schedule]]`` tables
instead of ``[parameters]``:

    [[schedule]]                    # acts from the start of the run ...
    until = 1.0                     # ... to t = 1
    A = 0.5
    [[schedule]]                    # the last one, without until, acts for ever
    V = -1.0
    B = 1.0
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gaussflow.errors import InvalidInput, UnreadableFile
from gaussflow.files.arrays_on_disk import read_array, read_text
from gaussflow.gaussian import Gaussian
from gaussflow.layers.parameters import Parameters
from gaussflow.layers.schedule import PiecewiseConstant

OTHER_COMMANDS = ("classify", "steer", "sweep")
TABLES = ("title", "description", "initial", "parameters", "schedule", "simulate", "target", *OTHER_COMMANDS)
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


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Read and check a problem file.

    Raises
    ------
    UnreadableFile
        if it, or a file it names, is missing, empty or damaged.
    InvalidInput
        if something in it cannot be used; the one-line text names file and key.
    """
    path = Path(path)
    text = read_text(path, "problem file")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        raise UnreadableFile(f"problem file: {path} is not valid TOML: {reason}") from error
    try:
        return _problem(content, path)
    except InvalidInput as error:
        raise _within(f"{path}: ", error) from error
    except UnreadableFile as error:
        raise UnreadableFile(f"{path}: {error}") from error


def _problem(content: dict[str, Any], path: Path) -> Problem:
    if not content:
        raise InvalidInput("problem file", got="no tables", wanted="[initial] and [parameters]")
    _known(content, TABLES, "")
    title = content.get("title", path.stem)
    if not isinstance(title, str):
        raise InvalidInput("title", got=_shown(title), wanted="text in quotes")
    if "initial" not in content:
        raise InvalidInput(
            "initial", got="no such table", wanted="a table [initial] with covariance, factor or samples"
        )
    if ("parameters" in content) == ("schedule" in content):
        got = "both" if "parameters" in content else "neither"
        raise InvalidInput("parameters", got=f"{got} of [parameters] and [[schedule]]", wanted="exactly one of the two")
    options = _options(content)
    layers_name = "parameters" if "parameters" in content else "schedule"
    parameters = _layers(content, options, path.parent)
    states = {name: _read_state(content, name, path.parent) for name in ("initial", "target") if name in content}
    # Whatever has a shape fixes the dimension of what is a scalar.
    known = [_dimension(state) for state in states.values()] + [parameters.dim]
    dim = next((d for d in known if d is not None), None)
    gaussians = {name: _gaussian(state, name, dim) for name, state in states.items()}
    initial, target = gaussians["initial"], gaussians.get("target")
    for name, d in ((layers_name, parameters.dim), ("target", target and target.dim)):
        if d is not None and d != initial.dim:
            raise InvalidInput(name, got=f"dimension {d}", wanted=f"dimension {initial.dim}, as in [initial]")
    others = {name: content[name] for name in OTHER_COMMANDS if name in content}
    return Problem(title, initial, parameters, options, target, path, others)


def _layers(content: dict[str, Any], options: dict[str, Any], folder: Path) -> Parameters | PiecewiseConstant:
    if "parameters" in content:
        table = _table(content, "parameters")
        _known(table, LAYER_KEYS, "parameters.")
        return _parameters(table, "parameters", folder)
    entries = content["schedule"]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput("schedule", got=_shown(entries), wanted="a list of [[schedule]] tables")
    # The first layer acts from wherever the run starts, which is t1 when it goes backward.
    times = [min(options.get("t0", 0.0), options.get("t1", math.inf))]
    layers = []
    for i, entry in enumerate(entries):
        name = f"schedule[{i}]"
        _known(entry, (*LAYER_KEYS, "until"), f"{name}.")
        layers.append(_parameters({key: entry[key] for key in entry if key != "until"}, name, folder))
        if "until" in entry:
            until = _number(entry["until"], f"{name}.until")
            if until <= times[-1]:
                raise InvalidInput(f"{name}.until", got=f"{until:g}", wanted=f"a time after {times[-1]:g}")
            times.append(until)
        elif i + 1 < len(entries):
            raise InvalidInput(f"{name}.until", got="nothing", wanted="the time at which this layer ends")
    dims = sorted({layer.dim for layer in layers if layer.dim is not None})
    if len(dims) > 1:
        raise InvalidInput("schedule", got=f"layers of dimensions {dims}", wanted="one dimension for all layers")
    return PiecewiseConstant(times, layers)


def _parameters(table: dict[str, Any], name: str, folder: Path) -> Parameters:
    values = {key: _value(table[key], f"{name}.{key}", folder) for key in table}
    try:
        return Parameters(**values)
    except InvalidInput as error:
        raise _within(f"{name}.", error) from error


def _read_state(content: dict[str, Any], name: str, folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a Gaussian's table: its mean, if given, and exactly one of covariance, factor and samples."""
    table = _table(content, name)
    _known(table, GAUSSIAN_KEYS, f"{name}.")
    given = [key for key in GAUSSIAN_KEYS[1:] if key in table]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InvalidInput(name, got=got, wanted="exactly one of covariance, factor and samples")
    return {
        key: _value({"file": table[key]} if key == "samples" and isinstance(table[key], str) else table[key],
                    f"{name}.{key}", folder)
        for key in table
    }  # fmt: skip


def _dimension(state: dict[str, np.ndarray]) -> int | None:
    for key, axis in (("samples", -1), ("mean", 0), ("covariance", 0), ("factor", 0)):
        if key in state and state[key].ndim > 0:
            return int(state[key].shape[axis])
    return None


def _gaussian(state: dict[str, np.ndarray], name: str, dim: int | None) -> Gaussian:
    try:
        if "samples" in state:
            gaussian = Gaussian.from_samples(state["samples"])
            if "mean" not in state:
                return gaussian
            if state["mean"].shape != gaussian.mean.shape:
                raise InvalidInput(
                    "mean",
                    got=f"shape {state['mean'].shape} beside samples of dimension {gaussian.dim}",
                    wanted="a vector of that length, or none: the samples have a mean",
                )
            return Gaussian.from_factor(state["mean"], gaussian.factor)
        kind = "covariance" if "covariance" in state else "factor"
        values = state[kind]
        if values.ndim == 0:
            if dim is None:
                raise InvalidInput(kind, got="a scalar, and nothing that fixes the dimension", wanted="a matrix")
            values = values * np.eye(dim)
        return Gaussian(state.get("mean", np.zeros(values.shape[0])), **{kind: values})
    except InvalidInput as error:
        raise _within(f"{name}.", error) from error


def _value(value: Any, name: str, folder: Path) -> np.ndarray:
    """A number, nested lists, the array in a file, or a list of files (one a head), as an array."""
    if isinstance(value, dict):
        _known(value, FILE_KEYS, f"{name}.")
        if not isinstance(value.get("file"), str):
            got = _shown(value["file"]) if "file" in value else "no file"
            raise InvalidInput(
                f"{name}.file", got=got, wanted='a name in quotes, as in { file = "weights.npz", key = "A" }'
            )
        return np.asarray(read_array(folder / value["file"], name, key=value.get("key"), columns=value.get("columns")))
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        heads = [_value(item, f"{name}[{i}]", folder) for i, item in enumerate(value)]
        shapes = [head.shape for head in heads]
        if len(set(shapes)) > 1:
            raise InvalidInput(name, got=f"heads of shapes {shapes}", wanted="matrices of one shape")
        return np.stack(heads)
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
        fix = ""
        if isinstance(value, str):
            looks_like_file = "." in value and not value.replace(".", "").lstrip("+-").isdigit()
            fix = f"write {{ file = {_shown(value)} }} to read a file" if looks_like_file else "take the quotes away"
        raise InvalidInput(name, got=_shown(value), wanted="numbers", fix=fix)


def _options(content: dict[str, Any]) -> dict[str, Any]:
    table = _table(content, "simulate") if "simulate" in content else {}
    _known(table, SIMULATE_KEYS, "simulate.")
    options = dict(table)
    for key in ("t0", "t1", "step", "rtol", "atol"):
        if key in options:
            options[key] = _number(options[key], f"simulate.{key}")
    for key in ("points", "max_steps"):
        if key in options and (isinstance(options[key], bool) or not isinstance(options[key], int)):
            raise InvalidInput(f"simulate.{key}", got=_shown(options[key]), wanted="a whole number")
    for key in ("method", "solver"):
        if key in options and not isinstance(options[key], str):
            raise InvalidInput(f"simulate.{key}", got=_shown(options[key]), wanted="a name in quotes")
    if "error" in options and not isinstance(options["error"], bool):
        raise InvalidInput("simulate.error", got=_shown(options["error"]), wanted="true or false")
    if "ts" in options:
        options["ts"] = _value(options["ts"], "simulate.ts", Path())
    return options


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        fix = "take the quotes away" if isinstance(value, str) else ""
        raise InvalidInput(name, got=_shown(value), wanted="a number", fix=fix)
    if not math.isfinite(value):
        raise InvalidInput(name, got=f"{value}", wanted="a finite number")
    return float(value)


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(content[name], dict):
        raise InvalidInput(name, got=_shown(content[name]), wanted=f"a table [{name}]")
    return content[name]


def _known(table: dict[str, Any], names: tuple[str, ...], prefix: str) -> None:
    """Refuse keys that nobody reads: a misspelt one would otherwise be a silent default."""
    for key in table:
        if key not in names:
            folded = {name.lower(): name for name in reversed(names)}
            close = difflib.get_close_matches(key.lower(), list(folded), n=1, cutoff=0.5)
            raise InvalidInput(
                f"{prefix}{key}",
                got="an unknown key",
                wanted=f"one of {', '.join(names)}",
                fix=f"did you mean {folded[close[0]]}?" if close else "",
            )


def _within(prefix: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(f"{prefix}{error.argument}", got=error.got, wanted=error.wanted, fix=error.fix)


def _shown(value: Any, most: int = 60) -> str:
    """A value as TOML would write it, or nearly, on one short line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}..."
