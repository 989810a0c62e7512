"""The implicit integrator: L-stable Radau collocation whose Newton systems stay matrix-valued.

A step of Radau IIA with s stages asks for the increments Z_i = h Σ_j a_ij F(Σ + Z_j). Newton's method linearises F at
the stages; each linear system is solved by a Krylov method that needs F' only as an operator, O(d³), preconditioned by
the same collocation system with a Lyapunov operator in place of F' (exact where V = vI). The d²×d² Jacobian never
exists. The mean obeys a linear equation along the stages of Σ and is solved for afterwards, directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from gaussflow.errors import InvalidInput
from gaussflow.flow.collocation import radau
from gaussflow.flow.explicit import MOST_REJECTIONS, RUNNING, bounded_loop
from gaussflow.flow.krylov import minimal_residual
from gaussflow.flow.lyapunov_preconditioner import Spectral, diagonalise, solve_shifted, solve_stages
from gaussflow.flow.run import Run, Status
from gaussflow.flow.runge_kutta import first_step_size, scaled_error
from gaussflow.gaussian import Moments
from gaussflow.layers.schedule import Schedule
from gaussflow.linalg import symmetric_part, transpose

METHOD = radau(7)
"""Order 13 at the end of a step, 7 within. Few, large steps: at small d it is their number that costs."""
NEWTON_SHARE = 1e-2
"""Share of the tolerance left to the error of the implicit solve."""
LOOSEST_NEWTON = 1e-8
"""Relative error of the implicit solve above which nothing is saved; Newton's last iteration gets there anyway."""
MOST_AMPLIFIED = 1e-2
"""Largest relative error expected in an extrapolated first guess; beyond it the solve starts from rest."""
FIRST_FORCING = 1e-2
"""Relative accuracy of the first linear solve of a step; later ones follow the progress of Newton's method."""
MOST_NEWTON = 10
KRYLOV_BASIS, ESTIMATE_BASIS = 24, 12
TANGENT_ACCURACY, TANGENT_ITERATIONS = 1e-11, 96
"""Relative accuracy, and most Krylov iterations, of the linear systems behind derivatives."""
ABSOLUTE_FLOOR = 1e-2
"""Least ``atol`` over ``rtol``: a direction that decays is followed to a hundredth of the largest, then let go."""
RESOLVED = 1e-200
"""Share of the largest variance so far below which a collapsing covariance counts as collapsed: near underflow."""
IMPLAUSIBLE = 1e-3
"""Negative part of a covariance, relative to the variances, that no error within the tolerance explains."""
SAFETY, SHRINK, GROW = 0.9, 0.1, 8.0
AFTER_FAILED_SOLVE = 0.25


class _Peak(NamedTuple):
    """The largest variance and the largest coordinate of the mean so far."""

    variance: Array
    mean: Array


class _State(NamedTuple):
    t: Array
    h: Array  # size of the next trial step, positive
    mean: Array
    covariance: Array
    piece: Array
    increments: Array  # of the last accepted step, to extrapolate from
    last_h: Array  # of that step; zero where there is nothing to extrapolate
    peak: _Peak
    last_error: Array
    next_save: Array
    saved: tuple[Array, Array]
    steps: Array
    rejected: Array
    rejected_in_a_row: Array
    evaluations: Array
    status: Array


class _Stages(NamedTuple):
    """Increments of the covariance, (s, d, d), and of the mean, (s, d), at the nodes of one step."""

    covariance: Array
    mean: Array


class _Effort(NamedTuple):
    """Whether a solve converged, and its evaluations; floating numbers, as ``custom_root`` has no place for others."""

    converged: Array
    evaluations: Array


class _Field(NamedTuple):
    """The flow in one piece of a schedule."""

    schedule: Schedule
    piece: Array

    def covariance_rate(self, t: Array, covariance: Array) -> Array:
        return self.schedule.layer_in_piece(self.piece, t).covariance_rate(_centred(covariance))

    def mean_rate(self, t: Array, covariance: Array, mean: Array) -> Array:
        return self.schedule.layer_in_piece(self.piece, t).affine_field(Moments(mean, covariance)).at(mean)

    def mean_matrix(self, t: Array, covariance: Array) -> Array:
        """The matrix of the mean's equation, which is affine where the covariance flows by itself."""
        return jax.jacfwd(lambda mean: self.mean_rate(t, covariance, mean))(_centred(covariance).mean)

    def lyapunov_matrix(self, t: Array, covariance: Array) -> Array:
        return self.schedule.layer_in_piece(self.piece, t).lyapunov_matrix(_centred(covariance))


