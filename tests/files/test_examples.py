"""The examples, run as a user runs them: what their comments promise is what comes out."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import gaussflow as gf
from gaussflow.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, folder, *options):
    """Summary and arrays of one example through the command line."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", str(EXAMPLES / f"{name}.toml"), "--out", str(folder), *options])
    assert ended.value.code == 0
    with np.load(folder / "trajectory.npz") as saved:
        return json.loads((folder / "summary.json").read_text()), dict(saved)


def field(p):
    """The right-hand side of theory and paper, written down once more in plain NumPy."""
    A, b = np.asarray(p.A), np.asarray(p.b)
    d = len(b)
    A = A * np.eye(d) if A.ndim == 0 else A
    B, V = (np.asarray(x) * np.eye(d) if x.ndim == 0 else np.asarray(x) for x in (p.B, p.V))
    heads = list(zip(B, V, strict=True)) if B.ndim == 3 else [(B, V)]

    def velocity(t, y):
        mean, covariance = y[:d], y[d:].reshape(d, d)
        M = A + sum(v @ covariance @ b_ for b_, v in heads)
        drift = M @ mean + sum(v @ mean for _, v in heads) + b
        return np.concatenate([drift, (M @ covariance + covariance @ M.T).ravel()])

    return velocity


def solved(velocity, mean, covariance, t0, t1):
    y = np.concatenate([mean, covariance.ravel()])
    end = solve_ivp(velocity, (t0, t1), y, method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    d = len(mean)
    return end[:d], end[d:].reshape(d, d)


def test_iris_settles(tmp_path):
    summary, arrays = run("iris", tmp_path, "--t1", "60", "--plot")
    samples = np.loadtxt(EXAMPLES / "iris.csv", delimiter=",", skiprows=1, usecols=range(4))
    assert np.allclose(arrays["means"][0], samples.mean(axis=0), rtol=1e-13, atol=0)
    assert np.allclose(arrays["covariances"][0], np.cov(samples.T), rtol=1e-11, atol=1e-13)
    assert (summary["dimension"], summary["rank"], summary["outcome"]) == (4, 4, "completed")
    mean, covariance = arrays["means"][-1], arrays["covariances"][-1]
    velocity = field(gf.load_problem(EXAMPLES / "iris.toml").parameters)
    assert np.max(np.abs(velocity(0.0, np.concatenate([mean, covariance.ravel()])))) < 1e-7
    assert np.min(np.linalg.eigvalsh(covariance)) > 0.3
    assert set(summary["files"]) == {path.name for path in tmp_path.iterdir()}
    assert {"trajectory.png", "trajectory.pdf"} < set(summary["files"])


def test_blow_up_in_a_process_of_its_own(tmp_path):
    arguments = ["simulate", "blow_up.toml", "--json", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "gaussflow.cli", *arguments], capture_output=True, text=True, check=True, cwd=EXAMPLES
    )
    assert done.stderr == ""
    summary = json.loads(done.stdout, parse_constant=pytest.fail)
    assert summary["outcome"] == "blow-up"
    assert abs(summary["blow_up"]["time"] - np.log(4 / 3) / 2) < 1e-11  # so 64-bit floats are on
    assert (summary["source"], summary["asked"], summary["cause"]) == ("blow_up.toml", {"t1": 1.0}, None)
    saved = json.loads((tmp_path / "summary.json").read_text())
    assert saved.pop("files") == ["summary.json", "trajectory.npz"]
    assert saved == summary
    with np.load(tmp_path / "trajectory.npz") as arrays:
        assert np.all(arrays["ts"] < summary["blow_up"]["time"])
        assert np.all(np.isfinite(arrays["covariances"]))


def test_rank_deficient(tmp_path):
    summary, arrays = run("rank_deficient", tmp_path, "--t1", str(np.pi))
    assert (summary["rank"], summary["outcome"]) == (1, "completed")
    lengths = np.trace(arrays["covariances"], axis1=1, axis2=2)
    assert np.allclose(lengths, 1.0, rtol=0, atol=1e-9)
    assert np.allclose(arrays["covariances"][-1], arrays["covariances"][0], rtol=0, atol=1e-9)
    half = arrays["covariances"][len(lengths) // 2]
    assert half[0, 0] < 0.1
    p = gf.load_problem(EXAMPLES / "rank_deficient.toml").parameters
    _, full = solved(field(p), np.zeros(2), np.array([[3.0, 1.0], [1.0, 0.5]]), 0.0, 20.0)
    assert np.allclose(full, np.eye(2), rtol=0, atol=1e-9)


def test_multi_head(tmp_path):
    summary, arrays = run("multi_head", tmp_path)
    problem = gf.load_problem(EXAMPLES / "multi_head.toml")
    assert problem.parameters.heads == 2
    start = np.asarray(problem.initial.mean), np.asarray(problem.initial.covariance)
    mean, covariance = solved(field(problem.parameters), *start, 0.0, 8.0)
    assert np.allclose(arrays["means"][-1], mean, rtol=0, atol=1e-8)
    assert np.allclose(arrays["covariances"][-1], covariance, rtol=0, atol=1e-8)
    assert summary["outcome"] == "completed"
    p = problem.parameters
    alone = field(gf.Parameters(A=p.A, B=p.B[0], V=p.V[0], b=p.b))
    # Near its blow-up the largest variance is the inverse of a linear function of time.
    inverse = [1 / np.linalg.eigvalsh(solved(alone, *start, 0.0, t)[1])[-1] for t in (0.693, 0.694)]
    assert 0.694 + 0.001 * inverse[1] / (inverse[0] - inverse[1]) == pytest.approx(0.6946, abs=5e-5)


def test_piecewise(tmp_path):
    _, arrays = run("piecewise", tmp_path)
    problem = gf.load_problem(EXAMPLES / "piecewise.toml")
    state = np.asarray(problem.initial.mean), np.asarray(problem.initial.covariance)
    for t0, t1 in ((0.0, 1.0), (1.0, 2.5), (2.5, 4.0)):
        state = solved(field(problem.parameters(0.5 * (t0 + t1))), *state, t0, t1)
    assert np.allclose(arrays["means"][-1], state[0], rtol=0, atol=1e-8)
    assert np.allclose(arrays["covariances"][-1], state[1], rtol=0, atol=1e-8)
    turning = np.linalg.eigvalsh(arrays["covariances"][arrays["ts"] > 2.5])
    assert np.allclose(turning, turning[0], rtol=0, atol=1e-8)
    assert np.ptp(arrays["means"][arrays["ts"] > 2.5], axis=0).max() > 0.2


def test_every_example_is_run_here():
    names = {path.stem for path in EXAMPLES.glob("*.toml")}
    assert names == {"iris", "blow_up", "rank_deficient", "multi_head", "piecewise"}
