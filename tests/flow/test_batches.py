"""Lanes of a vmap against a loop, no hidden compilation, and what jit returns."""

import jax
import jax.numpy as jnp
import numpy as np

import gaussflow as gf
from tests.systems.random_problems import draw, relative


def lanes():
    drawn = [draw(seed, 2) for seed in range(4)]
    blowing = gf.Parameters(A=[[1.0, 1.0], [-1.0, 1.0]], V=[[2.0, 1.0], [-1.0, 1.0]], B=1.0, b=[0.0, 0.0])
    drawn.insert(2, (blowing, gf.Gaussian([0.0, 0.0], np.eye(2))))
    return drawn


def test_vmap_against_a_loop():
    drawn = lanes()
    batch = jax.jit(jax.vmap(lambda p, g: gf.simulate(p, g, t1=0.5, points=4)))(
        gf.stack([p for p, _ in drawn]), gf.stack([g for _, g in drawn])
    )
    assert gf.Outcome.label(batch.outcome) == "4 completed, 1 blow-up"
    assert np.array_equal(batch.blow_up.found, [False, False, True, False, False])
    assert np.all(np.isfinite(batch.means))
    assert np.all(np.isfinite(batch.covariances))
    for i, (p, g) in enumerate(drawn):
        one = gf.simulate(p, g, t1=0.5, points=4)
        n = int(np.sum(batch.valid[i]))
        assert n == one.ts.shape[0]
        assert np.allclose(batch.ts[i, :n], one.ts, rtol=1e-9)
        # Closer to the blow-up the same relative error of t* shows magnified.
        tolerance = 1e-7 if i != 2 else 1e-6
        assert relative(batch.final.covariance[i], one.final.covariance) < tolerance
        assert relative(batch.final.mean[i] + 1.0, one.final.mean + 1.0) < tolerance
        if one.blow_up is not None:
            assert abs(float(batch.blow_up.time[i]) / float(one.blow_up.time) - 1) < 1e-9


def test_one_blowing_lane_costs_the_others_a_bounded_number_of_steps():
    drawn = lanes()
    run = jax.jit(jax.vmap(lambda p, g: gf.simulate(p, g, t1=0.5, points=2).stats["steps"]))
    with_it = run(gf.stack([p for p, _ in drawn]), gf.stack([g for _, g in drawn]))
    assert int(np.max(with_it)) < 300


def test_a_second_call_does_not_compile():
    from gaussflow.flow import kernels

    p, g = draw(1, 2)
    gf.simulate(p, g, t1=0.4, points=9)
    before = kernels.explicit_jit._cache_size()
    for seed, t1 in ((2, 0.3), (3, 0.45)):
        q, h = draw(seed, 2)
        gf.simulate(q, h, t1=t1, points=9, rtol=1e-7)
        gf.simulate(q, h, t1=jnp.asarray(t1), t0=0, points=9)
    assert kernels.explicit_jit._cache_size() == before


def test_jit_pads_and_marks():
    p = gf.Parameters(A=[[1.0]], V=1.0, B=1.0)
    ts = jnp.linspace(0.0, 1.0, 11)
    trajectory = jax.jit(lambda p: gf.simulate(p, gf.Gaussian(jnp.zeros(1), jnp.ones((1, 1))), t1=1.0, ts=ts))(p)
    t_star = np.log(2) / 2
    assert np.array_equal(trajectory.valid, np.asarray(ts) < t_star)
    last = trajectory.covariances[int(np.sum(trajectory.valid)) - 1]
    assert np.array_equal(trajectory.covariances[-1], last)
    assert np.array_equal(trajectory.final.covariance, last)
    assert bool(trajectory.blow_up.found)
    assert trajectory.outcome == gf.Outcome.BLOW_UP


def test_dense_evaluation_is_as_accurate_as_the_run():
    p, g = draw(7, 2)
    trajectory = gf.simulate(p, g, t1=0.5, points=4, dense=True, rtol=1e-10)
    times = np.array([0.0, 0.123, 0.3, 0.5])
    many = trajectory(times)
    for i, t in enumerate(times):
        one = gf.simulate(p, g, t1=0.5, ts=[t], rtol=1e-11).final
        assert relative(many.factor[i] @ many.factor[i].T, one.covariance) < 1e-9
        assert relative(trajectory(t).mean, one.mean) < 1e-9


def test_error_estimate_covers_the_error():
    for seed in range(3):
        p, g = draw(seed, 2)
        coarse = gf.simulate(p, g, t1=0.5, points=4, rtol=1e-5, error=True)
        fine = gf.simulate(p, g, t1=0.5, points=4, rtol=1e-12)
        true = max(relative(a, b) for a, b in zip(coarse.covariances, fine.covariances, strict=True))
        estimate = float(coarse.error_estimate)
        assert true < 5 * estimate + 1e-14
        assert estimate < 1e-4
