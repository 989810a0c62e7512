"""Layers that change in time."""

import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from tests.systems.random_problems import draw, relative, solve_with_scipy


def pieces():
    first, g = draw(11, 3)
    second, _ = draw(12, 3)
    return gf.PiecewiseConstant([0.0, 0.2, 0.35, 0.6], [first, gf.Parameters(A=0.5, b=second.b), second]), g


@pytest.mark.parametrize("method", ["covariance", "factor"])
def test_piece_by_piece(method):
    schedule, g = pieces()
    state, edges = g, np.asarray(schedule.edges)
    for k in range(3):
        layer = schedule.layer_in_piece(k, 0.0)
        state = gf.simulate(layer, state, t0=edges[k], t1=edges[k + 1], points=1, rtol=1e-12, method=method).final
    whole = gf.simulate(schedule, g, t1=0.6, points=7, rtol=1e-12, method=method)
    assert whole.outcome == gf.Outcome.COMPLETED
    assert relative(whole.final.covariance, state.covariance) < 1e-10
    assert relative(whole.final.mean, state.mean) < 1e-10
    # A step across a jump would show as many rejected ones.
    assert int(whole.stats["rejected"]) <= 2
    back = gf.simulate(schedule, whole.final, t0=0.6, t1=0.0, points=1, rtol=1e-11, method=method).final
    assert relative(back.covariance, g.covariance) < 1e-8


def test_first_piece_against_scipy():
    schedule, g = pieces()
    trajectory = gf.simulate(schedule, g, t1=0.2, points=3, rtol=1e-11)
    _, covariances = solve_with_scipy(schedule.layer_in_piece(0, 0.0), g, trajectory.ts)
    assert relative(trajectory.covariances, covariances) < 1e-9


def test_blow_up_in_a_later_piece():
    """Nothing happens, then everything: t* = 1 + 1/2 for Σ' = 2Σ² from Σ = 1."""
    quiet, loud = gf.Parameters(A=[[0.0]], V=[[0.0]], B=[[0.0]]), gf.Parameters(A=[[0.0]], V=[[1.0]], B=[[1.0]])
    schedule = gf.PiecewiseConstant([0.0, 1.0], [quiet, loud])
    g = gf.Gaussian([0.0], [[1.0]])
    trajectory = gf.simulate(schedule, g, t1=5.0)
    assert trajectory.outcome == gf.Outcome.BLOW_UP
    assert abs(float(trajectory.blow_up.time) - 1.5) < 1e-9
    assert abs(float(gf.blow_up_time(schedule, g).time) - 1.5) < 1e-9
    assert gf.blow_up_time(schedule, g, 1.2) is None
    rescued = gf.PiecewiseConstant([0.0, 1.0, 1.4], [quiet, loud, quiet])
    saved = gf.simulate(rescued, g, t1=5.0, points=2)
    assert saved.outcome == gf.Outcome.COMPLETED
    assert abs(float(saved.final.covariance[0, 0]) - 1 / (1 - 2 * 0.4)) < 1e-7


def test_any_function_of_time():
    """d = 1 with a(t) = cos t and no attention: σ(t) = exp(2 sin t), μ(t) = exp(sin t)."""
    schedule = gf.TimeVarying(lambda t: gf.Parameters(A=jnp.cos(t) * jnp.eye(1)))
    trajectory = gf.simulate(schedule, gf.Gaussian([1.0], [[1.0]]), t1=3.0, points=31, rtol=1e-10)
    assert np.allclose(trajectory.covariances[:, 0, 0], np.exp(2 * np.sin(trajectory.ts)), rtol=1e-9)
    assert np.allclose(trajectory.means[:, 0], np.exp(np.sin(trajectory.ts)), rtol=1e-9)


def test_blow_up_of_a_time_varying_layer():
    """Σ' = 2 c(t) Σ² with c = 1 + sin t: 1/Σ = 1 − 2(t + 1 − cos t), a root found by itself."""
    from scipy.optimize import brentq

    schedule = gf.TimeVarying(lambda t: gf.Parameters(B=jnp.eye(1), V=(1 + jnp.sin(t)) * jnp.eye(1)))
    expected = brentq(lambda t: 1 - 2 * (t + 1 - np.cos(t)), 0, 1, xtol=1e-15)
    found = gf.blow_up_time(schedule, gf.Gaussian([0.0], [[1.0]]))
    assert abs(float(found.time) / expected - 1) < 1e-9
    trajectory = gf.simulate(schedule, gf.Gaussian([0.0], [[1.0]]), t1=2.0)
    assert abs(float(trajectory.blow_up.time) / expected - 1) < 1e-9


def test_jumps_of_a_function():
    layer = lambda t: gf.Parameters(A=jnp.where(t < 0.5, 1.0, -2.0) * jnp.eye(1))
    trajectory = gf.simulate(
        gf.TimeVarying(layer, jumps=[0.5]), gf.Gaussian([0.0], [[1.0]]), t1=1.0, points=2, rtol=1e-10
    )
    assert abs(float(trajectory.final.covariance[0, 0]) / np.exp(2 * 0.5 - 4 * 0.5) - 1) < 1e-9


def test_outside_the_schedule():
    schedule, g = pieces()
    with pytest.raises(gf.InvalidInput, match=r"^t1: got 0.7; wanted .* which runs from 0 to 0.6"):
        gf.simulate(schedule, g, t1=0.7)
