"""Results on disk: each file written beside its place and renamed, so that none is ever half written."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gaussflow.errors import UnreadableFile
from gaussflow.flow.trajectory import Trajectory, outcome_label

DENSE_LIMIT = 50_000_000
"""Numbers beyond which covariances are left out of trajectory.npz (the factors are always there)."""


def prepare_folder(directory: Any) -> Path:
    """The folder for results, made if need be; raises :class:`UnreadableFile` if it cannot be written to."""
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UnreadableFile(f"--out: cannot write to {directory}: {error.strerror or error}") from error
    return directory


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Call ``write`` on a temporary name beside ``path`` and rename the result; on failure ``path`` is untouched."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise UnreadableFile(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Strict JSON: what is not a finite number becomes null."""
    write_whole(path, lambda p: p.write_text(to_json(content) + "\n", encoding="utf-8"))


def to_json(content: Any) -> str:
    return json.dumps(_plain(content), indent=2, allow_nan=False)


def write_trajectory(path: Path, trajectory: Trajectory) -> None:
    """trajectory.npz: ts, means, factors, covariances (unless very large), the blow-up, and a description of each."""
    arrays: dict[str, Any] = {
        "ts": trajectory.ts,
        "means": trajectory.means,
        "factors": trajectory.factors,
        "outcome": outcome_label(trajectory.outcome),
        "method": trajectory.method,
    }
    n, d = trajectory.means.shape
    if n * d * d <= DENSE_LIMIT:
        arrays["covariances"] = trajectory.covariances
    if trajectory.blow_up is not None:
        arrays["blow_up_time"] = trajectory.blow_up.time
        arrays["blow_up_error"] = trajectory.blow_up.error
        arrays["blow_up_directions"] = trajectory.blow_up.directions
    arrays["description"] = (
        "gaussflow trajectory. ts (n,): depth as time. means (n, d). factors (n, d, r), covariance = L L^T. "
        "covariances (n, d, d). blow_up_directions (d, k): orthonormal columns. System: arXiv 2606.07600."
    )
    plain = {name: np.asarray(value) for name, value in arrays.items()}
    write_whole(path, lambda p: _savez(p, plain))


def _savez(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:  # a name would get a second suffix
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return _plain(np.asarray(value).tolist())
    return str(value)
