"""The explicit adaptive integrator in physical time, piece by piece through a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array

from gaussflow.flow.forms import Form
from gaussflow.flow.run import Run, Status
from gaussflow.flow.runge_kutta import first_step_size, scaled_error, step_factor, trial_step
from gaussflow.flow.tableau import Tableau
from gaussflow.layers.schedule import Schedule

RUNNING = -1
MOST_REJECTIONS = 60  # in a row; with a factor of 5 each the step is then far below rounding
STIFF_STEPS = 15  # in a row at the stability limit before the problem counts as stiff
STABILITY_LIMIT = 3.0  # h‖J‖ beyond which an explicit pair of this kind is limited by stability
WORTH_SWITCHING = 400  # explicit steps still to go, below which an implicit method does not pay


class _State(NamedTuple):
    t: Array
    h: Array  # size of the next trial step, positive
    y: Array
    slope: Array
    piece: Array
    next_save: Array
    saved: Array
    steps: Array
    rejected: Array
    rejected_in_a_row: Array
    stiff_in_a_row: Array
    status: Array


def integrate_explicit(
    form: Form,
    tableau: Tableau,
    schedule: Schedule,
    y0: Array,
    t0: Array,
    t1: Array,
    ts: Array,
    *,
    rtol: Array,
    atol: Array,
    step: Array | None = None,
    max_steps: int,
    stop: Callable[[Array], Array] | None = None,
    detect_stiffness: bool = False,
    kind: str = "lax",
) -> Run:
    """Integrate the packed state y0 from t0 to t1, saving at ``ts`` (sorted in the direction of integration).

    No step crosses an edge of the schedule. ``stop(y)`` ends the run with :attr:`Status.GREW` after the step that made
    it true. ``step`` switches to fixed steps (the last one before an edge or the end is cut to land on it). Save times
    are filled by the pair's own interpolant. ``kind`` is "lax" (fastest; forward-mode derivatives) or "checkpointed"
    (reverse mode).
    """
    edges = schedule.edges
    pieces = edges.shape[0] - 1
    sign = jnp.where(t1 >= t0, 1.0, -1.0).astype(t0.dtype)
    rounding = 4 * jnp.finfo(t0.dtype).eps
    reuse_slope = tableau.first_same_as_last and pieces == 1
    order = tableau.order

    def rate_in(piece):
        return lambda t, y: form.rate(schedule.layer_in_piece(piece, t), y)

    inner = edges[1:-1]
    forward_piece = jnp.searchsorted(inner, t0, side="right")
    backward_piece = jnp.searchsorted(inner, t0, side="left")
    piece0 = jnp.where(sign > 0, forward_piece, backward_piece).astype(int) if pieces > 1 else jnp.zeros((), int)

    at_start = jnp.sum(sign * (ts - t0) <= 0)
    # A buffer that is written once an entry: its first values must carry no derivative.
    saved0 = jnp.zeros((ts.shape[0], *y0.shape), y0.dtype)
    rolled = kind == "checkpointed"
    slope0 = rate_in(piece0)(t0, y0)
    if step is None:
        weights = form.weights(y0, y0, rtol, atol) / rtol
        sizes = [scaled_error(x, jnp.where(weights > 0, weights, 1.0)) for x in (y0, slope0)]
        h0 = first_step_size(sizes[0], sizes[1], rtol, order, jnp.abs(t1 - t0))
    else:
        h0 = jnp.abs(step)

    def body(s: _State) -> _State:
        if pieces > 1:
            edge = jnp.where(sign > 0, edges[s.piece + 1], edges[s.piece])
            target = sign * jnp.minimum(sign * t1, sign * edge)
        else:
            target = t1
        remaining = jnp.abs(target - s.t)
        # A step that would leave less than rounding behind lands on the target instead.
        lands = s.h * (1 + 1e-10) >= remaining
        h = sign * jnp.where(lands, remaining, s.h)
        t_new = jnp.where(lands, target, s.t + h)

        rate = rate_in(s.piece)
        first = s.slope if reuse_slope else rate(s.t, s.y)
        trial = trial_step(rate, tableau, s.t, h, s.y, first, rolled=rolled)

        if step is None:
            error = scaled_error(trial.error, form.weights(s.y, trial.state, rtol, atol))
            accept = error <= 1.0
            factor = step_factor(error, order, coarse=kind == "checkpointed")
            factor = jnp.where(s.rejected_in_a_row > 0, jnp.minimum(factor, 1.0), factor)
            h_next = jax.lax.stop_gradient(jnp.abs(h)) * factor
            # A step cut short to land says nothing about the size of the next one.
            h_next = jnp.where(lands & accept, jnp.maximum(h_next, s.h), h_next)
        else:
            accept = jnp.all(jnp.isfinite(trial.state))
            h_next = s.h

        keep = lambda new, old: jnp.where(accept, new, old)
        y, t = keep(trial.state, s.y), keep(t_new, s.t)
        slope = keep(trial.slopes[-1], s.slope) if reuse_slope else s.slope
        piece = s.piece
        if pieces > 1:
            moves = accept & lands & (sign * t < sign * t1)
            piece = jnp.clip(piece + jnp.where(moves, sign.astype(int), 0), 0, pieces - 1)

        due = jnp.where(accept, jnp.sum(sign * (ts - t) <= 0), s.next_save)
        saved, next_save = _save(tableau, s, trial, h, ts, due, kind)

        rejected_in_a_row = jnp.where(accept, 0, s.rejected_in_a_row + 1)
        status = jnp.where(accept & (sign * t >= sign * t1), Status.REACHED_END, RUNNING)
        stiff_in_a_row = s.stiff_in_a_row
        if detect_stiffness and tableau.sees_stiffness and step is None:
            moved = jnp.sqrt(jnp.sum((trial.state - trial.penultimate) ** 2))
            turned = jnp.sqrt(jnp.sum((trial.slopes[-1] - trial.slopes[-2]) ** 2))
            limited = jnp.abs(h) * turned > STABILITY_LIMIT * moved
            stiff_in_a_row = jnp.where(accept, jnp.where(limited & (moved > 0), stiff_in_a_row + 1, 0), stiff_in_a_row)
            many_left = jnp.abs(t1 - t) > WORTH_SWITCHING * h_next
            status = jnp.where((status == RUNNING) & (stiff_in_a_row >= STIFF_STEPS) & many_left, Status.STIFF, status)
        if stop is not None:
            status = jnp.where((status == RUNNING) & accept & stop(y), Status.GREW, status)
        too_small = (rejected_in_a_row > MOST_REJECTIONS) | (h_next <= rounding * jnp.abs(t)) & (remaining > h_next)
        if step is not None:
            too_small = ~accept
        status = jnp.where((status == RUNNING) & too_small, Status.STEP_TOO_SMALL, status)
        steps = s.steps + 1
        status = jnp.where((status == RUNNING) & (steps >= max_steps), Status.OUT_OF_STEPS, status)
        return _State(
            t, h_next, y, slope, piece, next_save, saved, steps, s.rejected + jnp.where(accept, 0, 1),
            rejected_in_a_row, stiff_in_a_row, status,
        )  # fmt: skip

    zero = jnp.zeros((), int)
    status0 = jnp.where(t0 == t1, Status.REACHED_END, RUNNING)
    start = _State(t0, h0, y0, slope0, piece0, at_start, saved0, zero, zero, zero, zero, status0)
    buffers = (lambda s: s.saved) if ts.shape[0] > 1 else None
    end = bounded_loop(lambda s: s.status == RUNNING, body, start, max_steps, kind, buffers=buffers)
    # Entries at the start are the start; those that were not reached repeat the last valid state.
    index = jnp.arange(ts.shape[0])[:, None, None]
    last = jnp.where(end.next_save > at_start, end.saved[jnp.maximum(end.next_save - 1, 0)], y0)
    saved = jnp.where(index < at_start, y0, jnp.where(index < end.next_save, end.saved, last))
    evaluations = 1 + end.steps * (tableau.stages - 1 if reuse_slope else tableau.stages)
    return Run(saved, end.next_save, end.t, end.y, end.status, end.steps, end.rejected, evaluations)


def _save(tableau: Tableau, s: _State, trial: Any, h: Array, ts: Array, due: Array, kind: str):
    """Fill the save times that the accepted step has passed, from the pair's interpolant on that step."""

    def fill(saved):
        slopes = h * jnp.stack(trial.slopes)
        local = tableau.interpolant(t0=s.t, t1=s.t + h, y0=s.y, y1=trial.state, k=slopes)

        def one(carry):
            i, buffer = carry
            return i + 1, buffer.at[i].set(local.evaluate(ts[jnp.minimum(i, ts.shape[0] - 1)]))

        return bounded_loop(lambda c: c[0] < due, one, (s.next_save, saved), ts.shape[0], kind, buffers=lambda c: c[1])[
            1
        ]

    if ts.shape[0] == 0:
        return s.saved, s.next_save
    if ts.shape[0] == 1:
        # The usual single save time is the end of the run, where the state itself is at hand.
        now = due > s.next_save
        at_end = ts[0] == s.t + h

        def evaluate(_):
            local = tableau.interpolant(t0=s.t, t1=s.t + h, y0=s.y, y1=trial.state, k=h * jnp.stack(trial.slopes))
            return local.evaluate(ts[0])

        value = jax.lax.cond(now & ~at_end, evaluate, lambda _: trial.state, None)
        return jnp.where(now, value[None], s.saved), due
    saved = jax.lax.cond(due > s.next_save, fill, lambda saved: saved, s.saved)
    return saved, due


def bounded_loop(condition, body, start, max_steps: int, kind: str, buffers=None):
    """A while loop: plain (forward mode, fastest) or checkpointed (reverse mode)."""
    if kind == "lax":
        return jax.lax.while_loop(condition, body, start)
    return eqxi.while_loop(condition, body, start, max_steps=max_steps, kind="checkpointed", buffers=buffers)