def _centred(covariance: Array) -> Moments:
    return Moments(jnp.zeros(covariance.shape[-1], covariance.dtype), covariance)


def integrate_stiff(
    schedule: Schedule,
    mean: Any,
    covariance: Any,
    ts: Any,
    t1: Any,
    *,
    t0: Any,
    rtol: Any,
    atol: Any,
    step: Any = None,
    max_steps: int = 4096,
    stop: Callable[[Array, Array], Array] | None = None,
    kind: str = "lax",
) -> Run:
    """Integrate mean and covariance from t0 to t1 with implicit, L-stable steps, saving at ``ts``.

    Radau IIA collocation with seven stages (:data:`METHOD`), O(d³) an iteration. At a stable equilibrium steps grow
    up to eightfold each, so that a horizon of 1e8 costs some tens of steps more than one of 1.

    Parameters
    ----------
    schedule:
        layers whose covariance flows by itself (``autonomous``). No step crosses an edge of the schedule.
    mean, covariance:
        the state at t0, (d,) and (d, d); the covariance exactly symmetric, and so are all that are returned.
    ts:
        save times, (n,), sorted from t0 to t1. They are filled from the collocation polynomial, whose order 7 is that
        of the error estimate, so they are as accurate as the tolerance says; the ends of steps are better than that.
    rtol, atol:
        one step's error in entry (i, j) of Σ is compared with rtol √(Σᵢᵢ Σⱼⱼ) + atol maxₖ Σₖₖ, in the mean with
        rtol (|μᵢ| + √Σᵢᵢ) + atol (maxₖ √Σₖₖ + maxₖ |μₖ|). ``atol`` is taken as at least a hundredth of ``rtol``, and
        the maxima as at least 1e-200 of their largest values so far: a fast direction that has decayed must not hold
        the steps down, and a covariance that collapses to a point is followed in relative terms, down to underflow.
    step:
        take fixed steps of this size instead (the last one before an edge or the end is cut to land on it).
    stop:
        ``stop(t, covariance)`` ends the run with :attr:`Status.GREW` after the step that made it true.
    kind:
        "lax" (fastest; forward-mode derivatives) or "checkpointed" (reverse mode). Derivatives of a step come from the
        implicit function theorem, with the same Krylov solver; step sizes are held fixed.

    Returns
    -------
    Run
        with ``state = (mean, covariance)`` and ``saved`` the same with a leading axis. ``evaluations`` counts rates of
        Σ, and products with their derivative, at all stages at once.

    Raises
    ------
    InvalidInput
        for layers whose covariance flow depends on the mean.
    """
    mean, covariance, ts = jnp.asarray(mean), jnp.asarray(covariance), jnp.asarray(ts)
    dtype = covariance.dtype
    t0, t1, rtol = (jnp.asarray(x, dtype) for x in (t0, t1, rtol))
    rtol = jnp.maximum(rtol, 16 * jnp.finfo(dtype).eps)
    atol = jnp.maximum(jnp.asarray(atol, dtype), ABSOLUTE_FLOOR * rtol)
    edges = schedule.edges
    pieces = edges.shape[0] - 1
    sign = jnp.where(t1 >= t0, 1.0, -1.0).astype(dtype)
    rounding = 4 * jnp.finfo(dtype).eps
    d, s = covariance.shape[-1], METHOD.stages
    always_moves = kind != "lax"

    inner = edges[1:-1]
    piece0 = jnp.zeros((), int)
    if pieces > 1:
        forward = jnp.searchsorted(inner, t0, side="right")
        piece0 = jnp.where(sign > 0, forward, jnp.searchsorted(inner, t0, side="left")).astype(int)
    if not schedule.layer_in_piece(piece0, t0).autonomous:
        raise InvalidInput(
            "method",
            got="'stiff' for a layer whose covariance flow depends on the mean",
            wanted="layers that are autonomous in the covariance",
            fix="use method='covariance' or method='factor'",
        )

    peak0 = _higher(_Peak(jnp.zeros((), dtype), jnp.zeros((), dtype)), mean, covariance)
    if step is None:
        scale = _weights(mean, jnp.diagonal(covariance), 1.0, atol / rtol, peak0).covariance
        rate = _Field(schedule, piece0).covariance_rate(t0, covariance)
        sizes = [scaled_error(x, jnp.where(scale > 0, scale, 1.0)) for x in (covariance, rate)]
        h0 = first_step_size(sizes[0], sizes[1], rtol, METHOD.stage_order + 1, jnp.abs(t1 - t0))
    else:
        h0 = jnp.abs(jnp.asarray(step, dtype))

    def body(c: _State) -> _State:
        target = t1
        if pieces > 1:
            edge = jnp.where(sign > 0, edges[c.piece + 1], edges[c.piece])
            target = sign * jnp.minimum(sign * t1, sign * edge)
        remaining = jnp.abs(target - c.t)
        # A step that would leave less than rounding behind lands on the target instead.
        lands = c.h * (1 + 1e-10) >= remaining
        h = sign * jnp.where(lands, remaining, c.h)
        t_new = jnp.where(lands, target, c.t + h)
        field = _Field(schedule, c.piece)

        stages, effort, spectral = _solve_step(field, c, h, rtol, atol, always_moves)
        mean = c.mean + stages.mean[-1]
        covariance = c.covariance + stages.covariance[-1]
        plausible = effort.converged & _without_derivatives(partial(_plausible, c, stages, rtol))

        if step is None:
            estimate = partial(_estimate, field, c, h, stages, spectral, rtol, atol, always_moves)
            error, more = _without_derivatives(estimate)
            accept = plausible & (error <= 1.0)
            h_next = _next_step(c, jnp.abs(h), error, plausible, coarse=kind == "checkpointed")
            # A step cut short to land says nothing about the size of the next one.
            h_next = jnp.where(lands & accept, jnp.maximum(h_next, c.h), h_next)
            h_next = jax.lax.stop_gradient(h_next)
        else:
            error, more = jnp.zeros((), dtype), 0
            accept = plausible
            h_next = c.h

        keep = lambda new, old: jnp.where(accept, new, old)
        t = keep(t_new, c.t)
        piece, last_h = c.piece, keep(jnp.abs(h), c.last_h)
        if pieces > 1:
            moves = accept & lands & (sign * t < sign * t1)
            piece = jnp.clip(piece + jnp.where(moves, sign.astype(int), 0), 0, pieces - 1)
            last_h = jnp.where(moves, 0.0, last_h)

        due = jnp.where(accept, jnp.sum(sign * (ts - t) <= 0), c.next_save)
        saved = _save(c, stages, h, t_new, (mean, covariance), ts, due, kind)

        rejected_in_a_row = jnp.where(accept, 0, c.rejected_in_a_row + 1)
        status = jnp.where(accept & (sign * t >= sign * t1), Status.REACHED_END, RUNNING)
        if stop is not None:
            status = jnp.where((status == RUNNING) & accept & stop(t, covariance), Status.GREW, status)
        too_small = (rejected_in_a_row > MOST_REJECTIONS) | (h_next <= rounding * jnp.abs(t)) & (remaining > h_next)
        if step is not None:
            too_small = ~accept
        cause = jnp.where(effort.converged, Status.STEP_TOO_SMALL, Status.IMPLICIT_SOLVE_FAILED)
        status = jnp.where((status == RUNNING) & too_small, cause, status)
        steps = c.steps + 1
        status = jnp.where((status == RUNNING) & (steps >= max_steps), Status.OUT_OF_STEPS, status)
        return _State(
            t=t,
            h=h_next,
            mean=keep(mean, c.mean),
            covariance=keep(covariance, c.covariance),
            piece=piece,
            increments=jax.lax.stop_gradient(keep(stages.covariance, c.increments)),
            last_h=jax.lax.stop_gradient(last_h),
            peak=jax.tree_util.tree_map(keep, _higher(c.peak, mean, covariance), c.peak),
            last_error=keep(error, c.last_error),
            next_save=due,
            saved=saved,
            steps=steps,
            rejected=c.rejected + jnp.where(accept, 0, 1),
            rejected_in_a_row=rejected_in_a_row,
            evaluations=c.evaluations + effort.evaluations + more,
            status=status,
        )

    zero = jnp.zeros((), int)
    at_start = jnp.sum(sign * (ts - t0) <= 0)
    n = ts.shape[0]
    start = _State(
        t=t0,
        h=h0,
        mean=mean,
        covariance=covariance,
        piece=piece0,
        increments=jnp.zeros((s, d, d), dtype),
        last_h=jnp.zeros((), dtype),
        peak=peak0,
        last_error=jnp.ones((), dtype),
        next_save=at_start,
        # Buffers that are written once an entry: their first values must carry no derivative.
        saved=(jnp.zeros((n, d), dtype), jnp.zeros((n, d, d), dtype)),
        steps=zero,
        rejected=zero,
        rejected_in_a_row=zero,
        evaluations=zero,
        status=jnp.where(t0 == t1, Status.REACHED_END, RUNNING),
    )
    buffers = (lambda c: c.saved) if n > 1 else None
    end = bounded_loop(lambda c: c.status == RUNNING, body, start, max_steps, kind, buffers=buffers)

    def filled(saved: Array, first: Array) -> Array:
        """Entries at the start are the start; those that were not reached repeat the last valid state."""
        index = jnp.arange(n).reshape(n, *(1,) * first.ndim)
        last = jnp.where(end.next_save > at_start, saved[jnp.maximum(end.next_save - 1, 0)], first) if n else first
        return jnp.where(index < at_start, first, jnp.where(index < end.next_save, saved, last))

    saved = (filled(end.saved[0], mean), filled(end.saved[1], covariance))
    state = (end.mean, end.covariance)
    return Run(saved, end.next_save, end.t, state, end.status, end.steps, end.rejected, end.evaluations)


