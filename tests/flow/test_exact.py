"""The closed form for V = vI against oracles that share no code with it: DOP853, block exponentials, formulas."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from gaussflow.flow import exact as module
from gaussflow.flow.exact import exact_blow_up, exact_factors, exact_means, norm_bound
from tests.systems.random_problems import relative

SHAPES = [(1, 1), (2, 1), (3, 3), (8, 3), (20, 20)]
LANES = 40
HORIZON = 1.5
factors_at = jax.jit(exact_factors)
means_at = jax.jit(partial(exact_means, rtol=jnp.asarray(1e-10)))
blow_up_of = jax.jit(exact_blow_up)
covariance = lambda L: np.asarray(L) @ np.swapaxes(np.asarray(L), -1, -2)
matrix = lambda *rows: jnp.asarray(rows, dtype=float)


def draw(seed, d, r):
    """(A, v, B, b, mean, factor) in general position: v of either sign, Q indefinite more often than not."""
    rng = np.random.default_rng([seed, d, r])
    square = lambda: rng.normal(size=(d, d)) / np.sqrt(d)
    v = rng.choice([-1.0, 1.0]) * rng.uniform(0.3, 1.0)
    B = square() + rng.uniform(0.0, 1.0) * np.eye(d)
    factor = rng.normal(size=(d, r)) * 10 ** rng.uniform(-1.0, 0.5) / np.sqrt(r)
    return square(), np.asarray(v), B, rng.normal(size=d), rng.normal(size=d), factor


def by_scipy(A, v, B, b, mean, factor, times):
    """Covariances and means by DOP853 on L' = (A + ½LLᵀQ)L and the mean."""
    d, r = factor.shape
    Q = v * (B + B.T)

    def rhs(_, y):
        L, m = y[: d * r].reshape(d, r), y[d * r :]
        return np.concatenate(
            [(A @ L + 0.5 * L @ (L.T @ (Q @ L))).ravel(), A @ m + v * m + v * L @ (L.T @ (B @ m)) + b]
        )

    start = np.concatenate([factor.ravel(), mean])
    solution = solve_ivp(rhs, (0.0, times[-1]), start, method="DOP853", rtol=1e-13, atol=1e-15, t_eval=times)
    assert solution.success
    return covariance(solution.y[: d * r].T.reshape(-1, d, r)), solution.y[d * r :].T


