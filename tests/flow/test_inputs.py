"""Bad input to simulate and blow_up_time: one line that names the argument."""

import numpy as np
import pytest

import gaussflow as gf

P = gf.Parameters(A=np.eye(2), V=[[-1.0, 0.1], [0.0, -1.0]], B=np.eye(2))
G = gf.Gaussian(np.zeros(2), np.eye(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(t1=np.nan), r"^t1: got 1 NaN or infinite entry"),
        (dict(t1=[1.0, 2.0]), r"^t1: got shape \(2,\); wanted one number"),
        (dict(t1=1j), r"^t1: got complex numbers"),
        (dict(t1="five"), r"^t1: got "),
        (dict(ts=[0.0, 2.0, 1.0]), r"^ts: got unsorted save times; wanted increasing times"),
        (dict(ts=[0.0, 6.0]), r"^ts: got 1 times outside the run, first 6; wanted times from t0 = 0 to t1 = 5"),
        (dict(ts=[]), r"^ts: got shape \(0,\)"),
        (dict(ts=[0.0, np.inf]), r"^ts: got 1 NaN or infinite entry"),
        (dict(points=0), r"^points: got 0; wanted a positive integer"),
        (dict(points=2.5), r"^points: got 2.5"),
        (dict(points=10**12), r"^points: got 1000000000000 states .* GiB; wanted at most 64 GiB"),
        (dict(method="implicit"), r"^method: got 'implicit'; wanted one of auto, covariance, factor, exact, stiff"),
        (dict(method="exact"), r"^method: got 'exact' with V that is no multiple of the identity"),
        (dict(solver="rk45"), r"^solver: got 'rk45'; wanted one of heun"),
        (dict(solver=3), r"^solver: got int"),
        (dict(step=0.0), r"^step: got 0; wanted a positive step size"),
        (dict(step=-1.0), r"^step: got -1"),
        (dict(rtol=0.0), r"^rtol: got 0; wanted a positive tolerance"),
        (dict(rtol=1e-15), r"^rtol: got 1e-15; wanted at least 1e-13, what double precision reaches"),
        (dict(rtol=0.5), r"^rtol: got 0.5; wanted at most 0.1"),
        (dict(atol=-1.0), r"^atol: got -1.0"),
        (dict(max_steps=0), r"^max_steps: got 0"),
        (dict(differentiate="both"), r"^differentiate: got 'both'"),
    ],
)
def test_options(options, message):
    with pytest.raises(gf.InvalidInput, match=message) as caught:
        gf.simulate(P, G, **options)
    assert "\n" not in str(caught.value)


def test_objects():
    with pytest.raises(gf.InvalidInput, match=r"^gaussian: got tuple; wanted a gaussflow.Gaussian"):
        gf.simulate(P, (np.zeros(2), np.eye(2)))
    with pytest.raises(gf.InvalidInput, match=r"^parameters: got dict"):
        gf.simulate({"A": 1.0}, G)
    with pytest.raises(gf.InvalidInput, match=r"^parameters: got a layer of dimension 2 beside"):
        gf.simulate(P, gf.Gaussian(np.zeros(3), np.eye(3)))
    with pytest.raises(gf.InvalidInput, match=r"^gaussian: got a batch of shape \(2,\)"):
        gf.simulate(P, gf.stack([G, G]))
    with pytest.raises(gf.InvalidInput, match=r"^horizon: got "):
        gf.blow_up_time(P, G, horizon=np.nan)
    with pytest.raises(gf.InvalidInput, match=r"^t: got a trajectory saved at points"):
        gf.simulate(P, G, t1=1.0)(0.5)
    with pytest.raises(gf.InvalidInput, match=r"^t: got 2; wanted a time from 0 to 1"):
        gf.simulate(P, G, t1=1.0, dense=True)(2.0)


def test_equal_times_give_one_point():
    trajectory = gf.simulate(P, gf.Gaussian([1.0, 2.0], np.eye(2)), t0=2.0, t1=2.0)
    assert trajectory.outcome == gf.Outcome.COMPLETED
    assert np.array_equal(trajectory.ts, [2.0])
    assert np.array_equal(trajectory.means, [[1.0, 2.0]])


def test_integers_are_converted():
    p = gf.Parameters(A=np.eye(2, dtype=int), V=-1, B=np.array([[2, 1], [1, 2]]), b=[1, 0])
    assert p.A.dtype == np.float64
    trajectory = gf.simulate(p, gf.Gaussian([0, 0], [[2, 1], [1, 2]]), t1=1)
    assert trajectory.outcome == gf.Outcome.COMPLETED


def test_a_trajectory_prints_itself():
    text = str(gf.simulate(P, G, t1=1.0))
    assert "outcome      completed" in text
    assert "eigenvalues" in text
    assert all(len(line) < 120 for line in text.splitlines())
