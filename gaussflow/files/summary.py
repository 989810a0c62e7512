"""The summary of a simulation: one dictionary for JSON, and the short table printed from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gaussflow.files.problem import Problem
from gaussflow.flow.trajectory import Trajectory, in_short
from gaussflow.gaussian import Gaussian

MOST_DIRECTIONS = 3


def summary_of(
    problem: Problem, trajectory: Trajectory, *, options: Mapping[str, Any] | None = None, seconds: float
) -> dict[str, Any]:
    """Everything worth telling about a run, as JSON-ready numbers.

    ``options`` are the arguments that ``simulate`` was called with, those of the problem file by default.
    """
    from gaussflow import __version__

    options = problem.simulate if options is None else options
    start, final = problem.initial, trajectory.final
    rank = start.numerical_rank()
    result = trajectory.to_dict()
    if result["outcome"] != "failed":
        result["cause"] = None
    first, last = _state(start, rank), _state(final, rank)
    return {
        "title": problem.title,
        "source": str(problem.source),
        "dimension": start.dim,
        "rank": rank,
        "asked": {key: np.asarray(value).tolist() for key, value in options.items()},
        **result,
        "initial": first,
        "final": last,
        "log_det_change": _difference(last["log_det"], first["log_det"]),
        "seconds": round(seconds, 3),
        "version": __version__,
    }


def _state(gaussian: Gaussian, rank: int) -> dict[str, Any]:
    """Mean, spectrum, trace and log det; the rank does not change along the flow, so it is not judged anew."""
    singular = np.linalg.svd(np.asarray(gaussian.factor, dtype=np.float64), compute_uv=False)
    eigenvalues = np.zeros(gaussian.dim)
    eigenvalues[: len(singular)] = np.sort(singular**2)[::-1]
    positive = eigenvalues[:rank]
    log_det = float(np.sum(np.log(positive))) if rank and np.all(positive > 0) else None
    return {
        "mean": np.asarray(gaussian.mean).tolist(),
        "eigenvalues": positive.tolist(),
        "trace": float(np.sum(eigenvalues)),
        "log_det": log_det,
    }


def _difference(last: float | None, first: float | None) -> float | None:
    return None if last is None or first is None else last - first


def summary_lines(content: dict[str, Any]) -> list[str]:
    """A short table: what was asked, how it ended, where it ended, how it was computed."""
    final, rank = content["final"], content["rank"]
    rows = [("dimension", f"{content['dimension']}, rank {rank}")]
    if content["t_last"] is not None:
        points = content["points"]
        rows.append(
            ("time", f"{content['t0']:g} to {content['t_last']:.10g}, {points} point{'s' if points != 1 else ''}")
        )
    rows.append(("outcome", content["outcome"]))
    if content["cause"] is not None:
        rows.append(("cause", content["cause"]))
    if content["blow_up"] is not None:
        rows.append(("blow-up time", f"{content['blow_up']['time']:.12g} ± {content['blow_up']['error']:.1g}"))
        rows += _direction_rows(np.asarray(content["blow_up"]["directions"]), content["dimension"])
    rows.append(("final mean", in_short(np.asarray(final["mean"]))))
    rows.append(("eigenvalues", in_short(np.asarray(final["eigenvalues"])) or "none: a point"))
    rows.append(("trace", f"{content['initial']['trace']:.6g} to {final['trace']:.6g}"))
    if content["log_det_change"] is not None:
        on_range = "" if rank == content["dimension"] else " (on the range)"
        rows.append(("log det", f"changed by {content['log_det_change']:.6g}{on_range}"))
    steps = content["stats"]["steps"]
    rows.append(("method", content["method"] + (f", {steps} steps" if steps else "")))
    if content["error_estimate"] is not None:
        rows.append(("error", f"about {content['error_estimate']:.1e} relative"))
    rows.append(("seconds", f"{content['seconds']:.2f}, compilation included"))
    return [content["title"], *(f"  {name:<14}{text}" for name, text in rows)]


def _direction_rows(directions: np.ndarray, d: int) -> list[tuple[str, str]]:
    """The directions of a blow-up; where they span everything their basis is arbitrary and says nothing."""
    if len(directions) == d:
        return [("direction", "every one")] if d > 1 else []
    clean = np.where(np.abs(directions) < 1e-12, 0.0, directions)
    rows = [("direction", in_short(row)) for row in clean[:MOST_DIRECTIONS]]
    return rows + ([("", f"... ({len(directions)} in all)")] if len(directions) > MOST_DIRECTIONS else [])