def _weights(mean: Array, variances: Array, rtol: Any, atol: Any, peak: _Peak) -> _Stages:
    """Error weights of the covariance and the mean, in units of the standard deviations of the coordinates."""
    variances, sizes = jnp.abs(variances), jnp.abs(mean)
    deviations = jnp.sqrt(variances)
    variance = jnp.maximum(jnp.max(variances, initial=0.0), RESOLVED * peak.variance)
    largest = jnp.maximum(jnp.max(sizes, initial=0.0), RESOLVED * peak.mean) + jnp.sqrt(variance)
    return _Stages(
        rtol * deviations[:, None] * deviations + atol * variance, rtol * (sizes + deviations) + atol * largest
    )


def _higher(peak: _Peak, mean: Array, covariance: Array) -> _Peak:
    variance = jnp.max(jnp.diagonal(covariance), initial=0.0)
    new = _Peak(jnp.maximum(peak.variance, variance), jnp.maximum(peak.mean, jnp.max(jnp.abs(mean), initial=0.0)))
    return jax.lax.stop_gradient(new)


def _plausible(c: _State, stages: _Stages, rtol: Array) -> Array:
    """Whether the covariance stays positive semidefinite, within a tolerance, and the mean finite.

    Implicit equations also have solutions beyond a blow-up, on the negative branch of the flow: no step may jump there.
    """
    slack = IMPLAUSIBLE + 10.0 * rtol
    variances = jnp.diagonal(c.covariance + stages.covariance, axis1=1, axis2=2)
    largest = jnp.maximum(jnp.max(variances, initial=0.0), RESOLVED * c.peak.variance)
    # In units of the standard deviations; directions that have decayed to nothing are not judged by their rounding.
    scales = jnp.sqrt(jnp.maximum(variances[-1], IMPLAUSIBLE * largest))
    scales = jnp.where(scales > 0, scales, 1.0)
    end = (c.covariance + stages.covariance[-1]) / (scales[:, None] * scales)
    lower = jnp.linalg.cholesky(end + slack * jnp.eye(end.shape[0], dtype=end.dtype), symmetrize_input=False)
    semidefinite = jnp.all(jnp.isfinite(lower)) & jnp.all(variances >= -slack * largest)
    return semidefinite & jnp.all(jnp.isfinite(stages.mean))