def blow_up_by_exponentials(A, Q, factor, horizon, steps=300):
    """First root of λmax(LᵀWL) = 1 on a fixed grid of restarts, then by bisection; None if there is none."""
    d, r = factor.shape
    generator = np.block([[-A.T, Q], [np.zeros((d, d)), A]])

    def gramian(L, s):
        block = scipy.linalg.expm(generator * s)
        N = L.T @ block[d:, d:].T @ block[:d, d:] @ L
        return 0.5 * (N + N.T), block[d:, d:]

    h, L = horizon / steps, factor
    block = scipy.linalg.expm(generator * h)
    E, W = block[d:, d:], block[d:, d:].T @ block[:d, d:]
    for i in range(steps):
        N = L.T @ W @ L
        if np.linalg.eigvalsh(0.5 * (N + N.T))[-1] >= 1:
            beyond = lambda s, L=L: np.linalg.eigvalsh(gramian(L, s)[0])[-1] - 1
            return i * h + brentq(beyond, 0.0, h, xtol=1e-17, rtol=1e-15)
        L = np.linalg.solve(np.linalg.cholesky(np.eye(r) - 0.5 * (N + N.T)), (E @ L).T).T
    return None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_random_problems(shape):
    """Blow-up times, covariances and means of 40 problems a shape, all lanes under one vmap."""
    d, r = shape
    problems = [draw(seed, d, r) for seed in range(LANES)]
    A, v, B, b, mean, factor = (jnp.stack([p[i] for p in problems]) for i in range(6))
    Q = v[:, None, None] * (B + jnp.swapaxes(B, 1, 2))
    found = jax.jit(jax.vmap(exact_blow_up, (0, 0, 0, None)))(A, Q, factor, jnp.asarray(HORIZON))
    ends = jnp.where(found.found, 0.9 * found.time, HORIZON)
    times = ends[:, None] * jnp.asarray([0.0, 0.25, 0.25, 0.5, 0.75, 1.0])
    factors = jax.jit(jax.vmap(exact_factors))(A, Q, factor, times)
    means = jax.jit(jax.vmap(partial(exact_means, rtol=jnp.asarray(1e-10))))(A, v, B, b, mean, factor, times)
    assert np.all(np.asarray(means.reached) == 6)
    for i, problem in enumerate(problems):
        expected = blow_up_by_exponentials(problem[0], np.asarray(Q[i]), problem[5], HORIZON)
        assert bool(found.found[i]) == (expected is not None)
        if expected is not None:
            assert abs(float(found.time[i]) - expected) < max(1e-12 * expected, 5 * float(found.error[i]))
            assert float(found.error[i]) < 1e-10 * expected
            assert abs(float(jnp.linalg.norm(found.factor[i])) - 1) < 1e-12
        sigma, mu = by_scipy(*problem, np.asarray(times[i]))
        for k in range(6):
            assert relative(covariance(factors[i, k]), sigma[k]) < 1e-9
            assert relative(means.means[i, k], mu[k]) < 1e-9
    assert 0 < int(jnp.sum(found.found)) < LANES
    # One lane alone gives what it gives among others.
    alone = factors_at(A[3], Q[3], factor[3], times[3])
    assert relative(covariance(alone), covariance(factors[3])) < 1e-13
    assert relative(means_at(A[3], v[3], B[3], b[3], mean[3], factor[3], times[3]).means, means.means[3]) < 1e-9
    assert abs(float(blow_up_of(A[3], Q[3], factor[3], jnp.asarray(HORIZON)).time) / float(found.time[3]) - 1) < 1e-13


CASES = json.loads((Path(__file__).parents[1] / "reference" / "cases.json").read_text())
SCALAR = [c for c in CASES if np.array_equal(c["V"], c["V"][0][0] * np.eye(c["d"])) and "sim_status" in c]


@pytest.mark.parametrize("case", SCALAR, ids=lambda c: c["name"])
def test_worked_cases(case):
    A, B, S0 = (jnp.asarray(case[key]) for key in ("A", "B", "S0"))
    Q = case["V"][0][0] * (B + B.T)
    values, vectors = np.linalg.eigh(S0)
    factor = jnp.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
    found = blow_up_of(A, Q, factor, jnp.asarray(case.get("T", 10.0)))
    assert bool(found.found) == (case["sim_status"] == "blowup")
    if found.found:
        assert abs(float(found.time) / case["t_star_exact"] - 1) < 1e-14
    else:
        final = covariance(factors_at(A, Q, factor, jnp.asarray([case["T"]])))[0]
        assert relative(final, case.get("limit", case["S_T"])) < (1e-9 if "limit" in case else 1e-11)


def test_blow_up_time_is_the_root_of_t_plus_sin_t():
    """Λmax(W) = t + sin t for a rotation and Q = diag(2, 0)."""
    found = blow_up_of(matrix([0, 1], [-1, 0]), matrix([2, 0], [0, 0]), jnp.eye(2), jnp.asarray(10.0))
    assert abs(float(found.time) - 0.5109734293885690) < 1e-15


@pytest.mark.parametrize("omega", [0.3, 20.0])
def test_no_root_is_skipped_and_none_invented(omega):
    """A rotation with a traceless Q: λmax = |sin ωt| c/ω just touches 1, or just does not."""
    A, Q = matrix([0, omega], [-omega, 0]), matrix([1, 0], [0, -1])
    for excess in (1e-6, 1e-3):
        touches = jnp.sqrt(omega * (1 + excess)) * jnp.eye(2)
        found = blow_up_of(A, Q, touches, jnp.asarray(40 / omega))
        assert bool(found.found)
        expected = np.arcsin(1 / (1 + excess)) / omega
        assert abs(float(found.time) / expected - 1) < 1e-16 / excess + 1e-13
        assert abs(float(found.time) - expected) < float(found.error)
        stays = jnp.sqrt(omega * (1 - excess)) * jnp.eye(2)
        assert not bool(blow_up_of(A, Q, stays, jnp.asarray(40 / omega)).found)


