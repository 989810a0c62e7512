"""The implicit integrator: Radau IIA of order nine on matrix equations, each iteration at O(d³).

L-stable and stiffly accurate, so that fast directions cost no steps once they have decayed, and steps grow without bound
at a stable equilibrium. The collocation equations of a step are solved by Newton's method; its linear systems by GMRES
with the derivative applied matrix-free, preconditioned by a Lyapunov operator: H ↦ H − h(NH + HNᵀ) for each eigenvalue
of the collocation matrix, with N of :meth:`MeanFieldLayer.lyapunov_matrix`. That N is exact where V = vI, so the Krylov
space has only the distance of V from a multiple of the identity to deal with. No (d², d²) matrix is ever formed.

References: E. Hairer, G. Wanner, Solving Ordinary Differential Equations II, sections IV.5 and IV.8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float

from gaussflow.errors import InvalidInput
from gaussflow.flow.explicit import MOST_REJECTIONS, RUNNING, bounded_loop
from gaussflow.flow.forms import CovarianceForm
from gaussflow.flow.run import Run, Status
from gaussflow.flow.runge_kutta import scaled_error
from gaussflow.gaussian import Moments
from gaussflow.layers.schedule import Schedule
from gaussflow.linalg import symmetric_part, transpose

STAGES = 5
MOST_NEWTON_STEPS = 10
KRYLOV_DIMENSION = 24
INNER_TOLERANCE = 1e-3  # relative residual asked of GMRES in one Newton step
NEWTON_TOLERANCE = 0.05  # of the error weights
LEAST_RESOLVED = 1e-3
"""Floor of ``atol`` over ``rtol``: variances below this share of the largest must not hold up the step."""


class Collocation(NamedTuple):
    """Constants of Radau IIA with s stages, computed once on the host."""

    nodes: np.ndarray  # (s,)
    matrix: np.ndarray  # (s, s), the Runge–Kutta matrix
    eigenvalues: np.ndarray  # (s,), complex
    vectors: np.ndarray  # (s, s), complex
    inverse_vectors: np.ndarray
    real_eigenvalue: float
    error_weights: np.ndarray  # of the stage increments, in the embedded formula
    inverse_vandermonde: np.ndarray  # (s + 1, s + 1), for extrapolating the collocation polynomial


@cache
def collocation(s: int = STAGES) -> Collocation:
    """Nodes, matrix, spectrum and embedded error formula of the s-stage Radau IIA method, s odd."""
    inner, _ = scipy.special.roots_jacobi(s - 1, 1, 0)
    nodes = np.append((inner + 1) / 2, 1.0)
    powers = np.arange(s)
    vandermonde = nodes[:, None] ** powers
    integrals = nodes[:, None] ** (powers + 1) / (powers + 1)
    matrix = integrals @ np.linalg.inv(vandermonde)
    eigenvalues, vectors = np.linalg.eig(matrix)
    gamma = float(eigenvalues[np.argmin(np.abs(eigenvalues.imag))].real)
    # The embedded formula adds γ₀ f(y₀), which filters like (I − hγ₀J)⁻¹, and is of order s.
    moments = 1.0 / (powers + 1) - gamma * (powers == 0)
    embedded = np.linalg.solve(vandermonde.T, moments)
    with_start = np.append(0.0, nodes)[:, None] ** np.arange(s + 1)
    return Collocation(
        nodes,
        matrix,
        eigenvalues,
        vectors,
        np.linalg.inv(vectors),
        gamma,
        (embedded - matrix[-1]) @ np.linalg.inv(matrix),
        np.linalg.inv(with_start),
    )


class _State(NamedTuple):
    t: Array
    h: Array
    mean: Array
    covariance: Array
    increments: Array  # of the last accepted step, (s, d, d)
    last_h: Array
    piece: Array
    next_save: Array
    saved: tuple[Array, Array]
    steps: Array
    rejected: Array
    rejected_in_a_row: Array
    iterations: Array
    status: Array


def integrate_stiff(
    schedule: Schedule,
    mean: Float[Array, " d"],
    covariance: Float[Array, "d d"],
    ts: Float[Array, " n"],
    t1: Float[Array, ""],
    *,
    t0: Float[Array, ""],
    rtol: Float[Array, ""],
    atol: Float[Array, ""],
    step: Float[Array, ""] | None = None,
    max_steps: int = 16384,
    stop: Callable[[Array, Array], Array] | None = None,
    moves: bool = True,
    kind: str = "lax",
) -> Run:
    """Integrate mean and covariance implicitly from t0 to t1, landing on every save time and every edge of the schedule.

    Landing, instead of interpolating, gives saved states the full order nine; steps grow freely in between. Without
    ``moves`` the mean is known to stay zero. A step whose stages are not positive semidefinite (within the tolerance)
    is rejected, so that no step can jump over a blow-up to the other branch of the Riccati flow.

    Raises :class:`InvalidInput` for layers whose covariance flow depends on the mean.
    """
    if not schedule.layer_in_piece(0, t0).autonomous:
        raise InvalidInput(
            "method", got="'stiff' with a layer that depends on the mean", wanted="auto, covariance or factor"
        )
    rule = collocation()
    edges = schedule.edges
    pieces = edges.shape[0] - 1
    sign = jnp.where(t1 >= t0, 1.0, -1.0).astype(t0.dtype)
    atol = jnp.maximum(atol, LEAST_RESOLVED * rtol)
    form = CovarianceForm()
    d = mean.shape[0]
    nodes, matrix = jnp.asarray(rule.nodes), jnp.asarray(rule.matrix)
    # The error formula is of order s, the method of order 2s - 1: an error of rtol in the method shows as this much.
    tolerance = rtol ** ((STAGES + 1) / (2 * STAGES))

    def rate(piece, t, sigma):
        return schedule.layer_in_piece(piece, t).covariance_rate(Moments(jnp.zeros_like(mean), sigma))

    inner = edges[1:-1]
    forward, backward = (jnp.searchsorted(inner, t0, side=side) for side in ("right", "left"))
    piece0 = jnp.where(sign > 0, forward, backward).astype(int) if pieces > 1 else jnp.zeros((), int)

    def body(s: _State) -> _State:
        target = t1
        if pieces > 1:
            edge = jnp.where(sign > 0, edges[s.piece + 1], edges[s.piece])
            target = sign * jnp.minimum(sign * t1, sign * edge)
        waiting = s.next_save < ts.shape[0]
        save_at = jnp.where(waiting, ts[jnp.minimum(s.next_save, ts.shape[0] - 1)], t1)
        target = sign * jnp.minimum(sign * target, sign * save_at)
        remaining = jnp.abs(target - s.t)
        lands = jax.lax.stop_gradient(s.h * (1 + 1e-10) >= remaining)
        h = sign * jnp.where(lands, remaining, s.h)
        times = s.t + nodes * h
        rates = jax.vmap(lambda t, sigma: rate(s.piece, t, sigma))

        weights = jax.lax.stop_gradient(
            form.weights(form_state(s.mean, s.covariance), form_state(s.mean, s.covariance), rtol, atol)[:, :-1]
        )
        safe = jnp.where(weights > 0, weights, 1.0)
        layer = schedule.layer_in_piece(s.piece, s.t)
        N = layer.lyapunov_matrix(Moments(jnp.zeros_like(mean), s.covariance))
        solver = _LyapunovSolver.of(jax.lax.stop_gradient(N), jax.lax.stop_gradient(h))

        def residual(Z):
            return Z - h * jnp.tensordot(matrix, rates(times, s.covariance + Z), axes=1)

        guess = jax.lax.stop_gradient(_extrapolate(rule, s.increments, h / jnp.where(s.last_h == 0, 1.0, s.last_h)))
        guess = jnp.where(s.last_h == 0, 0.0, guess)
        Z, (converged, iterations) = _solve_stages(residual, guess, solver, safe)
        Z = symmetric_part(Z)

        sigma = s.covariance + Z[-1]
        start_rate = rate(s.piece, s.t, s.covariance)
        increments_error = jnp.tensordot(jnp.asarray(rule.error_weights), Z, axes=1)
        estimate = solver.one(h * rule.real_eigenvalue * start_rate + increments_error, rule.real_eigenvalue)
        scale = rtol / tolerance  # error weights carry rtol
        wide = jnp.maximum(safe, form.weights(form_state(s.mean, sigma), form_state(s.mean, sigma), rtol, atol)[:, :-1])
        error = scaled_error(scale * estimate, wide)
        new_mean = s.mean
        if moves:
            new_mean, mean_error = _mean_step(schedule, s, times, h, Z, rule)
            deviations = jnp.sqrt(jnp.maximum(jnp.diagonal(sigma), 0.0))
            largest = jnp.max(deviations, initial=0.0) + jnp.max(jnp.abs(new_mean), initial=0.0)
            mean_weights = rtol * (jnp.maximum(jnp.abs(s.mean), jnp.abs(new_mean)) + deviations) + atol * largest
            error = jnp.maximum(error, scaled_error(scale * mean_error, mean_weights))

        plausible = converged & _nearly_semidefinite(sigma, 10 * tolerance) & jnp.all(jnp.isfinite(new_mean))
        plausible = plausible & jnp.all(jnp.diagonal(s.covariance + Z, axis1=1, axis2=2) > -10 * tolerance * _size(s.covariance))
        if step is None:
            accept = plausible & (error <= 1.0)
            factor = _factor(error, plausible, iterations)
            factor = jnp.where(s.rejected_in_a_row > 0, jnp.minimum(factor, 1.0), factor)
            h_next = jax.lax.stop_gradient(jnp.abs(h)) * factor
            h_next = jnp.where(lands & accept, jnp.maximum(h_next, s.h), h_next)
        else:
            accept, h_next = plausible, s.h

        keep = lambda new, old: jnp.where(accept, new, old)
        t = keep(jnp.where(lands, target, s.t + h), s.t)
        piece = s.piece
        if pieces > 1:
            at_edge = accept & (t == edge) & (sign * t < sign * t1)
            piece = jnp.clip(piece + jnp.where(at_edge, sign.astype(int), 0), 0, pieces - 1)
        covariance, mean_now = keep(sigma, s.covariance), keep(new_mean, s.mean)

        def save(carry):
            i, means, covariances = carry
            return i + 1, means.at[i].set(mean_now), covariances.at[i].set(covariance)

        due = jnp.where(accept, jnp.sum(sign * (ts - t) <= 0), s.next_save)
        next_save, *saved = bounded_loop(
            lambda c: c[0] < due, save, (s.next_save, *s.saved), ts.shape[0], kind, buffers=lambda c: (c[1], c[2])
        )

        rejected_in_a_row = jnp.where(accept, 0, s.rejected_in_a_row + 1)
        status = jnp.where(accept & (sign * t >= sign * t1), Status.REACHED_END, RUNNING)
        if stop is not None:
            status = jnp.where((status == RUNNING) & accept & stop(t, covariance), Status.GREW, status)
        tiny = h_next <= 4 * jnp.finfo(t0.dtype).eps * jnp.abs(t)
        stuck = (rejected_in_a_row > MOST_REJECTIONS) | (tiny & ~accept) | ((step is not None) & ~accept)
        cause = jnp.where(converged, Status.STEP_TOO_SMALL, Status.IMPLICIT_SOLVE_FAILED)
        status = jnp.where((status == RUNNING) & stuck, cause, status)
        steps = s.steps + 1
        status = jnp.where((status == RUNNING) & (steps >= max_steps), Status.OUT_OF_STEPS, status)
        moved = piece != s.piece
        return _State(
            t, h_next, mean_now, covariance, keep(jax.lax.stop_gradient(Z), s.increments),
            jnp.where(moved, 0.0, keep(jax.lax.stop_gradient(h), s.last_h)), piece, next_save, tuple(saved), steps,
            s.rejected + jnp.where(accept, 0, 1), rejected_in_a_row, s.iterations + iterations, status,
        )  # fmt: skip

    def form_state(mean, covariance):
        return jnp.concatenate([covariance, mean[:, None]], axis=1)

    covariance = symmetric_part(covariance)
    if step is None:
        speed = jnp.max(jnp.abs(rate(piece0, t0, covariance)), initial=0.0)
        natural = 0.1 * _size(covariance) / jnp.where(speed > 0, speed, 1.0)
        h0 = jnp.minimum(jnp.abs(t1 - t0), jnp.where((speed > 0) & (natural > 0), natural, jnp.abs(t1 - t0)))
        h0 = jax.lax.stop_gradient(h0)
    else:
        h0 = jnp.abs(step)
    n, zero = ts.shape[0], jnp.zeros((), int)
    at_start = jnp.sum(sign * (ts - t0) <= 0)
    buffers = (jnp.zeros((n, d), mean.dtype), jnp.zeros((n, d, d), mean.dtype))
    start = _State(
        t0, h0, mean, covariance, jnp.zeros((STAGES, d, d), mean.dtype), jnp.zeros_like(t0), piece0, at_start, buffers,
        zero, zero, zero, zero, jnp.where(t0 == t1, Status.REACHED_END, RUNNING),
    )  # fmt: skip
    end = bounded_loop(lambda s: s.status == RUNNING, body, start, max_steps, kind, buffers=lambda s: s.saved)

    def fill(saved, initial):
        index = jnp.arange(n).reshape(n, *(1,) * initial.ndim)
        last = jnp.where(end.next_save > at_start, saved[jnp.maximum(end.next_save - 1, 0)], initial)
        return jnp.where(index < at_start, initial, jnp.where(index < end.next_save, saved, last))

    saved = (fill(end.saved[0], mean), fill(end.saved[1], covariance))
    state = (end.mean, end.covariance)
    return Run(saved, end.next_save, end.t, state, end.status, end.steps, end.rejected, end.iterations)


class _LyapunovSolver(NamedTuple):
    """Solves H − h λ(NH + HNᵀ) = R through the eigendecomposition N = X diag(D) X⁻¹."""

    X: Array
    inverse: Array
    D: Array
    h: Array

    @staticmethod
    def of(N: Array, h: Array) -> _LyapunovSolver:
        d = N.shape[0]
        # A defective N gets its eigenvectors apart; as a preconditioner it may be off by a millionth.
        spread = jnp.asarray(np.random.default_rng(0).normal(size=(d, d)) / max(np.sqrt(d), 1.0), N.dtype)
        size = jnp.max(jnp.abs(N), initial=0.0)
        D, X = jnp.linalg.eig(jnp.where(jnp.isfinite(N), N, 0.0) + 1e-7 * size * spread)
        return _LyapunovSolver(X, jnp.linalg.inv(X), D, h)

    def transposed(self) -> _LyapunovSolver:
        return _LyapunovSolver(transpose(self.inverse), transpose(self.X), self.D, self.h)

    def one(self, R: Array, eigenvalue: Any) -> Array:
        """For one right-hand side (d, d), or a stack with as many eigenvalues."""
        eigenvalue = jnp.asarray(eigenvalue)[..., None, None]
        shifted = 1 - self.h * eigenvalue * (self.D[:, None] + self.D[None, :])
        inside = self.inverse @ R @ transpose(self.inverse)
        solved = self.X @ (inside / shifted) @ transpose(self.X)
        return solved if jnp.iscomplexobj(R) else symmetric_part(solved.real)

    def stages(self, R: Array, *, adjoint: bool = False) -> Array:
        """For the coupled stage equations, R (s, d, d): diagonalised over the stages first."""
        rule = collocation()
        left, right = rule.vectors, rule.inverse_vectors
        if adjoint:
            left, right = right.T, left.T
        # Eigenvalues come in conjugate pairs, whose contributions are conjugate: one of each pair is enough.
        kept = np.flatnonzero(rule.eigenvalues.imag > -1e-12)
        twice = np.where(rule.eigenvalues.imag[kept] > 1e-12, 2.0, 1.0)
        mixed = jnp.tensordot(jnp.asarray(right[kept]), R, axes=1)
        solved = self.one(mixed, rule.eigenvalues[kept])
        return symmetric_part(jnp.tensordot(jnp.asarray(left[:, kept] * twice), solved, axes=1).real)


def _solve_stages(residual: Callable[[Array], Array], guess: Array, solver: _LyapunovSolver, weights: Array):
    """The root Z of the collocation equations, differentiable by the implicit function theorem.

    Returns Z and (whether Newton's method converged, how many steps it took).
    """

    def gmres(operator, right, preconditioner):
        # In units of the error weights, so that GMRES minimises what counts.
        scaled = lambda x: x * weights
        solution, _ = jax.scipy.sparse.linalg.gmres(
            lambda x: operator(scaled(x)) / weights,
            right / weights,
            M=lambda x: preconditioner(scaled(x)) / weights,
            tol=INNER_TOLERANCE,
            atol=0.1 * NEWTON_TOLERANCE * np.sqrt(right.size),
            restart=KRYLOV_DIMENSION,
            maxiter=2,
            solve_method="incremental",
        )
        return scaled(solution)

    def solve(f, Z):
        def measure(r):
            return jnp.sqrt(jnp.mean((solver.stages(r) / weights) ** 2))

        def newton(carry):
            i, Z, r, size, _ = carry
            _, linear = jax.linearize(f, Z)
            Z = Z - gmres(linear, r, solver.stages)
            r = f(Z)
            now = measure(r)
            # Gone astray: NaN, or no better than before after the first steps.
            lost = ~jnp.isfinite(now) | ((i >= 2) & (now > 2 * size))
            return i + 1, Z, r, now, lost

        r = f(Z)
        size = measure(r)
        start = (jnp.zeros((), int), Z, r, size, ~jnp.isfinite(size))
        running = lambda c: (c[0] < MOST_NEWTON_STEPS) & (c[3] > NEWTON_TOLERANCE) & ~c[4]
        i, Z, _, size, _ = jax.lax.while_loop(running, newton, start)
        return Z, (size <= NEWTON_TOLERANCE, i)

    def tangent_solve(g, y):
        return jax.lax.custom_linear_solve(
            g,
            y,
            solve=lambda operator, b: _tight(gmres, operator, b, solver.stages),
            transpose_solve=lambda operator, b: _tight(
                gmres, operator, b, lambda x: solver.transposed().stages(x, adjoint=True)
            ),
        )

    return jax.lax.custom_root(residual, guess, solve, tangent_solve, has_aux=True)


def _tight(gmres, operator, right, preconditioner, rounds: int = 5):
    """A linear solve to rounding level, by repeated GMRES on the residual (derivatives must not carry 1e-3 errors)."""
    solution = jnp.zeros_like(right)
    size = jnp.sqrt(jnp.mean(right**2))
    unit = jnp.where(size > 0, size, 1.0)
    for _ in range(rounds):
        left_over = (right / unit - operator(solution)) * 1e12
        solution = solution + gmres(operator, left_over, preconditioner) * 1e-12
    return solution * unit


def _mean_step(schedule: Schedule, s: _State, times: Array, h: Array, Z: Array, rule: Collocation):
    """The mean's collocation equations along the stage covariances: linear, solved densely; and its error estimate."""
    d = s.mean.shape[0]

    def drift(t, sigma, mean):
        field = schedule.layer_in_piece(s.piece, t).affine_field(Moments(mean, sigma))
        return field.matrix @ mean + field.offset

    def linear(t, sigma):
        return jax.jacfwd(lambda m: drift(t, sigma, m))(s.mean), drift(t, sigma, s.mean)

    K, f = jax.vmap(linear)(times, s.covariance + Z)
    A = jnp.asarray(rule.matrix)
    # z_i − h Σ_j a_ij K_j z_j = h Σ_j a_ij f_j, with f_j the drift of the starting mean.
    blocks = jnp.einsum("ij,jab->iajb", h * A, K).reshape(STAGES * d, STAGES * d)
    z = jnp.linalg.solve(jnp.eye(STAGES * d) - blocks, (h * A @ f).reshape(-1)).reshape(STAGES, d)
    K0, f0 = linear(s.t, s.covariance)
    estimate = h * rule.real_eigenvalue * f0 + jnp.asarray(rule.error_weights) @ z
    filtered = jnp.linalg.solve(jnp.eye(d) - h * rule.real_eigenvalue * K0, estimate)
    return s.mean + z[-1], jax.lax.stop_gradient(filtered)


def _extrapolate(rule: Collocation, increments: Array, ratio: Array) -> Array:
    """The last step's collocation polynomial at the nodes of the next; nothing if that would be far outside."""
    s = STAGES
    theta = 1 + jnp.asarray(rule.nodes) * ratio
    powers = theta[:, None] ** jnp.arange(s + 1)
    coefficients = (powers @ jnp.asarray(rule.inverse_vandermonde))[:, 1:]
    guess = jnp.tensordot(coefficients, increments, axes=1) - increments[-1]
    return jnp.where((ratio > 0) & (ratio <= 2.5), guess, 0.0)


def _factor(error: Array, plausible: Array, iterations: Array) -> Array:
    safety = 0.9 * (2 * MOST_NEWTON_STEPS + 1) / (2 * MOST_NEWTON_STEPS + iterations)
    factor = safety * jnp.where(error > 0, error, 1e-10) ** (-1.0 / (STAGES + 1))
    factor = jnp.clip(jnp.where(jnp.isfinite(factor), factor, 0.2), 0.2, 8.0)
    return jax.lax.stop_gradient(jnp.where(plausible, factor, 0.25))


def _size(covariance: Array) -> Array:
    return jnp.max(jnp.abs(covariance), initial=0.0)


def _nearly_semidefinite(covariance: Array, tolerance: Array) -> Array:
    """Whether the correlation matrix has no eigenvalue below −tolerance, by a Cholesky factorisation."""
    diagonal = jnp.diagonal(covariance)
    deviations = jnp.sqrt(jnp.maximum(diagonal, 1e-6 * jnp.max(diagonal, initial=0.0)))
    deviations = jnp.where(deviations > 0, deviations, 1.0)
    scaled = jax.lax.stop_gradient(covariance / deviations[:, None] / deviations[None, :])
    shifted = scaled + tolerance * jnp.eye(covariance.shape[0])
    return jnp.all(jnp.isfinite(jnp.linalg.cholesky(shifted))) if covariance.size else jnp.ones((), bool)