def _mix(matrix: Any, stages: Array) -> Array:
    return jnp.tensordot(jnp.asarray(matrix, stages.dtype), stages, axes=1)


class _StageProblem(NamedTuple):
    """The collocation equations of one step, for the increments at the nodes."""

    field: _Field
    times: Array
    h: Array
    mean: Array
    covariance: Array

    def covariance_rates(self, increments: Array) -> Array:
        return jax.vmap(self.field.covariance_rate)(self.times, self.covariance + increments)

    def mean_rates(self, increments: Array, mean: Array) -> Array:
        """Rates of the mean at the nodes, where it is ``mean``, (s, d) or (d,)."""
        along = jax.vmap(self.field.mean_rate, in_axes=(0, 0, 0 if mean.ndim == 2 else None))
        return along(self.times, self.covariance + increments, mean)

    def defect(self, increments: Array, rates: Array) -> Array:
        return increments - self.h * _mix(METHOD.matrix, rates)

    def residual(self, x: _Stages) -> _Stages:
        increments = symmetric_part(x.covariance)
        rates, mean_rates = self.covariance_rates(increments), self.mean_rates(increments, self.mean + x.mean)
        return _Stages(self.defect(x.covariance, rates), self.defect(x.mean, mean_rates))

    def felt_by_mean(self, increments: Array, change: Array) -> Array:
        """What a change of the increments of Σ does to those of the mean, before the mean reacts."""
        _, push = jax.jvp(lambda x: self.mean_rates(x, self.mean), (increments,), (change,))
        return self.h * _mix(METHOD.matrix, push)

    def mean_increments(self, increments: Array) -> Array:
        """The increments of the mean along those of Σ: one linear system, (s·d, s·d)."""
        s, d = METHOD.stages, self.mean.shape[0]
        matrices = jax.vmap(self.field.mean_matrix)(self.times, self.covariance + increments)
        coupled = jnp.asarray(METHOD.matrix, matrices.dtype)[:, None, :, None] * jnp.swapaxes(matrices, 0, 1)[None]
        system = jnp.eye(s * d, dtype=matrices.dtype) - self.h * coupled.reshape(s * d, s * d)
        right = self.h * _mix(METHOD.matrix, self.mean_rates(increments, self.mean))
        return jnp.linalg.solve(system, right.reshape(-1)).reshape(s, d)

    def mean_moves(self, increments: Array) -> Array:
        return jnp.any(self.mean != 0) | jnp.any(self.mean_rates(increments, self.mean) != 0)