@pytest.mark.parametrize(
    ("a", "c", "s"),
    [(0.0, 1.0, 1.0), (1.0, 1e-20, 1.0), (1.0, 1.0, 1e-18), (-1.0, 1.0, 1.001), (1e150, 1e150, 1.0),
     (1e-150, 1e-150, 1.0), (1.0, 1e-150, 1e150), (-1.0, 1.0, 1 + 1e-6)],
)  # fmt: skip
def test_the_formula_in_one_dimension_at_every_scale(a, c, s):
    expected = 1 / (2 * c * s) if a == 0 else np.log1p(a / (c * s)) / (2 * a)
    start = jnp.asarray([[np.sqrt(s)]])
    found = blow_up_of(jnp.asarray([[a]]), jnp.asarray([[2 * c]]), start, jnp.asarray(3 * expected))
    assert bool(found.found)
    # s close to the unstable equilibrium at 1 is known to 1e-16 only, which the flow magnifies: the estimate says so.
    magnified = 1e-16 * abs(a / (a + c * s))
    assert abs(float(found.time) / expected - 1) < 1e-13 + 3 * magnified
    assert abs(float(found.time) - expected) <= float(found.error) < 1e4 * (1e-15 + magnified) * expected
    assert not bool(blow_up_of(jnp.asarray([[a]]), jnp.asarray([[2 * c]]), start, jnp.asarray(0.999 * expected)).found)


@pytest.mark.parametrize(("a", "s", "t", "final"), [(1e20, 1.0, 50.0, 1e20), (1.0, 1e18, 5.0, 1 / (1 - np.exp(-10.0)))])
def test_large_but_bounded(a, s, t, final):
    A, Q, factor = jnp.asarray([[a]]), jnp.asarray([[-2.0]]), jnp.asarray([[np.sqrt(s)]])
    assert not bool(blow_up_of(A, Q, factor, jnp.asarray(t)).found)
    short = min(t, 200 / a)
    assert abs(covariance(factors_at(A, Q, factor, jnp.asarray([short])))[0, 0, 0] / final - 1) < 1e-13


def test_long_horizons_do_not_lose_digits():
    """‖A‖T = 7000: a full-rank state settles, a rank-one state turns five thousand radians."""
    A, Q = matrix([1, -5], [5, 1]), -2 * jnp.eye(2)
    times = jnp.linspace(0, 1000, 5)
    settled = covariance(factors_at(A, Q, matrix([2, 1], [0, 0.1]), times))
    assert relative(settled[-1], np.eye(2)) < 1e-12
    turning = covariance(factors_at(A, Q, matrix([1, 0], [0, 0]), times))
    for t, state in zip(times, turning, strict=True):
        x = np.array([np.cos(5 * float(t)), np.sin(5 * float(t))])
        assert relative(state, np.outer(x, x)) < 1e-11


def test_small_directions_keep_their_digits():
    """A decays one direction to e⁻⁸⁰⁰ of the other, far below rounding of the covariance."""
    A, Q = jnp.diag(jnp.asarray([1.0, -20.0])), -2 * jnp.eye(2)
    L = np.asarray(factors_at(A, Q, jnp.eye(2), jnp.asarray([20.0])))[0]
    # Diagonal problems split: σ' = 2aσ − 2σ², so σ = a / (1 + (a/σ₀ − 1) e^(−2at)).
    expected = -20 / (1 + (-20 - 1) * np.exp(2 * 20 * 20.0))
    assert abs(L[1, 1] ** 2 / expected - 1) < 1e-11
    assert abs(L[0, 0] - 1) < 1e-13


