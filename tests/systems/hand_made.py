"""Trajectories put together by hand: no integration, no compilation."""

import jax.numpy as jnp
import numpy as np

import gaussflow as gf
from gaussflow.flow.run import Status


def trajectory(ts, means, *, factors=None, covariances=None, blow_up_time=None, outcome=None, status=None):
    """A trajectory with these states, ended by a blow-up in the first coordinate if a time for it is given."""
    ts, means = jnp.asarray(ts, float), jnp.asarray(means, float)
    factors = None if factors is None else jnp.asarray(factors, float)
    covariances = None if covariances is None else jnp.asarray(covariances, float)
    d = means.shape[1]
    found = blow_up_time is not None
    record = gf.BlowUp(
        time=jnp.asarray(blow_up_time if found else jnp.nan),
        error=jnp.asarray(1e-9),
        factor=jnp.eye(d)[:, :1],
        turning=jnp.zeros((d, 1)),
        found=jnp.asarray(found),
    )
    start = (
        gf.Gaussian(means[0], np.asarray(covariances[0]))
        if factors is None
        else gf.Gaussian(means[0], factor=factors[0])
    )
    return gf.Trajectory(
        ts=ts,
        means=means,
        saved_factors=factors,
        saved_covariances=covariances,
        valid=jnp.ones(ts.shape, bool),
        outcome=outcome or (gf.Outcome.BLOW_UP if found else gf.Outcome.COMPLETED),
        blow_up_record=record,
        stats={
            "steps": np.asarray(7),
            "rejected": np.asarray(0),
            "evaluations": np.asarray(70),
            "status": np.asarray(status or Status.REACHED_END),
        },
        start=start,
    )


def shrinking(d=2, rank=None, n=30, seed=0):
    """A Gaussian that turns, moves and shrinks; from factors of the given rank, else from covariances."""
    rng = np.random.default_rng(seed)
    ts = np.linspace(0.0, 3.0, n)
    factor = rng.normal(size=(d, rank or d))
    rates = rng.uniform(0.1, 0.6, size=d)
    factors = np.exp(-rates[:, None] * ts[:, None, None]) * factor
    means = np.cos(ts[:, None] * np.arange(1, d + 1) / d)
    if rank is not None:
        return trajectory(ts, means, factors=factors)
    covariances = factors @ np.swapaxes(factors, 1, 2)
    return trajectory(ts, means, covariances=0.5 * (covariances + np.swapaxes(covariances, 1, 2)))


def failing(states):
    """The same states, of a run that ran out of steps."""
    return trajectory(
        states.ts,
        states.means,
        covariances=states.saved_covariances,
        outcome=gf.Outcome.FAILED,
        status=Status.OUT_OF_STEPS,
    )


def growing(d=2, n=40):
    """Σ = diag(1/(1 - t), 1, ...), mean e₁/(1 - t): a blow-up at t = 1 in the first direction."""
    ts = 1.0 - np.linspace(1.0, 0.02, n) ** 2
    covariances = np.tile(np.eye(d), (n, 1, 1))
    covariances[:, 0, 0] = 1.0 / (1.0 - ts)
    means = np.zeros((n, d))
    means[:, 0] = 1.0 / (1.0 - ts)
    return trajectory(ts, means, covariances=covariances, blow_up_time=1.0)