def _solve_step(
    field: _Field, c: _State, h: Array, rtol: Array, atol: Array, always_moves: bool
) -> tuple[_Stages, _Effort, Spectral]:
    """The increments at the nodes of one step, differentiable by the implicit function theorem."""
    problem = _StageProblem(field, c.t + h * METHOD.nodes, h, c.mean, c.covariance)
    fixed = jax.lax.stop_gradient
    spectral = diagonalise(fixed(field.lyapunov_matrix(c.t, c.covariance)))
    scales = _weights(c.mean, jnp.diagonal(c.covariance), rtol, atol, c.peak)
    scales = fixed(jax.tree_util.tree_map(lambda x: jnp.where(x > 0, x, 1.0), scales))
    fixed_h = fixed(h)

    def precondition(right: Array, transposed: bool = False) -> Array:
        return solve_stages(METHOD, spectral, fixed_h, right, transposed=transposed)

    def solve(_: Any, guess: _Stages) -> tuple[_Stages, _Effort]:
        increments, effort = _newton(problem, guess.covariance, precondition, scales, rtol)
        if always_moves:
            return _Stages(increments, problem.mean_increments(increments)), effort
        rest = jnp.zeros_like(guess.mean)
        moves = problem.mean_moves(increments)
        means = jax.lax.cond(moves, lambda: problem.mean_increments(increments), lambda: rest)
        return _Stages(increments, means), effort

    def tangent_solve(linear: Callable[[_Stages], _Stages], right: _Stages) -> _Stages:
        return jax.lax.custom_linear_solve(
            linear,
            right,
            lambda matvec, b: _solve_linearised(matvec, b, precondition, scales.covariance),
            lambda vecmat, b: _solve_transposed(vecmat, b, precondition, scales.covariance),
        )

    ratio = jnp.where(c.last_h > 0, jnp.abs(h) / jnp.where(c.last_h > 0, c.last_h, 1.0), 0.0)
    ahead = METHOD.lagrange(fixed(1.0 + ratio * METHOD.nodes))
    # Extrapolation amplifies the error of the last polynomial; where that spoils the guess, start from rest.
    amplified = rtol * jnp.max(jnp.sum(jnp.abs(ahead), axis=1))
    guess = _mirrored(_mix(ahead, c.increments) - c.increments[-1])
    guess = jnp.where((ratio > 0) & (amplified < MOST_AMPLIFIED), guess, 0.0)
    unknown = _Stages(fixed(guess), jnp.zeros((METHOD.stages, c.mean.shape[0]), guess.dtype))
    stages, effort = jax.lax.custom_root(problem.residual, unknown, solve, tangent_solve, has_aux=True)
    effort = _Effort(fixed(effort.converged) > 0, fixed(effort.evaluations).astype(int))
    return stages, effort, spectral


