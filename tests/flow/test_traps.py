"""Scales that fool a blow-up detector, and growth that is not blow-up."""

import numpy as np
import pytest

import gaussflow as gf

METHODS = ["auto", "factor", "covariance"]


def scalar(a, v, b):
    return gf.Parameters(A=[[a]], V=[[v]], B=[[b]])


def start(variance):
    return gf.Gaussian([0.0], [[variance]])


def formula(a, c, s):
    return 1 / (2 * c * s) if a == 0 else np.log1p(a / (c * s)) / (2 * a)


def test_equilibrium_at_1e20_is_no_blow_up():
    trajectory = gf.simulate(scalar(1e20, -1.0, 1.0), start(1.0), t1=50.0)
    assert trajectory.outcome == gf.Outcome.COMPLETED
    assert abs(float(trajectory.final.covariance[0, 0]) / 1e20 - 1) < 1e-8
    assert gf.blow_up_time(scalar(1e20, -1.0, 1.0), start(1.0), method="compactified") is None


@pytest.mark.parametrize("method", METHODS)
def test_a_huge_start_that_decays_is_no_blow_up(method):
    trajectory = gf.simulate(scalar(1.0, -1.0, 1.0), start(1e18), t1=5.0, method=method)
    assert trajectory.outcome == gf.Outcome.COMPLETED
    exact = 1 / (1 + (1e-18 - 1) * np.exp(-10.0))
    assert abs(float(trajectory.final.covariance[0, 0]) / exact - 1) < 1e-8


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("a", "v", "b", "s"),
    [
        (0.0, 1.0, 1.0, 1.0),
        (0.0, 3.0, 0.1, 2.0),
        (1.0, 1e-20, 1.0, 1.0),
        (1.0, 1.0, 1.0, 1e-18),
        (-1.0, 1.0, 1.0, 1.0 + 1e-6),
        (1e6, 1.0, 1e3, 1e3),
        (1e-6, 1e-3, 1e-3, 1e6),
        (1.0, -2.0, -3.0, 0.1),
    ],
)
def test_the_scalar_formula_at_every_scale(method, a, v, b, s):
    expected = formula(a, v * b, s)
    trajectory = gf.simulate(scalar(a, v, b), start(s), t1=3 * expected, method=method)
    assert trajectory.outcome == gf.Outcome.BLOW_UP
    # A start close to the unstable equilibrium amplifies the rounding of s - 1 by 1e6.
    tolerance = 1e-9 if a >= 0 else 1e-7
    assert abs(float(trajectory.blow_up.time) / expected - 1) < tolerance
    assert np.all(np.isfinite(trajectory.covariances))


@pytest.mark.parametrize("method", METHODS)
def test_just_before_and_just_after(method):
    p, g = scalar(1.0, 1.0, 1.0), start(1.0)
    t_star = 0.5 * np.log(2.0)
    before = gf.simulate(p, g, t1=t_star * (1 - 1e-6), method=method, points=3)
    assert before.outcome == gf.Outcome.COMPLETED
    exact = 1 / (2 * np.exp(-2 * t_star * (1 - 1e-6)) - 1)
    assert abs(float(before.final.covariance[0, 0]) / exact - 1) < 1e-3
    after = gf.simulate(p, g, t1=t_star * (1 + 1e-9), method=method, points=3)
    assert after.outcome == gf.Outcome.BLOW_UP


def test_no_state_past_the_blow_up_is_returned():
    asked = np.linspace(0, 1, 101)
    trajectory = gf.simulate(scalar(1.0, 1.0, 1.0), start(1.0), t1=1.0, ts=asked, method="factor")
    t_star = 0.5 * np.log(2.0)
    assert np.array_equal(trajectory.ts, asked[asked < t_star])
    assert trajectory.valid.shape == trajectory.ts.shape
    assert np.all(trajectory.valid)
    only_later = gf.simulate(scalar(1.0, 1.0, 1.0), start(1.0), t1=1.0, ts=[0.5, 1.0], method="factor")
    assert only_later.outcome == gf.Outcome.BLOW_UP
    assert only_later.ts.shape == (0,)
    assert float(only_later.final.covariance[0, 0]) == 1.0


def test_growth_without_a_quadratic_direction_is_no_blow_up():
    """V and B nilpotent: Σ grows like e⁵⁰ and more, γ > 0, and yet nothing blows up."""
    shift = np.array([[0.0, 1.0], [0.0, 0.0]])
    p = gf.Parameters(A=np.eye(2), V=shift, B=shift)
    trajectory = gf.simulate(p, gf.Gaussian(np.zeros(2), np.eye(2)), t1=40.0)
    assert trajectory.outcome == gf.Outcome.COMPLETED
    # Σ₂₂ sees only A, exactly.
    assert abs(float(trajectory.final.covariance[1, 1]) / np.exp(80.0) - 1) < 1e-7


def test_running_out_of_steps_is_failure_in_words():
    p = gf.Parameters(A=[[0.0, 5.0], [-5.0, 0.1]], V=[[-1.0, 0.1], [0.0, -1.0]], B=1.0)
    trajectory = gf.simulate(p, gf.Gaussian(np.zeros(2), np.eye(2)), t1=100.0, max_steps=10, method="factor")
    assert trajectory.outcome == gf.Outcome.FAILED
    assert trajectory.blow_up is None
    assert "ran out of steps" in trajectory.cause
    assert "ran out of steps" in str(trajectory)
    assert np.all(np.isfinite(trajectory.means))
    assert float(trajectory.ts[-1]) < 100.0


def test_a_point_and_a_zero_factor_never_blow_up():
    p = gf.Parameters(A=[[1.0, 0.3], [0.0, 0.5]], V=[[1.0, 0.2], [0.0, 2.0]], B=1.0, b=[1.0, 0.0])
    exact = gf.simulate(gf.Parameters(A=p.A + p.V, b=[1.0, 0.0]), gf.Gaussian([1.0, 1.0], np.zeros((2, 2))), t1=2.0)
    for factor in (np.zeros((2, 0)), np.zeros((2, 2))):
        trajectory = gf.simulate(p, gf.Gaussian.from_factor([1.0, 1.0], factor), t1=2.0)
        assert trajectory.outcome == gf.Outcome.COMPLETED
        assert np.allclose(trajectory.final.mean, exact.final.mean, rtol=1e-8)
        assert float(np.abs(trajectory.final.covariance).max()) == 0.0
