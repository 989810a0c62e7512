"""One trajectory: gaussflow against scipy's DOP853 and plain diffrax on the same right-hand side, at equal error.

    python -m benchmarks.single_trajectory

All three solve the full system, mean and covariance, from t = 0 to 5 with every matrix in general position. Tolerances
are the loosest of a ladder of half decades whose relative error against a tight reference is at most TARGET. Times are
the best of several repeats after compilation, measured in one run, results ready.
"""

from __future__ import annotations

import time
from functools import partial

import diffrax
import jax
import numpy as np
from scipy.integrate import solve_ivp

import gaussflow as gf

TARGET = 1e-8
HORIZON = 5.0
LADDER = [10.0 ** (-k / 2) for k in range(10, 25)]
GOALS = {2: 20.0, 8: 5.0, 32: 3.0, 128: 1.0, 256: 1.0}


def problem(d: int):
    """Growth held by attention: bounded, with a positive definite limit."""
    rng = np.random.default_rng(d)
    noise = lambda size: size * rng.normal(size=(d, d)) / np.sqrt(d)
    p = gf.Parameters(A=0.5 * np.eye(d) + noise(0.7), V=-np.eye(d) + noise(0.2), B=np.eye(d) + noise(0.2), b=np.ones(d))
    return p, gf.Gaussian(np.zeros(d), 2.0 * np.eye(d))


def scipy_problem(p, g):
    d = p.dim
    A, B, V, b = (np.asarray(x) for x in (p.A, p.B, p.V, p.b))

    def rhs(_, y):
        covariance, mean = y[d:].reshape(d, d), y[:d]
        M = A + V @ covariance @ B
        flow = M @ covariance
        return np.concatenate([M @ mean + V @ mean + b, (flow + flow.T).ravel()])

    start = np.concatenate([np.asarray(g.mean), np.asarray(g.covariance).ravel()])
    return rhs, start


def with_scipy(p, g, rtol):
    rhs, start = scipy_problem(p, g)
    y = solve_ivp(rhs, (0.0, HORIZON), start, method="DOP853", rtol=rtol, atol=1e-3 * rtol).y[:, -1]
    return y[: p.dim], y[p.dim :].reshape(p.dim, p.dim)


def plain_rhs(_, y, p):
    mean, covariance = y
    M = p.A + p.V @ covariance @ p.B
    flow = M @ covariance
    return M @ mean + p.V @ mean + p.b, flow + flow.T


@jax.jit
def _diffrax(p, mean, covariance, rtol):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(plain_rhs),
        diffrax.Dopri8(),
        0.0,
        HORIZON,
        None,
        (mean, covariance),
        p,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=1e-3 * rtol),
        max_steps=10_000,
    )
    return solution.ys[0][0], solution.ys[1][0]


def with_diffrax(p, g, rtol):
    return _diffrax(p, g.mean, g.covariance, rtol)


def with_gaussflow(p, g, rtol):
    trajectory = gf.simulate(p, g, t1=HORIZON, ts=[HORIZON], rtol=rtol)
    return trajectory.means[0], trajectory.covariances[0]


def _quick(p, g, rtol):
    """For timing: the arrays as the run leaves them."""
    trajectory = gf.simulate(p, g, t1=HORIZON, ts=[HORIZON], rtol=rtol)
    return trajectory.means, trajectory.saved_covariances


def relative(found, reference) -> float:
    return max(
        float(np.max(np.abs(np.asarray(x) - y)) / np.max(np.abs(y))) for x, y in zip(found, reference, strict=True)
    )


def best_time(call, *, seconds: float = 1.0) -> float:
    jax.block_until_ready(call())
    best, spent = np.inf, 0.0
    while spent < seconds:
        start = time.perf_counter()
        jax.block_until_ready(call())
        elapsed = time.perf_counter() - start
        best, spent = min(best, elapsed), spent + elapsed
    return best


def loosest(method, p, g, reference):
    for rtol in LADDER:
        error = relative(method(p, g, rtol), reference)
        if error <= TARGET:
            return rtol, error
    raise RuntimeError("no tolerance of the ladder reaches the target")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print(f"t = 0 to {HORIZON:g}, relative error at most {TARGET:g}; milliseconds, best of a second of repeats\n")
    print("   d   gaussflow     scipy   diffrax   scipy/ours (goal)   diffrax/ours   errors (ours, scipy, diffrax)")
    for d, goal in GOALS.items():
        p, g = problem(d)
        reference = with_scipy(p, g, 1e-13)
        rows = {}
        for name, method, timed in (
            ("ours", with_gaussflow, _quick),
            ("scipy", with_scipy, with_scipy),
            ("diffrax", with_diffrax, with_diffrax),
        ):
            rtol, error = loosest(method, p, g, reference)
            rows[name] = (best_time(partial(timed, p, g, rtol)), error)
        ours, scipy, plain = (rows[name][0] for name in ("ours", "scipy", "diffrax"))
        errors = ", ".join(f"{rows[name][1]:.0e}" for name in rows)
        print(
            f"{d:4d}  {1e3 * ours:10.3f}  {1e3 * scipy:8.3f}  {1e3 * plain:8.3f}"
            f"  {scipy / ours:10.1f} ({goal:.0f})  {plain / ours:12.1f}   {errors}",
            flush=True,
        )
    exact_form()
    factor_form()


def exact_form(d: int = 128) -> None:
    """V = −I at d = 128: the closed form against DOP853 at rtol 1e-10, without and with a moving mean."""
    p, g = problem(d)
    for moving in (False, True):
        q = gf.Parameters(A=p.A, B=p.B, V=-1.0, b=p.b if moving else None)
        matrix = gf.Parameters(A=p.A, B=p.B, V=-np.eye(d), b=q.b)
        reference = with_scipy(matrix, g, 1e-13)

        def call(q=q):
            return gf.simulate(q, g, t1=HORIZON, ts=[HORIZON], method="exact", rtol=1e-9)

        ours = best_time(lambda call=call: call().saved_factors)
        rival = best_time(lambda matrix=matrix: with_scipy(matrix, g, 1e-10))
        final = call().final
        error = relative((final.covariance,), reference[1:])
        words = "mean moving" if moving else "mean zero"
        print(f"\nexact form, d = {d}, {words}: {1e3 * ours:.1f} ms, DOP853 at 1e-10 {1e3 * rival:.1f} ms,"
              f" ratio {rival / ours:.1f} (goal 5), covariance error {error:.0e}")  # fmt: skip


def factor_form(d: int = 1024, rank: int = 8) -> None:
    """d = 1024, rank 8: factor form against covariance form in one run."""
    rng = np.random.default_rng(0)
    noise = lambda size: size * rng.normal(size=(d, d)) / np.sqrt(d)
    p = gf.Parameters(A=noise(0.7), V=-np.eye(d) + noise(0.2), B=np.eye(d) + noise(0.2), b=np.ones(d))
    g = gf.Gaussian.from_factor(np.zeros(d), rng.normal(size=(d, rank)) / np.sqrt(rank))
    seconds = {}
    for method in ("factor", "covariance"):

        def call(method=method):
            run = gf.simulate(p, g, t1=1.0, ts=[1.0], method=method, rtol=1e-6)
            return run.saved_factors if method == "factor" else run.saved_covariances

        seconds[method] = best_time(call, seconds=0.5)
    ratio = seconds["covariance"] / seconds["factor"]
    print(
        f"\nd = {d}, rank {rank}: factor form {seconds['factor']:.3f} s, covariance form {seconds['covariance']:.2f} s"
    )
    print(f"ratio {ratio:.1f} (goal 20)")


if __name__ == "__main__":
    main()
