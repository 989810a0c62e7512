"""simulate(): a Gaussian through the layers of a Transformer, as far as it goes."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gaussflow.arrays import as_number, default_dtype, is_concrete
from gaussflow.errors import InvalidInput
from gaussflow.flow import kernels
from gaussflow.flow.kernels import Problem, Saved, Settings
from gaussflow.flow.run import Status
from gaussflow.flow.tableau import tableau_of
from gaussflow.flow.times import check_interval, check_memory, check_points, check_save_times, even_times, graded_times
from gaussflow.flow.trajectory import BlowUp, Outcome, Trajectory
from gaussflow.gaussian import Gaussian, assembled
from gaussflow.layers.field import MeanFieldLayer
from gaussflow.layers.parameters import Parameters
from gaussflow.layers.schedule import Constant, Schedule, as_schedule
from gaussflow.linalg import psd_sqrt

METHODS = ("auto", "covariance", "factor", "exact", "stiff")
MAX_STEPS = 16384
LONGEST_CLOSED_FORM = 1e4
"""‖A‖T up to which "auto" takes the closed form: it restarts every 2/‖A‖."""
LOCAL_SHARE = 0.02
"""Share of ``rtol`` that one step may use, so that the error at the end is about ``rtol``."""
ABSOLUTE_SHARE = 1e-6
"""Default ``atol`` over ``rtol``: directions a million times smaller than the largest are still resolved."""


def simulate(
    parameters: Any,
    gaussian: Gaussian | Any,
    *,
    t0: Any = 0.0,
    t1: Any = 5.0,
    ts: Any = None,
    points: int | Any = 200,
    dense: bool = False,
    method: str | Any = "auto",
    solver: Any = None,
    step: Any = None,
    rtol: Any = None,
    atol: Any = None,
    max_steps: int | Any = None,
    error: bool = False,
    differentiate: str | Any = "reverse",
) -> Trajectory:
    """Integrate the mean-field Transformer flow of a Gaussian (arXiv 2606.07600, Proposition 2.1).

    Parameters
    ----------
    parameters:
        :class:`Parameters` or any layer, constant in time; a schedule; or a function t ↦ layer.
    gaussian:
        the Gaussian at t0, of any rank.
    t0, t1:
        start and end; t1 < t0 integrates backward, t1 = t0 gives a one-point trajectory.
    ts:
        times to save at, sorted from t0 to t1. By default ``points`` even times, both ends included; if a blow-up is
        met, ``points`` times that crowd towards it.
    dense:
        let the trajectory be evaluated at any time, ``trajectory(t)``: it restarts from the nearest saved state, so the
        accuracy is that of the integration, not of an interpolation.
    method:
        ``"covariance"`` integrates Σ, O(d³) a step; ``"factor"`` integrates L with Σ = L Lᵀ, O(d²r), rank and
        positive semidefiniteness by construction; ``"exact"`` is the closed form for constant parameters with V = vI
        (a moving mean is integrated along it); ``"stiff"`` is an implicit L-stable method. ``"auto"`` takes the closed
        form where it applies, unless ‖A‖T is above 1e4; else the factor form if the rank is below d, if the covariance
        ends ill-conditioned, or if values are traced (under ``jit``, ``vmap``, ``grad``); else the covariance form. It
        goes over to ``"stiff"`` when explicit steps turn out to be limited by stability (not where values are traced).
    solver:
        an explicit Runge–Kutta solver of diffrax or its name ("dopri8" by default; "tsit5", "dopri5", "bosh3", "heun",
        "midpoint", "ralston").
    step:
        take fixed steps of this size instead of adaptive ones.
    rtol:
        relative accuracy aimed at for means and covariances, in units of the standard deviations of the coordinates;
        1e-8 by default (1e-5 in single precision). A blow-up time is computed with a hundredth of it.
    atol:
        accuracy below which a coordinate does not matter, relative to the largest one; 1e-6 times ``rtol`` by default.
    max_steps:
        steps after which the run counts as FAILED; 16384 by default.
    error:
        run again at half the tolerance (half the step) and report the difference as ``error_estimate``.
    differentiate:
        "reverse" for ``jax.grad`` (memory grows with the root of the number of steps), "forward" for ``jax.jacfwd``.

    Returns
    -------
    Trajectory
        up to t1, or to the last requested time strictly before a finite-time blow-up. ``outcome`` is COMPLETED,
        BLOW_UP (with ``blow_up``), or FAILED (with ``cause`` in words): running out of steps is never called a blow-up.

    Raises
    ------
    InvalidInput
        for arguments that do not fit together, each named.
    """
    schedule = as_schedule(parameters)
    check_gaussian(gaussian, schedule)
    _check_choice("method", method, METHODS)
    _check_choice("differentiate", differentiate, ("reverse", "forward"))
    t0, t1 = check_interval(t0, t1, schedule)
    concrete = is_known(schedule, t0, gaussian, t1, ts, step, rtol, atol)
    if ts is not None:
        ts = check_save_times(ts, t0, t1)
    points = check_points(points)
    check_memory(points if ts is None else ts.shape[0], gaussian)
    if concrete and ts is None and float(t0) == float(t1):
        points = 1
    rtol, atol = check_tolerances(rtol, atol)
    fixed_step = step is not None
    step = _check_step(step)
    settings = Settings(
        points=points if ts is None else None,
        tableau=tableau_of("dopri8" if solver is None else solver),
        fixed_step=fixed_step,
        max_steps=_step_limit(max_steps, step, t0, t1),
        kind="lax" if concrete or differentiate == "forward" else "checkpointed",
    )
    if not fixed_step and not any(settings.tableau.error_weights):
        raise InvalidInput(
            "solver", got=settings.tableau.name, wanted="a solver with an error estimate, or a fixed step"
        )
    problem = Problem(schedule, gaussian.mean, gaussian.factor, t0, t1, LOCAL_SHARE * rtol, atol)
    explicit_only = solver is not None or fixed_step
    form = _choose_form(method, schedule, gaussian, t0, t1, concrete, explicit_only)
    run = _run_concrete if concrete else _run_traced
    auto = method == "auto" and not explicit_only
    trajectory = run(gaussian, problem, settings, form, ts, step, auto=auto)
    if error:
        finer = problem._replace(rtol=0.5 * problem.rtol, atol=0.5 * atol)
        # The same compiled functions serve again, except where the save times came to depend on a blow-up.
        graded = ts is None and (not concrete or bool(trajectory.outcome == Outcome.BLOW_UP))
        again = settings._replace(points=None) if graded else settings
        if fixed_step:
            step, again = 0.5 * step, again._replace(max_steps=2 * settings.max_steps)
        form = trajectory.method if graded or explicit_only else form
        other = run(gaussian, finer, again, form, trajectory.ts if graded else ts, step, auto=auto and not graded)
        estimate = _difference(trajectory, other, settings.tableau.order if fixed_step else 1)
        trajectory = eqx.tree_at(lambda t: t.error_estimate, trajectory, estimate, is_leaf=lambda x: x is None)
    if dense:
        restart = Restart(schedule, rtol, atol, trajectory.method, settings.kind)
        trajectory = eqx.tree_at(lambda t: t.restart, trajectory, restart, is_leaf=lambda x: x is None)
    return trajectory


class Restart(eqx.Module):
    """How to reach a time between two saved states: integrate there from the earlier one."""

    schedule: Schedule
    rtol: Any
    atol: Any
    method: str = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def __call__(self, start: Gaussian, t0: Array, t: Array) -> Gaussian:
        problem = Problem(self.schedule, start.mean, start.factor, t0, t, LOCAL_SHARE * self.rtol, self.atol)
        settings = Settings(1, tableau_of("dopri8"), False, MAX_STEPS, self.kind)
        if self.method == "stiff":
            saved = kernels.stiff(problem, None, None, None, rest=None, settings=settings, watch=False)
            factor = psd_sqrt(saved.rest[0])
        else:
            saved = kernels.explicit(
                problem, None, None, None, None, settings=settings, form_name="factor", watch=False,
                detect_stiffness=False,
            )  # fmt: skip
            factor = saved.rest[0]
        arrived = saved.run.status == Status.REACHED_END
        return Gaussian(jnp.where(arrived, saved.means[0], jnp.nan), factor=jnp.where(arrived, factor, jnp.nan))


def _run_concrete(
    start: Gaussian, problem: Problem, settings: Settings, form: str, ts: Any, step: Any, *, auto: bool
) -> Trajectory:
    """Decide on the host, from run to run, what the next one has to be."""
    if form == "exact":
        inputs = closed_form_inputs(problem)
        result = kernels.exact_jit(*inputs, problem, ts, settings=settings, moves=_moves(problem))
        if not auto or int(np.asarray(result[0].run.status)) == Status.REACHED_END:
            return _assemble_exact(start, result, trim=True)
        form = "factor"  # the mean could not be integrated explicitly
    arrays, rest = kernels.halves(problem.schedule)
    problem = problem._replace(schedule=arrays)
    can_blow_up = may_blow_up(eqx.combine(arrays, rest) if rest is not None else arrays, problem.t0)

    def attempt(form: str, ts: Any, end: Any = None, *, watch: bool, detect: bool = False) -> Saved:
        if form == "stiff":
            return kernels.stiff_jit(problem, ts, end, step, rest=rest, settings=settings, watch=watch)
        return kernels.explicit_jit(
            problem, rest, ts, end, step, settings=settings, form_name=form, watch=watch, detect_stiffness=detect
        )

    def search() -> tuple[Any, Array]:
        return kernels.search_jit(problem, rest, settings=settings)

    def before(found: Any, error: Array, form: str) -> Trajectory:
        blow_up = BlowUp(found.time, error, found.factor, found.turning, found.found)
        t0, t1 = jnp.asarray(problem.t0), jnp.asarray(problem.t1)
        asked = graded_times(t0, found.time, settings.points or 1) if ts is None else jnp.asarray(ts)
        valid, times = kernels.times_before(blow_up, t0, jnp.where(t1 >= t0, 1.0, -1.0), asked)
        form = "factor" if form == "stiff" else form
        saved = attempt(form, times, times[-1], watch=False)
        return _assemble(
            start, saved._replace(ts=asked, valid=valid & saved.valid), form, Outcome.BLOW_UP, blow_up, trim=True
        )

    if settings.fixed_step and can_blow_up:
        # A fixed step can jump over a blow-up without noticing.
        found, error = search()
        if bool(np.asarray(found.found)):
            return before(found, error, form)
        can_blow_up = False

    # The implicit form works on Σ and drifts off a rank-deficient start where that is transversally unstable.
    may_turn_stiff = auto and start.rank == start.dim
    saved = attempt(form, ts, watch=can_blow_up, detect=may_turn_stiff)
    status = int(np.asarray(saved.run.status))
    if may_turn_stiff and status in (Status.STIFF, Status.OUT_OF_STEPS):
        implicit = attempt("stiff", ts, watch=can_blow_up) if _autonomous(arrays, rest, problem.t0) else None
        if implicit is not None and int(np.asarray(implicit.run.status)) in (Status.REACHED_END, Status.GREW):
            form, saved = "stiff", implicit
        elif status == Status.STIFF:
            saved = attempt(form, ts, watch=can_blow_up)
        status = int(np.asarray(saved.run.status))
    if (
        auto
        and form == "covariance"
        and status == Status.REACHED_END
        and not _well_conditioned(_last_covariance(saved), problem.rtol)
    ):
        # Small eigenvalues drown in the errors of the large ones; the factor form resolves them.
        form, saved = "factor", attempt("factor", ts, watch=can_blow_up)
        status = int(np.asarray(saved.run.status))
    if status == Status.REACHED_END:
        return _assemble(start, saved, form, Outcome.COMPLETED, None, trim=True)
    if not can_blow_up:
        return _assemble(start, saved, form, Outcome.FAILED, None, trim=True)

    found, error = search()
    if bool(np.asarray(found.found)):
        return before(found, error, form)
    if status == Status.GREW:
        # It grows, but not to infinity before t1: integrate again without the watch.
        saved = attempt(form, ts, watch=False, detect=may_turn_stiff)
        if may_turn_stiff and int(np.asarray(saved.run.status)) == Status.STIFF:
            implicit = attempt("stiff", ts, watch=False)
            if int(np.asarray(implicit.run.status)) == Status.REACHED_END:
                form, saved = "stiff", implicit
            else:
                saved = attempt(form, ts, watch=False)
    if int(np.asarray(saved.run.status)) == Status.REACHED_END:
        return _assemble(start, saved, form, Outcome.COMPLETED, None, trim=True)
    if int(np.asarray(found.status)) == Status.NO_BLOW_UP_DIRECTION:
        saved = saved._replace(run=saved.run._replace(status=found.status))
    return _assemble(start, saved, form, Outcome.FAILED, None, trim=True)


def _run_traced(
    start: Gaussian, problem: Problem, settings: Settings, form: str, ts: Any, step: Any, *, auto: bool
) -> Trajectory:
    """One graph for all cases: first search for a blow-up, then integrate as far as there is something to integrate."""
    t0, t1, rtol, atol = (jnp.asarray(x) for x in (problem.t0, problem.t1, problem.rtol, problem.atol))
    problem = problem._replace(t0=t0, t1=t1, rtol=rtol, atol=atol)
    if form == "exact":
        inputs = closed_form_inputs(problem)
        result = kernels.exact(*inputs, problem, ts, settings=settings, moves=_moves(problem))
        return _assemble_exact(start, result, trim=False)
    times = even_times(problem.t0, problem.t1, settings.points or 1) if ts is None else jnp.asarray(ts)
    asked, valid, end, blow_up = times, jnp.ones(times.shape, bool), problem.t1, None
    if may_blow_up(problem.schedule, problem.t0):
        found, error = kernels.search(problem, None, settings=settings)
        blow_up = BlowUp(found.time, error, found.factor, found.turning, found.found)
        if ts is None:
            crowded = graded_times(problem.t0, jax.lax.stop_gradient(found.time), settings.points or 1)
            asked = jnp.where(found.found, crowded, times)
        sign = jnp.where(problem.t1 >= problem.t0, 1.0, -1.0)
        valid, times = kernels.times_before(blow_up, problem.t0, sign, asked)
        end = jnp.where(found.found, times[-1], problem.t1)
    if form == "stiff":
        saved = kernels.stiff(problem, times, end, step, rest=None, settings=settings, watch=False)
    else:
        saved = kernels.explicit(
            problem, None, times, end, step, settings=settings, form_name=form, watch=False, detect_stiffness=False
        )
    saved = saved._replace(valid=valid & saved.valid, ts=asked)
    completed = saved.run.status == Status.REACHED_END
    outcome = Outcome.where(completed, Outcome.COMPLETED, Outcome.FAILED)
    if blow_up is not None:
        outcome = Outcome.where(blow_up.found, Outcome.BLOW_UP, outcome)
    return _assemble(start, saved, form, outcome, blow_up, trim=False)


def has_closed_form(schedule: Schedule) -> bool:
    """Whether the parameters are constant with V = vI (by shape, or by the numbers of a concrete V)."""
    if not (isinstance(schedule, Constant) and isinstance(schedule.layer, Parameters)):
        return False
    return schedule.layer.scalar_value() is not None


def closed_form_inputs(problem: Problem) -> tuple[Array, Array, Array]:
    """A, v and B (heads merged) of constant parameters with V = vI."""
    layer = problem.schedule.layer  # type: ignore[attr-defined]
    identity = jnp.eye(problem.mean.shape[0], dtype=problem.mean.dtype)
    A = layer.A * identity if layer.A.ndim == 0 else layer.A
    B = layer.B * identity if layer.B.ndim == 0 else layer.B
    # Each head adds v ΣB_h to M, also where heads share one B.
    return A, layer.scalar_value(), jnp.sum(B, axis=0) if B.ndim == 3 else layer.heads * B


def _moves(problem: Problem) -> bool:
    """Whether the mean is anything but known to stay at zero."""
    drift = (problem.mean, problem.schedule.layer.b)  # type: ignore[attr-defined]
    return not is_concrete(drift) or any(bool(np.any(np.asarray(x))) for x in drift if x is not None)


def _assemble(
    start: Gaussian, saved: Saved, form: str, outcome: Any, blow_up: BlowUp | None, *, trim: bool
) -> Trajectory:
    ts, means, rest, valid = saved.ts, saved.means, saved.rest, saved.valid
    if form == "stiff" and start.rank < start.dim and trim:
        rest, form_kept = _leading_factors(rest, start.rank), "factor"
    else:
        form_kept = form
    if trim:
        mask = np.asarray(valid)
        if not mask.all():
            count = int(mask.sum())
            ts, means, rest, valid = ts[:count], means[:count], rest[:count], valid[:count]
    run = saved.run
    stats = {
        "steps": run.steps, "rejected": run.rejected, "evaluations": run.evaluations, "status": run.status
    }  # fmt: skip
    return assembled(
        Trajectory,
        ts=ts,
        means=means,
        saved_factors=rest if form_kept in ("factor", "exact") else None,
        saved_covariances=None if form_kept in ("factor", "exact") else rest,
        valid=valid,
        outcome=outcome,
        blow_up_record=no_blow_up(start) if blow_up is None else blow_up,
        stats=stats,
        start=start,
        error_estimate=None,
        restart=None,
        method=form,
    )


def _assemble_exact(start: Gaussian, result: tuple[Saved, BlowUp], *, trim: bool) -> Trajectory:
    saved, blow_up = result
    if trim:
        ended = bool(np.asarray(saved.run.status) == Status.REACHED_END)
        outcome = Outcome.COMPLETED if ended else Outcome.FAILED
        outcome = Outcome.BLOW_UP if bool(np.asarray(blow_up.found)) else outcome
    else:
        outcome = Outcome.where(saved.run.status == Status.REACHED_END, Outcome.COMPLETED, Outcome.FAILED)
        outcome = Outcome.where(blow_up.found, Outcome.BLOW_UP, outcome)
    return _assemble(start, saved, "exact", outcome, blow_up, trim=trim)


_NO_BLOW_UP: dict[Any, BlowUp] = {}


def no_blow_up(start: Gaussian) -> BlowUp:
    """A record that says so; kept for each shape, since making four arrays costs as much as a short run."""
    key = (start.factor.shape, start.factor.dtype)
    if not is_concrete(start) or key not in _NO_BLOW_UP:
        infinity = np.asarray(np.inf, start.factor.dtype)
        zeros = np.zeros(start.factor.shape, start.factor.dtype)
        with jax.ensure_compile_time_eval():
            _NO_BLOW_UP[key] = BlowUp(*(jnp.asarray(x) for x in (infinity, infinity, zeros, zeros, np.asarray(False))))
    return _NO_BLOW_UP[key]


def _leading_factors(covariances: Array, rank: int) -> Array:
    """Factors of the known rank from covariances that carry an error outside their range."""
    values, vectors = np.linalg.eigh(np.asarray(covariances))
    leading = np.sqrt(np.maximum(values[..., -rank:], 0.0)) if rank else values[..., :0]
    return jnp.asarray(vectors[..., vectors.shape[-1] - rank :] * leading[..., None, :])


def _last_covariance(saved: Saved) -> np.ndarray:
    return np.asarray(saved.rest)[-1]


def _well_conditioned(covariance: np.ndarray, rtol: Any) -> bool:
    """Whether the smallest eigenvalue of the correlation matrix stands well above the integration error."""
    deviations = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    if not np.all(deviations > 0):
        return False
    correlation = covariance / deviations[:, None] / deviations[None, :]
    return bool(np.linalg.eigvalsh(correlation)[0] > 1e3 * float(rtol))


def _difference(one: Trajectory, other: Trajectory, order: int) -> Array:
    """Largest relative difference of the saved states, extrapolated to the error of the coarser run."""
    n = min(one.ts.shape[0], other.ts.shape[0])
    if one.saved_factors is not None and other.saved_factors is not None:
        # Frobenius distance of covariances through the factors, without a (d, d) matrix for each time.
        products = [jnp.einsum("nij,nik->njk", x, y) for x, y in _pairs(one.saved_factors[:n], other.saved_factors[:n])]
        squares = [jnp.sum(p**2, axis=(1, 2)) for p in products]
        distance = jnp.sqrt(jnp.maximum(squares[0] - 2 * squares[1] + squares[2], 0.0))
        size = jnp.sqrt(squares[0])
        # The difference of squares has lost half the digits; below that, compare the factors themselves.
        direct = jnp.sqrt(jnp.sum((one.saved_factors[:n] - other.saved_factors[:n]) ** 2, axis=(1, 2)))
        scale = jnp.sqrt(jnp.sum(one.saved_factors[:n] ** 2, axis=(1, 2)))
        relative = jnp.minimum(_ratio(distance, size) + 1e-8, _ratio(2 * direct, scale))
        deviations = scale
    else:
        first, second = one.covariances[:n], other.covariances[:n]
        relative = _ratio(
            jnp.sqrt(jnp.sum((first - second) ** 2, axis=(1, 2))), jnp.sqrt(jnp.sum(first**2, axis=(1, 2)))
        )
        deviations = jnp.sqrt(jnp.trace(first, axis1=1, axis2=2))
    mean = _ratio(
        jnp.sqrt(jnp.sum((one.means[:n] - other.means[:n]) ** 2, axis=1)),
        jnp.sqrt(jnp.sum(one.means[:n] ** 2, axis=1)) + deviations,
    )
    worst = jnp.max(jnp.where(one.valid[:n], jnp.maximum(relative, mean), 0.0), initial=0.0)
    return worst / (1 - 0.5**order) + jnp.finfo(one.means.dtype).eps


def _pairs(x: Array, y: Array):
    return ((x, x), (x, y), (y, y))


def _ratio(numerator: Array, denominator: Array) -> Array:
    return numerator / jnp.where(denominator > 0, denominator, 1.0)


def may_blow_up(schedule: Schedule, t0: Any) -> bool:
    return _layer_shape(schedule, t0).growth == "linear"


def _autonomous(arrays: Schedule, rest: Any, t0: Any) -> bool:
    schedule = arrays if rest is None else eqx.combine(arrays, rest)
    return _layer_shape(schedule, t0).autonomous


def is_known(schedule: Schedule, t0: Any, *values: Any) -> bool:
    """Whether all numbers of a problem are at hand, so that the host may decide by them."""
    # A function of time may hold traced values in its closure: what it returns shows them.
    shown = schedule if isinstance(schedule, Constant) else (schedule, _layer_shape(schedule, t0))
    return is_concrete(shown, t0, *values)


def _layer_shape(schedule: Schedule, t0: Any) -> MeanFieldLayer:
    """A layer of the schedule, for what it declares about itself."""
    return schedule.layer if isinstance(schedule, Constant) else schedule.layer_in_piece(0, t0)


def _choose_form(
    method: str, schedule: Schedule, gaussian: Gaussian, t0: Any, t1: Any, concrete: bool, explicit_only: bool
) -> str:
    if method == "exact" or (method == "auto" and not explicit_only):
        if has_closed_form(schedule) and (method == "exact" or not concrete or _short(schedule, t0, t1)):
            return "exact"
        if method == "exact":
            closed = isinstance(schedule, Constant) and isinstance(schedule.layer, Parameters)
            got = "V that is no multiple of the identity" if closed else "a layer that is not constant Parameters"
            fix = "pass V as a scalar if it is traced" if closed and not concrete else "leave method at 'auto'"
            raise InvalidInput("method", got=f"'exact' with {got}", wanted="constant parameters with V = vI", fix=fix)
    if method != "auto":
        return method
    return "covariance" if concrete and gaussian.rank == gaussian.dim else "factor"


def check_gaussian(gaussian: Any, schedule: Schedule) -> None:
    """That there is one Gaussian, of the dimension of the layers."""
    if not isinstance(gaussian, Gaussian):
        raise InvalidInput("gaussian", got=type(gaussian).__name__, wanted="a gaussflow.Gaussian")
    if gaussian.mean.ndim != 1:
        raise InvalidInput(
            "gaussian", got=f"a batch of shape {gaussian.mean.shape[:-1]}", wanted="one Gaussian", fix="use jax.vmap"
        )
    dim = schedule.dim
    if dim is not None and dim != gaussian.dim:
        raise InvalidInput(
            "parameters",
            got=f"a layer of dimension {dim} beside a Gaussian of dimension {gaussian.dim}",
            wanted="the same dimension",
        )


def _short(schedule: Schedule, t0: Any, t1: Any) -> bool:
    """Whether the closed form takes a reasonable number of restarts; an implicit method is for what is longer."""
    A = np.abs(np.asarray(schedule.layer.A))  # type: ignore[attr-defined]
    rate = A if A.ndim == 0 else np.sqrt(A.sum(axis=0).max(initial=0.0) * A.sum(axis=1).max(initial=0.0))
    return bool(rate * abs(float(t1) - float(t0)) <= LONGEST_CLOSED_FORM)


def _check_choice(argument: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidInput(argument, got=repr(value), wanted=f"one of {', '.join(choices)}")


def check_tolerances(rtol: Any, atol: Any) -> tuple[Any, Any]:
    single = default_dtype() == jnp.float32
    if rtol is None:
        rtol = 1e-5 if single else 1e-8
    elif is_concrete(rtol):
        _check_tolerance(as_number(rtol, "rtol"), 1e-5 if single else 1e-13, single)
    if atol is None:
        return as_number(rtol, "rtol"), as_number(ABSOLUTE_SHARE * rtol, "atol")
    if is_concrete(atol) and not np.all(np.asarray(atol) >= 0):
        raise InvalidInput("atol", got=str(atol), wanted="zero or a positive tolerance")
    return as_number(rtol, "rtol"), as_number(atol, "atol")


def _check_tolerance(rtol: Any, least: float, single: bool) -> None:
    value = float(np.asarray(rtol)) if is_concrete(rtol) else least
    if not value > 0:
        raise InvalidInput("rtol", got=f"{value:g}", wanted="a positive tolerance")
    if value < least * (1 - 1e-6):
        raise InvalidInput(
            "rtol",
            got=f"{value:g}",
            wanted=f"at least {least:g}, what {'single' if single else 'double'} precision reaches",
            fix='add jax.config.update("jax_enable_x64", True) at the start of the program' if single else "",
        )
    if value > 0.1:
        raise InvalidInput("rtol", got=f"{value:g}", wanted="at most 0.1")


def _check_step(step: Any) -> Any:
    if step is None:
        return None
    step = as_number(step, "step")
    if is_concrete(step) and not float(step) > 0:
        raise InvalidInput("step", got=f"{float(step):g}", wanted="a positive step size")
    return step


def _step_limit(max_steps: Any, step: Any, t0: Any, t1: Any) -> int:
    if max_steps is None:
        if step is not None and is_concrete(step, t0, t1):
            needed = math.ceil(abs(float(t1) - float(t0)) / float(step)) + 64
            return 1 << max(needed - 1, 1).bit_length()  # few different values, few compilations
        return MAX_STEPS
    if isinstance(max_steps, bool) or not isinstance(max_steps, int | np.integer) or max_steps < 1:
        raise InvalidInput("max_steps", got=repr(max_steps), wanted="a positive integer")
    return int(max_steps)