class _Newton(NamedTuple):
    increments: Array
    size: Array  # of the preconditioned residual, in units of what it may be
    before: Array
    iterations: Array
    evaluations: Array
    done: Array


def _newton(problem: _StageProblem, guess: Array, precondition, scales: _Stages, rtol: Array) -> tuple[Array, _Effort]:
    """Inexact Newton; the preconditioned residual, which is close to the error, decides when to stop.

    Errors of Σ force the mean, through a B that may be large: what they do to it counts as well.
    """
    share = jnp.minimum(NEWTON_SHARE, LOOSEST_NEWTON / rtol)
    eps = jnp.finfo(rtol.dtype).eps
    rounding = 64 * eps / (share * rtol)
    # Errors of this size are accepted where the residual stops falling.
    harmless = jnp.maximum(0.3, 1e-11 / rtol) / share
    length = float(guess.size) ** 0.5

    def body(c: _Newton) -> _Newton:
        rates, push = jax.linearize(problem.covariance_rates, c.increments)
        defect = precondition(problem.defect(c.increments, rates))
        size = _root_mean_square(defect / scales.covariance) / share
        felt = _root_mean_square(problem.felt_by_mean(c.increments, defect) / scales.mean) / share
        stuck = (c.iterations > 1) & (size > 0.5 * c.size) & (size < harmless)
        done = (jnp.maximum(size, felt) <= 1.0) | (size <= rounding) | stuck

        def operator(x: Array) -> Array:
            x = x.reshape(guess.shape) * scales.covariance
            return (precondition(problem.defect(x, push(x))) / scales.covariance).reshape(-1)

        forcing = jnp.where(c.iterations > 0, jnp.clip((size / c.size) ** 2, 1e-4, 0.1), FIRST_FORCING)
        enough = 0.3 * size / jnp.maximum(size, felt)
        goal = jnp.where(done, jnp.inf, share * length * jnp.maximum(enough, forcing * size))
        right = (defect / scales.covariance).reshape(-1)
        change = minimal_residual(operator, right, goal, basis=KRYLOV_BASIS, most_iterations=KRYLOV_BASIS)
        increments = _mirrored(c.increments - change.solution.reshape(guess.shape) * scales.covariance)
        return _Newton(
            jnp.where(done, c.increments, increments),
            size,
            c.size,
            c.iterations + 1,
            c.evaluations + 1 + change.iterations,
            done,
        )

    def going(c: _Newton) -> Array:
        diverges = (c.iterations > 2) & (c.size > 2.0 * c.before) | ~jnp.isfinite(c.size)
        return ~c.done & (c.iterations < MOST_NEWTON) & ~diverges

    zero, one = jnp.zeros((), int), jnp.ones((), guess.dtype)
    end = jax.lax.while_loop(going, body, _Newton(guess, one, one, zero, zero, jnp.zeros((), bool)))
    return end.increments, _Effort(end.done.astype(guess.dtype), end.evaluations.astype(guess.dtype))


