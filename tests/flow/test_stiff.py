"""The implicit integrator: order, accuracy, stiffness, long horizons, schedules, derivatives, and honest failures."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from scipy.integrate import solve_ivp

import gaussflow as gf
from gaussflow.errors import InvalidInput
from gaussflow.flow import stiff
from gaussflow.flow.collocation import radau
from gaussflow.flow.krylov import minimal_residual
from gaussflow.flow.lyapunov_preconditioner import diagonalise, solve_stages
from gaussflow.flow.run import Status
from gaussflow.flow.stiff import integrate_stiff
from gaussflow.layers.schedule import as_schedule

CASES = {c["name"]: c for c in json.loads((Path(__file__).parents[1] / "reference" / "cases.json").read_text())}
MEAN, COVARIANCE = np.array([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]])
SWIRL = gf.Parameters(
    A=[[1.0, -2.0], [1.5, 0.5]], V=[[-1.0, 0.3], [-0.4, -0.8]], B=[[1.0, 0.2], [-0.3, 0.7]], b=[0.5, -1.0]
)
DRIFT = gf.Parameters(
    A=[[-0.5, 0.4], [0.1, 0.3]], V=[[-0.6, 0.0], [0.5, -1.0]], B=[[0.8, -0.5], [0.1, 1.0]], b=[-0.2, 0.4]
)


def integrate(layers, mean, covariance, ts, t1, *, t0=0.0, rtol=1e-9, **options):
    start = jnp.asarray(mean, float), jnp.asarray(covariance, float)
    return integrate_stiff(as_schedule(layers), *start, ts, t1, t0=t0, rtol=rtol, atol=1e-6 * rtol, **options)


@partial(jax.jit, static_argnames="max_steps")
def run(layers, mean, covariance, ts, t1, t0=0.0, rtol=1e-9, max_steps=4096):
    return integrate(layers, mean, covariance, ts, t1, t0=t0, rtol=rtol, max_steps=max_steps)


@jax.jit
def run_fixed(layers, mean, covariance, t1, step):
    return integrate(layers, mean, covariance, jnp.array([t1]), t1, rtol=1e-14, step=step)


def reference(pieces, mean, covariance, ts):
    """The same flow from t = 0 by scipy: ``pieces`` are (end, layer), ``ts`` lie inside them."""
    t0 = 0.0
    d, ts = len(mean), np.asarray(ts)
    y, saved = np.concatenate([mean, np.ravel(covariance)]), []
    for end, p in pieces:
        A, B, V, b = (np.asarray(x) for x in (p.A, p.B, p.V, p.b))

        def rhs(_, y, A=A, B=B, V=V, b=b):
            M = A + V @ y[d:].reshape(d, d) @ B
            flow = M @ y[d:].reshape(d, d)
            return np.concatenate([(M + V) @ y[:d] + b, (flow + flow.T).ravel()])

        inside = ts[(ts >= t0) & (ts <= end)]
        times = np.append(inside, end)
        states = solve_ivp(rhs, (t0, end), y, method="DOP853", rtol=1e-12, atol=1e-14, t_eval=np.unique(times)).y.T
        saved.extend(states[: len(inside)])
        y, t0 = states[-1], end
    saved = np.array(saved)
    return saved[:, :d], saved[:, d:].reshape(-1, d, d)


def close(x, y, tolerance):
    """Relative in the norm of the whole array."""
    return np.linalg.norm(np.asarray(x) - np.asarray(y)) <= tolerance * np.linalg.norm(np.asarray(y))


def spread_rates(d, spread=1e4, seed=0):
    """An equilibrium with M = 0 whose relaxation rates run from 1 to ``spread``; V is no multiple of the identity."""
    rng = np.random.default_rng(seed)
    noise = lambda size: size * rng.normal(size=(d, d)) / np.sqrt(d)
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    root = basis @ np.diag(np.logspace(0, np.log10(spread) / 2, d) / np.sqrt(2)) @ basis.T
    B, V = root @ (np.eye(d) + noise(0.3)) @ root, -np.eye(d) + noise(0.3)
    factor, start = np.eye(d) + noise(0.5), np.eye(d) + noise(0.5)
    equilibrium = factor @ factor.T
    p = gf.Parameters(A=-V @ equilibrium @ B, B=B, V=V, b=rng.normal(size=d))
    return p, rng.normal(size=d), start @ start.T, equilibrium


@pytest.mark.parametrize("stages", [1, 3, 5, 7])
def test_collocation_integrates_polynomials_and_splits_into_modes(stages):
    rule = radau(stages)
    for k in range(1, stages + 1):
        np.testing.assert_allclose(rule.matrix @ rule.nodes ** (k - 1), rule.nodes**k / k, atol=1e-14)
    weights = [rule.matrix[-1] @ rule.nodes ** (k - 1) * k for k in range(1, 2 * stages)]
    np.testing.assert_allclose(weights, 1.0, atol=1e-12)
    from_modes = (rule.from_modes * rule.shifts) @ rule.to_modes
    np.testing.assert_allclose(from_modes.real, rule.matrix, atol=1e-12)
    # Stage increments of a polynomial of degree s leave no embedded error.
    increments = rule.nodes**stages + 2 * rule.nodes
    assert abs(rule.error_start * (2.0 + (stages == 1)) + rule.error_stages @ increments) < 1e-11 * 10.0**stages
    fraction = np.array([0.0, 0.3, 1.0, 1.7])
    np.testing.assert_allclose(rule.lagrange(jnp.asarray(fraction)) @ increments, fraction**stages + 2 * fraction)


@pytest.mark.parametrize("kind", ["plain", "defective"])
def test_preconditioner_solves_the_lyapunov_collocation_system(kind):
    rng = np.random.default_rng(1)
    N = rng.normal(size=(4, 4)) if kind == "plain" else np.eye(4, k=1) - np.eye(4)
    right = rng.normal(size=(7, 4, 4))
    right = jnp.asarray(right + right.swapaxes(1, 2))
    h = 0.7
    lyapunov = np.kron(N, np.eye(4)) + np.kron(np.eye(4), N)
    system = np.eye(7 * 16) - h * np.kron(stiff.METHOD.matrix, lyapunov)
    tolerance = 1e-11 if kind == "plain" else 1e-3  # of a nearby matrix
    for transposed in (False, True):
        matrix = system.T if transposed else system
        found = solve_stages(stiff.METHOD, diagonalise(jnp.asarray(N)), jnp.asarray(h), right, transposed=transposed)
        assert close(found.reshape(-1), np.linalg.solve(matrix, right.reshape(-1)), tolerance)
        assert np.array_equal(found, found.swapaxes(1, 2))


@pytest.mark.parametrize("basis", [6, 12])
def test_krylov_solves_hard_systems(basis):
    # A cyclic shift: no step but the last shortens the residual. Restarted, a rotation near the identity.
    n = 12
    matrix = np.roll(np.eye(n), 1, axis=0) if basis == n else np.eye(n) + 0.5 * (np.eye(n, k=1) - np.eye(n, k=-1))
    right = jnp.asarray(np.eye(n)[0] if basis == n else np.arange(1.0, n + 1))
    found = minimal_residual(lambda x: matrix @ x, right, jnp.asarray(1e-11), basis=basis, most_iterations=60)
    np.testing.assert_allclose(found.solution, np.linalg.solve(matrix, right), atol=1e-10)
    assert found.residual <= 1e-11
    assert found.iterations < 60


def test_order_of_the_method_with_fixed_steps():
    # A rotation, whose error coefficient is visible at order 13.
    A = np.array([[0.0, -1.5], [1.0, 0.0]])
    layers, t1 = gf.Parameters(A=A, V=np.zeros((2, 2)), B=np.zeros((2, 2)), b=np.zeros(2)), 20.0
    flow = scipy.linalg.expm(A * t1)
    exact = flow @ COVARIANCE @ flow.T
    steps = np.array([24, 28, 32])
    errors = [np.linalg.norm(run_fixed(layers, [0.0, 0.0], COVARIANCE, t1, t1 / n).state[1] - exact) for n in steps]
    orders = -np.diff(np.log(errors)) / np.diff(np.log(steps))
    assert stiff.METHOD.order == 13
    np.testing.assert_allclose(orders, 13, atol=0.15)


def test_order_on_the_nonlinear_flow(monkeypatch):
    # With three stages the error of the full system is far above rounding.
    monkeypatch.setattr(stiff, "METHOD", radau(3))
    at = jax.jit(lambda step: integrate(SWIRL, MEAN, COVARIANCE, jnp.array([0.5]), 0.5, rtol=1e-14, step=step).state)
    mean, covariance = at(0.5 / 250)
    errors = [
        [np.linalg.norm(x - y) for x, y in zip(at(0.5 / n), (mean, covariance), strict=True)] for n in (8, 16, 32)
    ]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 5, atol=0.15)


def test_save_times_against_scipy():
    ts = np.array([0.0, 0.0, 0.3, 0.31, 1.7, 1.7, 3.0])
    means, covariances = reference([(3.0, SWIRL)], MEAN, COVARIANCE, np.unique(ts))
    index = np.searchsorted(np.unique(ts), ts)
    for rtol in (1e-5, 1e-9):
        result = run(SWIRL, MEAN, COVARIANCE, ts, 3.0, rtol=rtol)
        assert result.status == Status.REACHED_END
        assert result.reached == len(ts)
        assert close(result.saved[0], means[index], 5 * rtol)
        assert close(result.saved[1], covariances[index], 5 * rtol)
        assert np.array_equal(result.saved[1], np.swapaxes(result.saved[1], 1, 2))
        assert np.array_equal(result.saved[1][0], COVARIANCE)
        assert np.array_equal(result.saved[1][-1], result.state[1])
    back = run(SWIRL, result.state[0], result.state[1], ts[::-1].copy(), 0.0, t0=3.0, rtol=1e-9)
    assert back.status == Status.REACHED_END
    assert close(back.saved[1], covariances[index][::-1], 1e-5)  # backward the flow is unstable
    assert np.all(np.diff(index) >= 0)


def test_schedule_is_integrated_piece_by_piece():
    schedule = gf.PiecewiseConstant([0.0, 0.7, 1.1], [SWIRL, DRIFT, SWIRL])
    ts = np.array([0.2, 0.7, 0.9, 1.1, 1.5, 2.0, 2.0])
    means, covariances = reference([(0.7, SWIRL), (1.1, DRIFT), (2.0, SWIRL)], MEAN, COVARIANCE, [0.2, 0.9, 1.5, 2.0])
    result = run(schedule, MEAN, COVARIANCE, ts, 2.0)
    kept = [0, 2, 4, 5]
    # One scipy piece ends where the next begins; its save times lie inside the pieces.
    assert close(result.saved[0][jnp.array(kept)], means, 1e-8)
    assert close(result.saved[1][jnp.array(kept)], covariances, 1e-8)
    back = run(schedule, *result.state, ts[::-1].copy(), 0.0, t0=2.0)
    assert close(back.state[1], COVARIANCE, 1e-5)


def test_rates_spread_over_four_decades():
    p, mean, covariance, equilibrium = spread_rates(8)
    stiff_reference = run(p, mean, covariance, np.array([0.5, 1.0]), 1.0, rtol=1e-12)
    for rtol, most in ((1e-3, 25), (1e-6, 40), (1e-9, 70)):
        result = run(p, mean, covariance, np.array([0.5, 1.0]), 1.0, rtol=rtol)
        assert result.status == Status.REACHED_END
        assert result.steps <= most
        assert close(result.saved[1], stiff_reference.saved[1], 3 * rtol)
        assert close(result.saved[0], stiff_reference.saved[0], 3 * rtol)
    later = run(p, mean, covariance, np.array([0.5, 40.0]), 40.0)
    assert close(later.state[1], equilibrium, 1e-9)


def test_stiff_closed_form():
    # V = -I: the precision obeys a linear equation, P' = -PA - AᵀP - Q, with rates up to 10⁴ here.
    rng = np.random.default_rng(5)
    basis, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    rates = np.logspace(0, 4, 8) / 2
    A, B = basis @ np.diag(rates) @ basis.T, np.eye(8) + 0.2 * rng.normal(size=(8, 8))
    limit = scipy.linalg.solve_continuous_lyapunov(A.T, B + B.T)
    covariance = np.linalg.inv(limit + 0.3 * np.eye(8))
    layers = gf.Parameters(A=A, B=B, V=-np.eye(8), b=np.zeros(8))
    ts = np.array([1e-3, 0.5])
    result = run(layers, np.zeros(8), covariance, ts, 0.5)
    for t, found in zip(ts, result.saved[1], strict=True):
        decay = basis @ np.diag(np.exp(-rates * t)) @ basis.T
        exact = np.linalg.inv(limit + decay @ (np.linalg.inv(covariance) - limit) @ decay)
        scales = np.sqrt(np.diagonal(exact))
        assert np.max(np.abs(found - exact) / np.outer(scales, scales)) < 1e-8


@pytest.mark.parametrize("name", ["A_hurwitz_nonzero_attractor", "vI_d2_jordan_eq", "M0_gradient_GAS"])
def test_long_horizon_at_a_stable_equilibrium(name):
    case = CASES[name]
    layers = gf.Parameters(A=case["A"], B=case["B"], V=case["V"], b=np.zeros(2))
    result = run(layers, np.zeros(2), np.array(case["S0"]), np.full(7, 1e8), 1e8)
    assert result.status == Status.REACHED_END
    assert result.steps < 100
    assert close(result.state[1], case["S_eq"], 1e-8)


def test_long_horizon_of_a_collapse():
    case = CASES["d1_threshold_collapse"]
    layers = gf.Parameters(A=case["A"], B=case["B"], V=case["V"], b=np.zeros(1))
    result = run(layers, np.zeros(1), np.array(case["S0"]), np.array([12.0, 1e8]), 1e8)
    assert result.status == Status.REACHED_END
    assert result.steps < 1000
    np.testing.assert_allclose(result.saved[1][0], case["S_T"], rtol=1e-8)
    assert abs(result.state[1][0, 0]) < 1e-200


def test_lanes_of_vmap_are_single_runs():
    means = jnp.stack([jnp.asarray(MEAN), jnp.zeros(2), jnp.asarray(MEAN)])
    ends = jnp.array([3.0, 1.0, 0.0])
    layers = gf.stack([SWIRL, DRIFT, DRIFT])
    batch = jax.jit(jax.vmap(lambda p, m, t1: integrate(p, m, COVARIANCE, jnp.linspace(0.0, t1, 7), t1)))
    lanes = batch(layers, means, ends)
    assert np.all(lanes.status == Status.REACHED_END)
    assert lanes.steps[2] == 0
    for i, p in enumerate((SWIRL, DRIFT, DRIFT)):
        alone = run(p, means[i], COVARIANCE, jnp.linspace(0.0, ends[i], 7), ends[i])
        assert lanes.steps[i] == alone.steps
        np.testing.assert_allclose(lanes.saved[1][i], alone.saved[1], rtol=1e-11)
        np.testing.assert_allclose(lanes.saved[0][i], alone.saved[0], rtol=1e-10, atol=1e-12)


def test_derivatives_against_finite_differences():
    rng = np.random.default_rng(0)
    test_matrix, test_vector = rng.normal(size=(2, 2)), rng.normal(size=2)

    def loss(x, kind):
        p, mean, covariance, edge, times = x
        fast = gf.Parameters(A=p.A - 40 * jnp.eye(2), V=p.V, B=p.B, b=p.b)
        schedule = gf.PiecewiseConstant(jnp.stack([jnp.asarray(-1.0), edge]), [p, fast])
        options = {"rtol": 1e-10, "max_steps": 128, "kind": kind, "t0": times[0]}
        means, covariances = integrate(schedule, mean, covariance, times[1:], times[-1], **options).saved
        weights = jnp.arange(1.0, 4.0)
        return weights @ (covariances.reshape(3, 4) @ test_matrix.reshape(-1) + means @ test_vector)

    at = (SWIRL, jnp.zeros(2), jnp.asarray(COVARIANCE), jnp.asarray(0.5), jnp.array([0.0, 0.2, 0.6, 0.8]))
    value = jax.jit(lambda x: loss(x, "lax"))
    forward = jax.jit(lambda x, v: jax.jvp(lambda x: loss(x, "lax"), (x,), (v,))[1])
    gradient = jax.jit(jax.grad(lambda x: loss(x, "checkpointed")))(at)
    leaves, tree = jax.tree_util.tree_flatten(at)
    for i, leaf in enumerate(leaves):
        direction = rng.normal(size=leaf.shape)
        direction = direction + direction.T if direction.ndim == 2 else direction
        along = tree.unflatten([jnp.asarray(direction) if j == i else jnp.zeros_like(x) for j, x in enumerate(leaves)])
        shifted = lambda size, v=along: jax.tree_util.tree_map(lambda value, slope: value + size * slope, at, v)
        difference = float(value(shifted(1e-5)) - value(shifted(-1e-5))) / 2e-5
        reverse = float(jnp.sum(jax.tree_util.tree_leaves(gradient)[i] * direction))
        np.testing.assert_allclose(reverse, difference, rtol=2e-6, atol=1e-7)
        np.testing.assert_allclose(float(forward(at, along)), reverse, rtol=1e-8)


def test_stop_and_running_out_of_steps():
    growing = gf.Parameters(A=[[1.0, 0.1], [0.0, 1.0]], V=np.eye(2), B=np.eye(2), b=np.zeros(2))
    ts = np.array([0.01, 0.1, 5.0, 5.0])
    stopping = jax.jit(lambda: integrate(growing, MEAN, COVARIANCE, ts, 5.0, stop=lambda t, S: jnp.trace(S) > 100.0))
    result = stopping()
    assert result.status == Status.GREW
    assert 100.0 < np.trace(result.state[1]) < 1e6
    assert result.reached == 2
    assert np.array_equal(result.saved[1][3], result.saved[1][1])
    short = run(SWIRL, MEAN, COVARIANCE, np.linspace(0.0, 3.0, 7), 3.0, max_steps=3)
    assert short.status == Status.OUT_OF_STEPS
    assert short.steps == 3
    assert 0.0 < short.t < 3.0


@pytest.mark.parametrize("step", [0.5, 0.1, 0.02])
def test_no_step_crosses_a_blow_up(step):
    # σ' = 2σ + 2σ² from 1 blows up at ln(2)/2; beyond it lies the negative branch.
    layers = gf.Parameters(A=np.eye(2), V=np.eye(2), B=np.eye(2), b=np.zeros(2))
    fixed = run_fixed(layers, [0.0, 0.0], np.eye(2), 2.0, step)
    assert fixed.status in (Status.IMPLICIT_SOLVE_FAILED, Status.STEP_TOO_SMALL)
    assert fixed.t < np.log(2) / 2
    adaptive = run(layers, np.zeros(2), np.eye(2), np.full(7, 2.0), 2.0, rtol=step / 5)
    assert adaptive.status in (Status.IMPLICIT_SOLVE_FAILED, Status.STEP_TOO_SMALL)
    np.testing.assert_allclose(adaptive.t, np.log(2) / 2, rtol=step / 5)
    assert np.all(np.isfinite(adaptive.state[1]))


def test_layers_that_depend_on_the_mean_are_refused():
    class Linear(gf.Parameters):
        @property
        def autonomous(self):
            return False

    with pytest.raises(InvalidInput, match="method='covariance' or method='factor'"):
        integrate(Linear(A=np.eye(2)), MEAN, COVARIANCE, np.array([1.0]), 1.0)
