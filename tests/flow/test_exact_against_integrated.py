"""203 random problems with V = vI, integrated against the closed form: states to 1e-7, blow-up times to 1e-8."""

import numpy as np
import pytest

import gaussflow as gf
from tests.systems.random_problems import relative

# Mixed ranks; for r < d the range moves, since A is in general position.
SHAPES = [(1, 1), (2, 1), (3, 3), (6, 2), (10, 10), (16, 5), (20, 20)]
EACH = 29
END = 1.5


def problem(seed: int, d: int, rank: int):
    rng = np.random.default_rng([seed, d, rank])
    matrix = lambda: rng.normal(size=(d, d)) / np.sqrt(d)
    v = rng.choice([-1.0, 1.0]) * rng.uniform(0.3, 1.0)
    B = matrix() + rng.uniform(0.0, 1.0) * np.eye(d)
    factor = rng.normal(size=(d, rank)) / np.sqrt(rank)
    p = gf.Parameters(A=matrix(), B=B, V=v, b=rng.normal(size=d))
    return p, gf.Gaussian.from_factor(rng.normal(size=d), 0.7 * factor)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integrated_against_exact(shape):
    blow_ups = 0
    for seed in range(EACH):
        p, g = problem(seed, *shape)
        exact = gf.simulate(p, g, t1=END, points=2, method="exact")
        integrated = gf.simulate(p, g, t1=END, points=2, method="factor")
        assert exact.outcome == integrated.outcome
        if exact.blow_up is None:
            assert relative(integrated.final.covariance, exact.final.covariance) < 1e-7
            assert relative(integrated.final.mean, exact.final.mean) < 1e-7
        else:
            blow_ups += 1
            assert abs(float(integrated.blow_up.time) / float(exact.blow_up.time) - 1) < 1e-8
            off = abs(float(integrated.blow_up.time) - float(exact.blow_up.time))
            assert off < 50 * float(integrated.blow_up.error)
            one, other = exact.blow_up.directions, integrated.blow_up.directions
            assert one.shape == other.shape
            assert np.allclose(np.linalg.svd(one.T @ other, compute_uv=False), 1.0, atol=1e-6)
    assert 0 < blow_ups < EACH
