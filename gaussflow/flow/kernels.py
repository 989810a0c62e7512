"""The compiled entry points: one jitted function for each way to integrate.

Everything numerical arrives as an array, so that a second call with the same shapes never compiles. A schedule that
holds Python functions travels in two halves, its arrays and the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from gaussflow.flow.compactified import Search, growth_scales, search_blow_up
from gaussflow.flow.exact import MOST_RESTARTS, exact_factors, exact_means, restarts_needed
from gaussflow.flow.exact import exact_blow_up as find_exact_blow_up
from gaussflow.flow.explicit import integrate_explicit
from gaussflow.flow.forms import FORMS
from gaussflow.flow.run import Run, Status
from gaussflow.flow.stiff import integrate_stiff
from gaussflow.flow.tableau import Tableau
from gaussflow.flow.times import even_times, graded_times
from gaussflow.flow.trajectory import BlowUp
from gaussflow.gaussian import Gaussian
from gaussflow.layers.schedule import Constant, Schedule
from gaussflow.linalg import transpose

SUSPICIOUS_GROWTH = 1e4
"""Growth of tr Σ, over its start and over 1/(γ|t1 - t0|), beyond which a blow-up must be found or ruled out."""


class Problem(NamedTuple):
    """The numbers of one simulation."""

    schedule: Schedule
    mean: Array
    factor: Array
    t0: Any
    t1: Any
    rtol: Any
    atol: Any


class Settings(NamedTuple):
    """The choices of one simulation that decide what is compiled."""

    points: int | None  # None: save times are given
    tableau: Tableau
    fixed_step: bool
    max_steps: int
    kind: str


class Saved(NamedTuple):
    """A run with its save times and what they reached."""

    ts: Array
    means: Array
    rest: Array  # covariances or factors
    valid: Array
    run: Run


def halves(schedule: Schedule) -> tuple[Schedule, Any]:
    """A schedule as (arrays, rest); most have no rest, and skip the cost of splitting."""
    if all(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(schedule)):
        return schedule, None
    return eqx.partition(schedule, eqx.is_array)


def _whole(problem: Problem, rest: Any) -> Problem:
    return problem if rest is None else problem._replace(schedule=eqx.combine(problem.schedule, rest))


def explicit(
    problem: Problem,
    rest: Any,
    ts: Any,
    end: Any,
    step: Any,
    *,
    settings: Settings,
    form_name: str,
    watch: bool,
    detect_stiffness: bool,
) -> Saved:
    """Integrate in physical time up to ``end`` (None: t1); ``watch`` stops at suspicious growth of Σ."""
    problem = _whole(problem, rest)
    form = FORMS[form_name]
    t0, t1 = problem.t0, problem.t1
    if ts is None:
        assert settings.points is not None
        ts = even_times(t0, t1, settings.points)
    limit = _suspicious_size(problem) if watch else None
    run = integrate_explicit(
        form,
        settings.tableau,
        problem.schedule,
        form.pack(problem.mean, problem.factor),
        t0,
        t1 if end is None else end,
        ts,
        rtol=problem.rtol,
        atol=problem.atol,
        step=step if settings.fixed_step else None,
        max_steps=settings.max_steps,
        stop=None if limit is None else lambda y: jnp.sum(form.variances(y)) > limit,
        detect_stiffness=detect_stiffness,
        kind=settings.kind,
    )
    means, rest_saved = form.split(run.saved)
    return Saved(ts, means, rest_saved, jnp.arange(ts.shape[0]) < run.reached, run._replace(saved=None))


def _suspicious_size(problem: Problem) -> Array:
    variance = jnp.sum(problem.factor**2)
    if not isinstance(problem.schedule, Constant):
        return SUSPICIOUS_GROWTH * variance
    _, gamma = growth_scales(problem.schedule.layer, *problem.factor.shape)
    attention = gamma * jnp.abs(problem.t1 - problem.t0)
    scale = 1.0 / jnp.where(attention > 0, attention, 1.0)
    return jnp.where(attention > 0, SUSPICIOUS_GROWTH * jnp.maximum(variance, scale), jnp.inf)


def search(problem: Problem, rest: Any, *, settings: Settings) -> tuple[Search, Array]:
    """Search for a blow-up before t1, at two tolerances side by side; the second value estimates the error of t*."""
    problem = _whole(problem, rest)
    # Nearer to rounding the error estimate is noise.
    fine = jnp.maximum(1e-2 * problem.rtol, 1e-12 if problem.mean.dtype == jnp.float64 else 1e-5)

    def at(rtol):
        return search_blow_up(
            problem.schedule,
            problem.mean,
            problem.factor,
            problem.t0,
            problem.t1,
            rtol=rtol,
            tableau=settings.tableau,
            max_steps=settings.max_steps,
            kind=settings.kind,
        )

    both = jax.vmap(at)(jnp.stack([fine, 8 * fine]))
    first = jax.tree_util.tree_map(lambda x: x[0], both)
    rounding = 8 * jnp.finfo(problem.mean.dtype).eps * (jnp.abs(first.time) + jnp.abs(problem.t0))
    return first, jax.lax.stop_gradient(jnp.abs(both.time[0] - both.time[1]) + rounding)


def stiff(
    problem: Problem,
    ts: Any,
    end: Any,
    step: Any,
    *,
    rest: Any,
    settings: Settings,
    watch: bool,
) -> Saved:
    """Integrate implicitly, in the covariance form."""
    problem = _whole(problem, rest)
    if ts is None:
        assert settings.points is not None
        ts = even_times(problem.t0, problem.t1, settings.points)
    limit = _suspicious_size(problem) if watch else None
    run = integrate_stiff(
        problem.schedule,
        problem.mean,
        Gaussian(problem.mean, factor=problem.factor).covariance,
        ts,
        problem.t1 if end is None else end,
        t0=problem.t0,
        rtol=problem.rtol,
        atol=problem.atol,
        step=step if settings.fixed_step else None,
        max_steps=settings.max_steps,
        stop=None if limit is None else lambda t, covariance: jnp.trace(covariance) > limit,
        kind=settings.kind,
    )
    means, covariances = run.saved
    return Saved(ts, means, covariances, jnp.arange(ts.shape[0]) < run.reached, run._replace(saved=None, state=None))


def exact_blow_up(A: Array, v: Array, B: Array, problem: Problem, *, kind: str) -> BlowUp:
    """The blow-up time of the closed form, V = vI."""
    sign = jnp.where(problem.t1 >= problem.t0, 1.0, -1.0)
    Q = sign * v * (B + transpose(B))
    end = find_exact_blow_up(sign * A, Q, problem.factor, jnp.abs(problem.t1 - problem.t0), kind=kind)
    return BlowUp(problem.t0 + sign * end.time, end.error, end.factor, jnp.zeros_like(end.factor), end.found)


def exact(
    A: Array,
    v: Array,
    B: Array,
    problem: Problem,
    ts: Any,
    *,
    settings: Settings,
    moves: bool,
) -> tuple[Saved, BlowUp]:
    """The closed form for V = vI, as from :func:`closed_form_inputs`; without ``moves`` the mean stays zero."""
    blow_up = exact_blow_up(A, v, B, problem, kind=settings.kind)
    t0, t1 = problem.t0, problem.t1
    sign = jnp.where(t1 >= t0, 1.0, -1.0)
    if ts is None:
        assert settings.points is not None
        crowded = graded_times(t0, jax.lax.stop_gradient(blow_up.time), settings.points)
        ts = jnp.where(blow_up.found, crowded, even_times(t0, t1, settings.points))
    valid, times = times_before(blow_up, t0, sign, ts)
    elapsed = jnp.abs(times - t0)
    Q = sign * v * (B + transpose(B))
    factors = exact_factors(sign * A, Q, problem.factor, elapsed, kind=settings.kind)
    means = jnp.zeros((ts.shape[0], A.shape[0]), A.dtype)
    zero = jnp.zeros((), int)
    feasible = restarts_needed(A, elapsed[-1]) <= MOST_RESTARTS
    run = Run(None, jnp.sum(valid), t1, None, jnp.asarray(Status.REACHED_END), zero, zero, zero)
    if moves:
        layer: Any = problem.schedule.layer  # type: ignore[attr-defined]
        b = jnp.zeros_like(problem.mean) if layer.b is None else layer.b
        along = exact_means(
            sign * A,
            sign * v,
            B,
            sign * b,
            problem.mean,
            problem.factor,
            elapsed,
            rtol=jnp.asarray(problem.rtol),
            heads=layer.heads,
            kind=settings.kind,
        )
        means = along.means
        # Save times moved back from a blow-up count as reached with the last one before it.
        complete = along.reached == ts.shape[0]
        valid = valid & (jnp.arange(ts.shape[0]) < along.reached)
        status = jnp.where(complete, Status.REACHED_END, Status.STEP_TOO_SMALL)
        run = run._replace(status=status, steps=along.steps, rejected=along.rejected)
    status = jnp.where(feasible, run.status, Status.OUT_OF_STEPS)
    return Saved(ts, means, factors, valid & feasible, run._replace(saved=None, status=status)), blow_up


def times_before(blow_up: BlowUp, t0: Any, sign: Array, ts: Any) -> tuple[Array, Array]:
    """Which save times lie strictly before the blow-up, and the times with the others moved to the last of those."""
    limit = jax.lax.stop_gradient(blow_up.time) - sign * blow_up.error
    valid = ~blow_up.found | (sign * (ts - limit) < 0)
    last = t0 + sign * jnp.max(jnp.where(valid, sign * (ts - t0), 0.0))
    return valid, jnp.where(valid, ts, last)


_STATIC = ("settings",)
explicit_jit = partial(jax.jit, static_argnames=(*_STATIC, "form_name", "watch", "detect_stiffness", "rest"))(explicit)
search_jit = partial(jax.jit, static_argnames=(*_STATIC, "rest"))(search)
stiff_jit = partial(jax.jit, static_argnames=(*_STATIC, "watch", "rest"))(stiff)
exact_jit = partial(jax.jit, static_argnames=(*_STATIC, "moves"))(exact)
exact_blow_up_jit = partial(jax.jit, static_argnames=("kind",))(exact_blow_up)