def test_semigroup():
    A, v, B, _, _, factor = draw(4, 8, 3)
    Q = -jnp.abs(v) * (B + B.T)
    middle, end = factors_at(A, Q, factor, jnp.asarray([0.7, 1.0]))
    two_steps = factors_at(A, Q, middle, jnp.asarray([0.3]))[0]
    assert relative(covariance(two_steps), covariance(end)) < 1e-13


def test_low_rank_in_a_large_space():
    """The form without (d, d) matrices gives what the other one gives, at crowded and sparse times."""
    A, v, B, b, mean, factor = draw(1, 64, 4)
    Q = -jnp.abs(v) * (B + B.T)
    times = jnp.asarray([0.0, 0.01, 0.02, 0.02, 1.7, 4.0])
    thin = factors_at(A, Q, factor, times)
    propagated = jax.jit(partial(module._factors_by_propagators, kind="lax"))(A, Q, factor, times)
    assert relative(covariance(thin), covariance(propagated)) < 1e-12
    sigma, mu = by_scipy(A, -abs(v), B, b, mean, factor, np.array([4.0]))
    assert relative(covariance(thin[-1]), sigma[0]) < 1e-10
    assert relative(means_at(A, -jnp.abs(v), B, b, mean, factor, jnp.asarray([1.0, 4.0])).means[-1], mu[0]) < 1e-9


def test_a_mean_near_the_blow_up():
    """d = 1, a = 0, vb = 1: Σ = 1/(1 − 2t), and the mean has the factor (1 − 2t)^(−½)."""
    one = jnp.ones((1, 1))
    left = np.array([0.4, 1e-3, 1e-6, 1e-9])  # of the time to the blow-up at 1/2
    times = 0.5 - 0.5 * left
    result = means_at(0 * one, jnp.asarray(1.0), one, None, jnp.ones(1), one, jnp.asarray(times))
    assert relative(result.means[:, 0] / (np.exp(times) * left**-0.5), np.ones(4)) < 1e-7
    assert int(result.reached) == 4
    past = means_at(0 * one, jnp.asarray(1.0), one, None, jnp.ones(1), one, jnp.asarray([0.4, 0.45, 0.499, 0.6]))
    assert int(past.reached) == 3
    assert np.all(np.isfinite(past.means))


def test_a_tolerance_is_kept():
    A, v, B, b, mean, factor = draw(2, 8, 3)
    times = jnp.linspace(0.0, 1.0, 6)
    solve = jax.jit(lambda rtol: exact_means(A, -jnp.abs(v), B, b, mean, factor, times, rtol=rtol))
    best = solve(1e-13)
    for rtol in (1e-5, 1e-8, 1e-11):
        assert relative(solve(rtol).means, best.means) < 0.3 * rtol
    assert int(solve(1e-5).steps) < int(best.steps)


@pytest.mark.parametrize("factor", [np.zeros((3, 0)), np.zeros((3, 2))], ids=["no columns", "zero columns"])
def test_a_point_stays_a_point(factor):
    A, v, B, b, mean, _ = draw(7, 3, 3)
    times = jnp.asarray([0.0, 0.0, 2.0, 2.0])
    assert not bool(exact_blow_up(A, v * (B + B.T), factor, jnp.asarray(5.0)).found)
    assert np.all(np.asarray(exact_factors(A, v * (B + B.T), factor, times)) == np.zeros((4, *factor.shape)))
    moved = exact_means(A, v, B, b, mean, jnp.asarray(factor), times, rtol=1e-10).means
    affine = scipy.linalg.expm(2.0 * np.block([[A + v * np.eye(3), b[:, None]], [np.zeros((1, 4))]]))
    assert np.array_equal(moved[1], mean)
    assert relative(moved[-1], affine[:3, :3] @ mean + affine[:3, 3]) < 1e-9


def test_all_times_zero():
    A, v, B, b, mean, factor = draw(7, 3, 3)
    times = jnp.zeros(4)
    assert relative(exact_factors(A, v * (B + B.T), factor, times), np.stack([factor] * 4)) < 1e-15
    assert np.array_equal(exact_means(A, v, B, b, mean, factor, times, rtol=1e-8).means, np.stack([mean] * 4))


