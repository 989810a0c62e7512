"""Rates spread over 10⁴: the implicit method against diffrax Kvaerno5 with its default solver, at equal achieved error.

    python -m benchmarks.stiff

Everything is measured in one run, after compilation, best of several repeats. The reference is our method at rtol
1e-12, itself checked against scipy's DOP853 at d = 16 (explicit steps are affordable there, with patience).
"""

from __future__ import annotations

import os
import time

# Eigenvalues and linear solves run in OpenBLAS, whose threads, where there are few cores, wait for those of JAX.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import gaussflow as gf

SPREAD = 1e4
HORIZON = 2.0
TARGET = 1e-8  # relative error to be reached by both
LADDER = [10.0 ** (-k / 2) for k in range(4, 23)]  # tolerances to choose from, half decades


def problem(d: int, seed: int = 0):
    """Decay rates from 1 to 10⁴ in random directions, beside attention that is no multiple of the identity."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    noise = lambda size: size * rng.normal(size=(d, d)) / np.sqrt(d)
    A = 2 * np.eye(d) - basis @ np.diag(np.logspace(0, np.log10(SPREAD), d)) @ basis.T + noise(0.3)
    p = gf.Parameters(A=A, B=np.eye(d) + noise(0.2), V=-np.eye(d) + noise(0.3), b=np.ones(d))
    return p, gf.Gaussian(np.zeros(d), np.eye(d))


def right_hand_side(_, y, p):
    """What a user would write: the system (1) as it stands."""
    mean, covariance = y
    M = p.A + p.V @ covariance @ p.B
    flow = M @ covariance
    return M @ mean + p.V @ mean + p.b, flow + flow.T


@jax.jit
def kvaerno5(p, mean, covariance, rtol):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(right_hand_side),
        diffrax.Kvaerno5(),
        0.0,
        HORIZON,
        None,
        (mean, covariance),
        p,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=1e-3 * rtol),
        max_steps=100_000,
        throw=False,
    )
    return solution.ys[0][0], solution.ys[1][0], solution.stats["num_steps"], solution.result


def error(mean, covariance, reference) -> float:
    pairs = ((covariance, reference.final.covariance), (mean, reference.final.mean))
    return max(float(jnp.max(jnp.abs(x - y)) / jnp.max(jnp.abs(y))) for x, y in pairs)


def timed(call, repeats: int = 3):
    call()  # compile
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = jax.block_until_ready(call())
        best = min(best, time.perf_counter() - start)
    return best, result


def ours(p, g, rtol):
    return gf.simulate(p, g, t1=HORIZON, ts=[HORIZON], method="stiff", rtol=rtol)


def cheapest(attempt, tolerances, target=TARGET):
    """The loosest tolerance whose error reaches the target, timed."""
    for rtol in tolerances:
        achieved, call, steps = attempt(rtol)
        if achieved <= target:
            return timed(call)[0], achieved, rtol, steps
    return None


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    print(f"rates spread over {SPREAD:g}, t = 0 to {HORIZON:g}, relative error at most {TARGET:g}\n")
    print("   d   method     rtol    error     steps   seconds   per step")
    seconds = {}
    for d in (16, 32, 64, 128):
        p, g = problem(d)
        reference = ours(p, g, 1e-12)
        if d == 16:
            check_reference(p, reference)

        def attempt(rtol, p=p, g=g, reference=reference):
            run = ours(p, g, rtol)
            return (
                error(run.final.mean, run.final.covariance, reference),
                lambda: ours(p, g, rtol).means,
                int(run.stats["steps"]),
            )

        found = cheapest(attempt, LADDER)
        assert found is not None
        seconds[d] = found[0]
        report(d, "gaussflow", found)
        if d == 16:

            def competitor(rtol, p=p, g=g, reference=reference):
                call = lambda: kvaerno5(p, g.mean, g.covariance, rtol)
                mean, covariance, steps, _ = call()
                return error(mean, covariance, reference), call, int(steps)

            rival = cheapest(competitor, LADDER)
            assert rival is not None
            report(d, "Kvaerno5", rival)
            print(f"\n  ratio at d = 16: {rival[0] / found[0]:.1f}\n")
    exponent = np.log(seconds[128] / seconds[16]) / np.log(8)
    print(f"\ngrowth from d = 16 to 128: {seconds[128] / seconds[16]:.0f} times, like d^{exponent:.2f}")


def report(d: int, name: str, found) -> None:
    elapsed, achieved, rtol, steps = found
    print(
        f"{d:4d}   {name:<10} {rtol:.0e}  {achieved:.1e}  {steps:6d}  {elapsed:8.4f}  {elapsed / steps:9.5f}",
        flush=True,
    )


def check_reference(p, reference) -> None:
    d = p.dim
    A, B, V, b = (np.asarray(x) for x in (p.A, p.B, p.V, p.b))

    def rhs(_, y):
        covariance, mean = y[d:].reshape(d, d), y[:d]
        M = A + V @ covariance @ B
        flow = M @ covariance
        return np.concatenate([M @ mean + V @ mean + b, (flow + flow.T).ravel()])

    start = np.concatenate([np.zeros(d), np.eye(d).ravel()])
    end = solve_ivp(rhs, (0, HORIZON), start, method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
    print(f"  reference against DOP853 at d = {d}: {error(end[:d], end[d:].reshape(d, d), reference):.1e}\n")


if __name__ == "__main__":
    main()
