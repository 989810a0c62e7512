"""The summary of a simulation: one dictionary for JSON, and the short table printed from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gaussflow.files.problem import Problem
from gaussflow.flow.trajectory import Trajectory, in_short
from gaussflow.gaussian import Gaussian


def summary_of(problem: Problem, trajectory: Trajectory, *, seconds: float) -> dict[str, Any]:
    """Everything worth telling about a run, as JSON-ready numbers."""
    from gaussflow import __version__

    start, final = problem.initial, trajectory.final
    content = {
        "title": problem.title,
        "source": str(problem.source),
        "dimension": start.dim,
        "rank": start.rank,
        "requested_interval": [problem.simulate.get("t0", 0.0), problem.simulate.get("t1", 5.0)],
        **trajectory.to_dict(),
        "initial": _state(start),
        "final": _state(final),
        "seconds": round(seconds, 3),
        "version": __version__,
    }
    first, last = content["initial"]["log_det"], content["final"]["log_det"]
    content["log_det_change"] = None if first is None or last is None else last - first
    return content


def _state(gaussian: Gaussian) -> dict[str, Any]:
    eigenvalues = np.sort(np.linalg.svd(np.asarray(gaussian.factor), compute_uv=False) ** 2)[::-1]
    positive = eigenvalues[: gaussian.rank]
    log_det = float(np.sum(np.log(positive))) if len(positive) and np.all(positive > 0) else None
    return {
        "mean": np.asarray(gaussian.mean).tolist(),
        "eigenvalues": eigenvalues.tolist(),
        "trace": float(np.sum(eigenvalues)),
        "rank": gaussian.rank,
        "log_det": log_det,
    }


def summary_lines(content: dict[str, Any]) -> list[str]:
    """A short table: what was asked, how it ended, where it ended, how it was computed."""
    final = content["final"]
    rows = [("dimension", f"{content['dimension']}, rank {content['rank']}")]
    if content["t_last"] is not None:
        rows.append(("time", f"{content['t0']:g} to {content['t_last']:.10g}, {content['points']} points"))
    rows.append(("outcome", content["outcome"]))
    if content["outcome"] == "failed":
        rows.append(("cause", content["cause"]))
    if content["blow_up"] is not None:
        rows.append(("blow-up time", f"{content['blow_up']['time']:.12g}, error about {content['blow_up']['error']:.1g}"))
        for direction in content["blow_up"]["directions"][:3]:
            rows.append(("direction", in_short(np.asarray(direction))))
    rows.append(("final mean", in_short(np.asarray(final["mean"]))))
    rows.append(("eigenvalues", in_short(np.asarray(final["eigenvalues"])) or "none: a point"))
    rows.append(("trace", f"{content['initial']['trace']:.6g} to {final['trace']:.6g}"))
    if content["log_det_change"] is not None:
        pseudo = "" if content["rank"] == content["dimension"] else " (on the range)"
        rows.append(("log det", f"changed by {content['log_det_change']:.6g}{pseudo}"))
    steps = content["stats"]["steps"]
    rows.append(("method", content["method"] + (f", {steps} steps" if steps else "")))
    if content["error_estimate"] is not None:
        rows.append(("error", f"about {content['error_estimate']:.1e} relative"))
    rows.append(("seconds", f"{content['seconds']:.2f}, compilation included"))
    return [content["title"], *(f"{name:<14}{text}" for name, text in rows)]