def test_norm_bound():
    rng = np.random.default_rng(0)
    for d in (1, 3, 30):
        X = rng.normal(size=(d, d)) * 10.0 ** rng.uniform(-150, 150)
        assert 1 - 1e-12 <= float(norm_bound(X)) / np.linalg.norm(X, 2) <= d ** (1 / 16) + 1e-9
    assert float(norm_bound(np.zeros((3, 3)))) == 0.0


def central(f, x, direction, h=1e-4):
    """Derivative of f along a direction, fourth-order differences."""
    at = lambda s: float(f(x + s * direction))
    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)


def test_derivatives_of_states():
    """With respect to everything, save times too (two intervals are equal and share their propagators)."""
    rng = np.random.default_rng(3)
    A, v, B, b, mean, factor = draw(5, 3, 2)
    arguments = [jnp.asarray(x) for x in (A, -abs(v), B, b, mean, factor, [0.1, 0.2, 0.45])]
    weights, more = rng.normal(size=(3, 3, 3)), rng.normal(size=(3, 3))

    def loss(kind, A, v, B, b, mean, factor, times):
        L = exact_factors(A, v * (B + B.T), factor, times, kind=kind)
        means = exact_means(A, v, B, b, mean, factor, times, rtol=1e-12, kind=kind).means
        return jnp.sum(weights * (L @ jnp.swapaxes(L, 1, 2))) + jnp.sum(more * means)

    everything = tuple(range(7))
    value = jax.jit(partial(loss, "lax"))
    reverse = jax.jit(jax.grad(partial(loss, "checkpointed"), everything))(*arguments)
    forward = jax.jit(jax.jacfwd(partial(loss, "lax"), everything))(*arguments)
    for i, (one, other) in enumerate(zip(reverse, forward, strict=True)):
        direction = rng.normal(size=np.shape(one))
        along = lambda x, i=i: value(*arguments[:i], x, *arguments[i + 1 :])
        expected = central(along, arguments[i], direction)
        assert abs(float(jnp.sum(one * direction)) - expected) < 1e-7 * max(abs(expected), 1.0)
        assert np.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_derivatives_of_the_blow_up_time():
    A, v, B, _, _, factor = draw(5, 3, 3)
    arguments = [jnp.asarray(x) for x in (A, abs(v), B, 1.5 * factor)]

    def time(kind, A, v, B, factor):
        return exact_blow_up(A, v * (B + B.T), factor, jnp.asarray(20.0), kind=kind).time

    value = jax.jit(partial(time, "lax"))
    assert float(value(*arguments)) < 20.0
    reverse = jax.jit(jax.grad(partial(time, "checkpointed"), (0, 1, 2, 3)))(*arguments)
    rng = np.random.default_rng(0)
    for i, one in enumerate(reverse):
        direction = rng.normal(size=np.shape(one))
        along = lambda x, i=i: value(*arguments[:i], x, *arguments[i + 1 :])
        expected = central(along, arguments[i], direction)
        assert abs(float(jnp.sum(one * direction)) - expected) < 1e-7 * max(abs(expected), 1e-2)


def test_derivative_where_the_top_eigenvalue_is_repeated():
    """A = aI, Q = qI, L = sI: t* = ln(1 + 2a/(qs²))/(2a); and zero where nothing blows up."""

    def time(a, q, s):
        identity = jnp.eye(3)
        return exact_blow_up(a * identity, q * identity, s * identity, jnp.asarray(10.0), kind="checkpointed").time

    gradient = jax.jit(jax.grad(time, (0, 1, 2)))
    a, q, s = 0.7, 2.0, 1.1
    ratio = 2 * a / (q * s**2)
    dratio = 1 / (1 + ratio) / (2 * a)
    expected = [-np.log1p(ratio) / (2 * a**2) + dratio * ratio / a, -dratio * ratio / q, -2 * dratio * ratio / s]
    assert np.allclose(gradient(a, q, s), expected, rtol=1e-11)
    assert np.array_equal(gradient(a, -q, s), [0.0, 0.0, 0.0])
