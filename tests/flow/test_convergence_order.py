"""Each fixed-step method converges with its nominal order, within 0.15."""

import numpy as np
import pytest

import gaussflow as gf
from gaussflow.flow.tableau import SOLVERS, tableau_of
from tests.systems.random_problems import draw, relative, solve_with_scipy

END = 2.0
# Step counts at which the error lies between the start of the asymptotic regime and rounding.
COUNTS = {2: (128, 181, 256), 3: (64, 96, 128), 5: (48, 64, 96, 128), 8: (34, 38, 42, 46)}


def rotating_problem():
    """V = vI, so that the closed form is the reference, and a mild rotation."""
    rng = np.random.default_rng(1)
    K = rng.normal(size=(3, 3))
    A, B = 1.2 * (K - K.T) + 0.1 * rng.normal(size=(3, 3)), np.eye(3) + 0.3 * rng.normal(size=(3, 3))
    return gf.Parameters(A=A, B=B, V=-0.4, b=np.ones(3)), gf.Gaussian(np.zeros(3), np.diag([1.0, 0.5, 0.25]))


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_order(solver):
    p, g = rotating_problem()
    reference = gf.simulate(p, g, t1=END, ts=[END], method="exact").final.covariance
    order = tableau_of(solver).order
    errors = []
    for n in COUNTS[order]:
        run = gf.simulate(p, g, t1=END, ts=[END], solver=solver, step=END / n, method="factor", max_steps=512)
        assert run.outcome == gf.Outcome.COMPLETED
        assert int(run.stats["steps"]) == n
        errors.append(relative(run.final.covariance, reference))
    slope = -np.polyfit(np.log(COUNTS[order]), np.log(errors), 1)[0]
    assert abs(slope - order) < 0.15, (errors, slope)


def test_saved_states_are_as_good_as_steps():
    """The interpolant of the default pair does not lose what the steps have gained."""
    p, g = draw(2, 3)
    ts = np.linspace(0, 1, 57)
    trajectory = gf.simulate(p, g, t1=1.0, ts=ts, rtol=1e-9, method="factor")
    assert int(trajectory.stats["steps"]) < 40
    means, covariances = solve_with_scipy(p, g, ts)
    assert relative(trajectory.covariances, covariances) < 1e-9
    assert relative(trajectory.means, means) < 1e-9


def test_tolerance_is_met():
    p, g = draw(4, 3)
    _, reference = solve_with_scipy(p, g, [0.0, 1.0], rtol=1e-13)
    for rtol in (1e-4, 1e-6, 1e-8, 1e-10):
        found = gf.simulate(p, g, t1=1.0, ts=[1.0], rtol=rtol).final
        assert relative(found.covariance, reference[-1]) < rtol