def _mirrored(x: Array) -> Array:
    """x, symmetric up to rounding, with its upper triangle in place of the lower one: exactly symmetric.

    A mean of x and its transpose would not be: where a product is fused into the sum, only one of the two is rounded.
    """
    index = jnp.arange(x.shape[-1])
    return jnp.where(index[:, None] <= index, x, transpose(x))


def _root_mean_square(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(x**2)) if x.size else jnp.zeros((), x.dtype)


def _dense(linear: Callable[[Array], Array], like: Array) -> Array:
    """The matrix of a linear map of arrays shaped ``like``."""
    basis = jnp.eye(like.size, dtype=like.dtype).reshape(-1, *like.shape)
    return jax.vmap(lambda x: linear(x).reshape(-1), out_axes=1)(basis)


def _solve_symmetric(apply, right, precondition, scale) -> Array:
    symmetric = symmetric_part(right)
    start = precondition(symmetric) / scale

    def operator(x: Array) -> Array:
        return (precondition(apply(x.reshape(right.shape) * scale)) / scale).reshape(-1)

    goal = TANGENT_ACCURACY * jnp.sqrt(jnp.sum(start**2))
    found = minimal_residual(operator, start.reshape(-1), goal, basis=KRYLOV_BASIS, most_iterations=TANGENT_ITERATIONS)
    # The flow sees the symmetric part only; on the rest the operator is the identity.
    return symmetric_part(found.solution.reshape(right.shape) * scale) + (right - symmetric)


def _solve_linearised(matvec, right: _Stages, precondition, scale) -> _Stages:
    still = jnp.zeros_like(right.mean)
    covariance = _solve_symmetric(lambda x: matvec(_Stages(x, still)).covariance, right.covariance, precondition, scale)
    coupling = matvec(_Stages(covariance, still)).mean
    fixed = jnp.zeros_like(right.covariance)
    system = _dense(lambda x: matvec(_Stages(fixed, x)).mean, right.mean)
    mean = jnp.linalg.solve(system, (right.mean - coupling).reshape(-1))
    return _Stages(covariance, mean.reshape(right.mean.shape))


def _solve_transposed(vecmat, right: _Stages, precondition, scale) -> _Stages:
    fixed, still = jnp.zeros_like(right.covariance), jnp.zeros_like(right.mean)
    system = _dense(lambda x: vecmat(_Stages(fixed, x)).mean, right.mean)
    mean = jnp.linalg.solve(system, right.mean.reshape(-1)).reshape(right.mean.shape)
    coupling = vecmat(_Stages(fixed, mean)).covariance
    backward = lambda x: precondition(x, transposed=True)
    apply = lambda x: vecmat(_Stages(x, still)).covariance
    covariance = _solve_symmetric(apply, right.covariance - coupling, backward, 1.0 / scale)
    return _Stages(covariance, mean)


