"""The worked cases with ten-digit values: blow-up times to 1e-9, limits to 1e-8, exact against integrated to 1e-9."""

import json
from pathlib import Path

import numpy as np
import pytest

import gaussflow as gf
from tests.systems.random_problems import relative

CASES = json.loads((Path(__file__).parents[1] / "reference" / "cases.json").read_text())
BLOW_UPS = [case for case in CASES if case.get("sim_status") == "blowup"]
LIMITS = [case for case in CASES if case.get("sim_status") == "T"]
FORMS = ["auto", "covariance", "factor"]
name = lambda case: case["name"]


def problem(case, covariance="S0"):
    p = gf.Parameters(A=case["A"], B=case["B"], V=case["V"])
    return p, gf.Gaussian(np.zeros(case["d"]), case[covariance])


def is_scalar(case):
    V = np.array(case["V"])
    return np.array_equal(V, V[0, 0] * np.eye(len(V)))


def test_all_cases_are_used():
    used = {name(c) for c in BLOW_UPS} | {name(c) for c in LIMITS} | {name(c) for c in CASES if "S_eq" in c}
    assert used | {"PD_limit_cycle"} == {name(c) for c in CASES}


@pytest.mark.parametrize("method", FORMS)
@pytest.mark.parametrize("case", BLOW_UPS, ids=name)
def test_blow_up_time(case, method):
    p, g = problem(case)
    trajectory = gf.simulate(p, g, t1=10.0, method=method)
    assert trajectory.outcome == gf.Outcome.BLOW_UP
    blow_up = trajectory.blow_up
    assert abs(float(blow_up.time) / case["t_star"] - 1) < 1e-9
    # The estimate must cover the error, up to the rounding of the reference itself.
    assert abs(float(blow_up.time) - case["t_star"]) < 20 * float(blow_up.error) + 2e-13 * case["t_star"]
    assert float(trajectory.ts[-1]) < case["t_star"]
    assert np.all(np.isfinite(trajectory.covariances))
    assert np.all(np.isfinite(trajectory.means))
    directions = blow_up.directions
    assert np.allclose(directions.T @ directions, np.eye(directions.shape[1]), atol=1e-12)
    # Σ grows along the directions reported: near the end nearly all of its trace lies in their span.
    final = np.asarray(trajectory.final.covariance)
    assert np.trace(directions.T @ final @ directions) > 0.99 * np.trace(final)


@pytest.mark.parametrize("case", BLOW_UPS, ids=name)
def test_blow_up_bounds(case):
    found = gf.blow_up_time(*problem(case))
    assert found is not None
    assert case.get("t_lower", 0.0) <= float(found.time) <= case.get("t_upper", np.inf)


# The covariance form leaves the set of rank-deficient states where they are transversally unstable.
LIMIT_RUNS = [(c, m) for c in LIMITS for m in FORMS if m != "covariance" or c["rank_S0"] == c["d"]]


@pytest.mark.parametrize(("case", "method"), LIMIT_RUNS, ids=lambda x: x if isinstance(x, str) else name(x))
def test_final_state(case, method):
    p, g = problem(case)
    trajectory = gf.simulate(p, g, t1=case["T"], method=method, rtol=1e-10)
    assert trajectory.outcome == gf.Outcome.COMPLETED
    assert relative(trajectory.final.covariance, case["S_T"]) < 1e-8
    if "limit" in case and case["name"] != "vI_rank1_limit_cycle":
        assert relative(trajectory.final.covariance, case["limit"]) < 1e-6


@pytest.mark.parametrize("case", [c for c in LIMITS if is_scalar(c)], ids=name)
def test_exact_and_integrated_forms_agree(case):
    p, g = problem(case)
    ts = np.linspace(0, case["T"], 11)
    exact = gf.simulate(p, g, t1=case["T"], ts=ts, method="exact")
    integrated = gf.simulate(p, g, t1=case["T"], ts=ts, method="factor", rtol=1e-11)
    for one, other in zip(exact.covariances, integrated.covariances, strict=True):
        assert relative(other, one) < 1e-9


@pytest.mark.parametrize("case", [c for c in CASES if "S_eq" in c], ids=name)
def test_equilibria_stay(case):
    """Started on an equilibrium the flow stays there (for a short time, since some are unstable)."""
    p, g = problem(case, "S_eq")
    trajectory = gf.simulate(p, g, t1=0.05, ts=[0.05])
    assert relative(trajectory.final.covariance, case["S_eq"]) < 1e-8


def test_limit_cycle_period_and_range():
    case = next(c for c in CASES if c["name"] == "PD_limit_cycle")
    p, g = problem(case)
    start = gf.simulate(p, g, t1=400.0, points=1, rtol=1e-10).final
    one = gf.simulate(p, start, t1=case["period"], points=2001, rtol=1e-11)
    assert relative(one.final.covariance, start.covariance) < 1e-6
    traces = np.trace(np.asarray(one.covariances), axis1=1, axis2=2)
    assert np.allclose([traces.min(), traces.max()], case["trace_range"], rtol=1e-5)
    half = gf.simulate(p, start, t1=case["period"] / 2, points=1)
    assert relative(half.final.covariance, start.covariance) > 1e-2
