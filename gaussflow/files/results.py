"""Results on disk: all files of a run are written to a hidden folder beside their place and renamed, so that a killed
or failing run leaves no half file and does not touch what is there."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gaussflow.errors import UnreadableFile
from gaussflow.flow.trajectory import Trajectory, outcome_label

DENSE_LIMIT = 5_000_000
"""Numbers beyond which a trajectory of factors is saved without its covariances (40 MB)."""

Writer = Callable[[Path], Any]


def write_results(
    directory: Any, *, summary: Mapping[str, Any], trajectory: Trajectory, figures: Mapping[str, Writer] | None = None
) -> list[str]:
    """Write summary.json, trajectory.npz and figures (file name → a function that saves to a path) into ``directory``.

    Returns the names of the files, which summary.json lists too: what else lies in the folder is from another run.
    Raises :class:`UnreadableFile`, with nothing replaced, if they cannot be written.
    """
    arrays = trajectory_arrays(trajectory)
    writers: dict[str, Writer] = {"trajectory.npz": lambda path: _write_npz(path, arrays), **(figures or {})}
    names = ["summary.json", *writers]
    text = to_json({**summary, "files": names})
    write_files(directory, {"summary.json": lambda path: path.write_text(text + "\n", encoding="utf-8"), **writers})
    return names


def prepare_folder(directory: Any) -> Path:
    """The folder for results, made if need be; raises :class:`UnreadableFile` if it cannot be written to.

    Called before a long run, so that the answer does not get lost after it.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UnreadableFile(f"--out: cannot write to {directory}: {error.strerror or error}") from error
    return directory


def write_files(directory: Any, writers: Mapping[str, Writer]) -> None:
    """Write every file under a temporary name first, then rename them all; on failure ``directory`` is untouched."""
    directory = prepare_folder(directory)
    name = ""
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".unfinished-") as unfinished:
            for name, write in writers.items():
                write(Path(unfinished) / name)
            for name in writers:
                os.replace(Path(unfinished) / name, directory / name)
    except OSError as error:
        raise UnreadableFile(f"cannot write {directory / name}: {error.strerror or error}") from error


def to_json(content: Any) -> str:
    """Strict JSON: what is not a finite number becomes null."""
    return json.dumps(_plain(content), indent=2, allow_nan=False, ensure_ascii=False)


def trajectory_arrays(trajectory: Trajectory) -> dict[str, np.ndarray]:
    """What trajectory.npz holds; ``description`` says what each array is.

    Covariances, and the factors where these were integrated; for large dimensions the factors alone.
    """
    n, d = trajectory.means.shape
    arrays: dict[str, Any] = {"ts": trajectory.ts, "means": trajectory.means}
    if trajectory.saved_factors is not None:
        arrays["factors"] = trajectory.saved_factors
    if trajectory.saved_factors is None or n * d * d <= DENSE_LIMIT:
        arrays["covariances"] = trajectory.covariances
    arrays["outcome"] = outcome_label(trajectory.outcome)
    arrays["method"] = trajectory.method
    blow_up = trajectory.blow_up
    if blow_up is not None:
        arrays["blow_up_time"] = blow_up.time
        arrays["blow_up_error"] = blow_up.error
        arrays["blow_up_directions"] = blow_up.directions
    meaning = {
        "ts": "(n,) times, that is depth in units of the layers' own rates",
        "means": "(n, d) mean of the Gaussian, in the units of the tokens",
        "factors": "(n, d, r) L with covariance L L^T",
        "covariances": "(n, d, d) covariance, in the squared units of the tokens",
        "outcome": "completed, blow-up or failed",
        "method": "the form that was integrated",
        "blow_up_time": "estimated time at which the covariance becomes infinite",
        "blow_up_error": "estimate of its absolute error (numerical, no proof)",
        "blow_up_directions": "(d, k) orthonormal columns spanning the directions that become infinite",
    }
    lines = [f"{name}: {meaning[name]}" for name in arrays]
    source = "Gaussian mean-field Transformer flow (arXiv 2606.07600), integrated by gaussflow"
    arrays["description"] = "\n".join([source, *lines])
    return {name: np.asarray(value) for name, value in arrays.items()}


def _write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and JAX
        return _plain(np.asarray(value).tolist())
    return str(value)