def _estimate(
    field: _Field,
    c: _State,
    h: Array,
    stages: _Stages,
    spectral: Spectral,
    rtol: Array,
    atol: Array,
    always_moves: bool,
) -> tuple[Array, Array]:
    """Scaled difference from the embedded method of order s, filtered by (I - hγJ)⁻¹ (Hairer and Wanner, IV.8)."""
    mean, covariance, shift = c.mean, c.covariance, h * METHOD.error_start
    end = c.mean + stages.mean[-1], c.covariance + stages.covariance[-1]
    variances = jnp.maximum(*(jnp.abs(jnp.diagonal(x)) for x in (covariance, end[1])))
    weights = _weights(jnp.maximum(jnp.abs(mean), jnp.abs(end[0])), variances, rtol, atol, c.peak)
    scale = jnp.where(weights.covariance > 0, weights.covariance, 1.0)

    def of_covariance() -> tuple[Array, Array]:
        rate, push = jax.linearize(lambda x: field.covariance_rate(c.t, x), covariance)
        raw = shift * rate + _mix(METHOD.error_stages, stages.covariance)

        def operator(x: Array) -> Array:
            x = x.reshape(raw.shape) * scale
            return (solve_shifted(spectral, shift, x - shift * push(x)) / scale).reshape(-1)

        start = (solve_shifted(spectral, shift, raw) / scale).reshape(-1)
        goal = 0.1 * jnp.sqrt(jnp.sum(start**2))
        found = minimal_residual(operator, start, goal, basis=ESTIMATE_BASIS, most_iterations=ESTIMATE_BASIS)
        return scaled_error(found.solution.reshape(raw.shape) * scale, weights.covariance), 1 + found.iterations

    def of_mean() -> Array:
        matrix = jnp.eye(mean.shape[0], dtype=mean.dtype) - shift * field.mean_matrix(c.t, covariance)
        raw = shift * field.mean_rate(c.t, covariance, mean) + _mix(METHOD.error_stages, stages.mean)
        return scaled_error(jnp.linalg.solve(matrix, raw), weights.mean)

    error, evaluations = of_covariance()
    if always_moves:
        return jnp.maximum(error, of_mean()), evaluations
    moves = jnp.any(mean != 0) | jnp.any(stages.mean != 0)
    return jnp.maximum(error, jax.lax.cond(moves, of_mean, lambda: jnp.zeros_like(error))), evaluations


def _without_derivatives(function: Callable[[], Any]) -> Any:
    """The value of ``function()``, cut off from the derivatives of everything it closes over."""
    pure, closed_over = jax.closure_convert(function)
    return pure(*jax.lax.stop_gradient(closed_over))


def _next_step(c: _State, h: Array, error: Array, plausible: Array, *, coarse: bool) -> Array:
    power = 1.0 / (METHOD.stage_order + 1)
    safe = jnp.where(error > 0, error, 1e-20)
    factor = SAFETY * safe**-power
    # Gustafsson's predictive rule: the error of the last step says how fast the error coefficient changes.
    trend = jnp.where(c.last_h > 0, h / jnp.where(c.last_h > 0, c.last_h, 1.0), 1.0)
    predicted = SAFETY * trend * (jnp.maximum(c.last_error, 1e-2) / safe**2) ** power
    predictive = (c.last_h > 0) & (error <= 1.0)
    factor = jnp.where(predictive, jnp.minimum(factor, predicted), factor)
    factor = jnp.where(jnp.isfinite(error), jnp.clip(factor, SHRINK, GROW), SHRINK)
    if coarse:  # as in the explicit step rule: pieces that a reverse pass computes again must take the same steps
        factor = 2 ** (jnp.floor(4 * jnp.log2(factor)) / 4)
    factor = jnp.where(c.rejected_in_a_row > 0, jnp.minimum(factor, 1.0), factor)
    return h * jnp.where(plausible, factor, AFTER_FAILED_SOLVE)


def _save(c: _State, stages: _Stages, h, t_new, state, ts, due, kind):
    n = ts.shape[0]
    if n == 0:
        return c.saved

    def at(i):
        t = ts[jnp.minimum(i, n - 1)]
        values = METHOD.lagrange(((t - c.t) / h)[None])[0]
        ends = t == t_new
        mean = c.mean + _mix(values, stages.mean)
        covariance = c.covariance + _mirrored(_mix(values, stages.covariance))
        return jnp.where(ends, state[0], mean), jnp.where(ends, state[1], covariance)

    def one(carry):
        i, (means, covariances) = carry
        mean, covariance = at(i)
        return i + 1, (means.at[i].set(mean), covariances.at[i].set(covariance))

    if n == 1:
        now = due > c.next_save
        mean, covariance = at(0)
        return jnp.where(now, mean[None], c.saved[0]), jnp.where(now, covariance[None], c.saved[1])
    return bounded_loop(lambda x: x[0] < due, one, (c.next_save, c.saved), n, kind, buffers=lambda x: x[1])[1]
