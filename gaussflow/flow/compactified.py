"""The factor flow on the compactified cone: where finite-time blow-up becomes a long time.

Write Σ = ρ l lᵀ with ‖l‖_F = 1 and u = ln ρ. With M = M₀ + ρ M₁ (M₁ the part that grows with Σ, taken at l lᵀ) and a
new time s, ds = (α + γρ) dt, all of l, u and t have bounded speed:

    l' = G − m l + ½ (1 − ‖l‖²) l,   u' = 2 m,   t' = 1 / (α + γρ),   G = (M₀ + ρ M₁) l / (α + γρ),   m = ⟨l, G⟩.

Blow-up at t* means u → ∞ as s → ∞ with t → t*. The flow is stopped once Σ is e⁴⁰ times larger than every scale of the
problem and still grows like ρ' = 2ρ(a + cρ) with c = ⟨l, M₁l⟩ > 0; what is missing to t* is then the elementary
integral ln(1 + a/(cρ)) / (2a). Unlike a threshold on ‖Σ‖ this is free of scales: an equilibrium at 1e20 is no blow-up.

Layers whose M depends on the mean (linear attention) are compactified with the mean as one more column of the factor.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from gaussflow.flow.explicit import MOST_REJECTIONS, RUNNING, bounded_loop
from gaussflow.flow.run import Status
from gaussflow.flow.runge_kutta import step_factor, trial_step
from gaussflow.flow.tableau import Tableau
from gaussflow.gaussian import Gaussian
from gaussflow.layers.field import AffineField, MeanFieldLayer
from gaussflow.layers.schedule import Schedule
from gaussflow.linalg import frobenius_norm

BLOW_UP = 100
"""Status of a search that ended at a blow-up (beside those of :class:`Status`)."""

DECADES = 40.0  # natural logarithm of the factor by which Σ must exceed every scale of the problem
LEAST_GROWTH = 1e-8  # c/γ below which growth has no blow-up direction yet
PATIENCE = 400.0  # how far u may rise in search of one


class Search(NamedTuple):
    """Outcome of a search for blow-up; ``time`` is t* if ``found``, else the time that was reached."""

    found: Array
    time: Array
    factor: Array
    turning: Array
    status: Array
    steps: Array


class _State(NamedTuple):
    h: Array
    y: Array  # l, flattened, then u and t - t0
    piece: Array
    steps: Array
    rejected_in_a_row: Array
    status: Array


def search_blow_up(
    schedule: Schedule,
    mean: Array,
    factor: Array,
    t0: Array,
    t1: Array,
    *,
    rtol: Array,
    tableau: Tableau,
    max_steps: int,
    kind: str = "lax",
) -> Search:
    """Follow the compactified flow from t0 until t1 or a blow-up before it (t1 < t0: backward in time).

    ``rtol`` controls the local error of the shape l and of u = ln tr Σ (absolutely), hence of t* (relatively).
    """
    d, r = factor.shape
    edges = schedule.edges
    pieces = edges.shape[0] - 1
    sign = jnp.where(t1 >= t0, 1.0, -1.0).astype(t0.dtype)
    inner = edges[1:-1]
    forward, backward = (jnp.searchsorted(inner, t0, side=side) for side in ("right", "left"))
    piece0 = jnp.where(sign > 0, forward, backward).astype(int) if pieces > 1 else jnp.zeros((), int)
    layer0 = schedule.layer_in_piece(piece0, t0)
    augmented = not layer0.autonomous
    columns = jnp.concatenate([factor, mean[:, None]], axis=1) if augmented else factor
    k = columns.shape[1]
    size = frobenius_norm(columns)
    point = size == 0  # nothing that could blow up
    l0 = columns / jnp.where(point, 1.0, size)
    u0 = 2 * jnp.log(jnp.where(point, 1.0, size))
    horizon = jnp.abs(t1 - t0)
    slowest = jnp.maximum(1e-3 / jnp.where(horizon > 0, horizon, 1.0), jnp.finfo(t0.dtype).tiny)

    def scales(layer: MeanFieldLayer) -> tuple[Array, Array]:
        alpha, gamma = growth_scales(layer, d, r)
        return jnp.maximum(alpha, slowest), gamma

    def speeds(layer: MeanFieldLayer, l: Array, u: Array) -> tuple[Array, Array]:
        """M₀ l and M₁ l."""
        unit = Gaussian(l[:, -1] if augmented else jnp.zeros_like(mean), factor=l[:, :r])
        root = jnp.exp(0.5 * jnp.minimum(u, 600.0))
        actual = Gaussian(root * unit.mean, factor=root * unit.factor)
        bounded = linear = jnp.zeros_like(l)
        for part in layer.parts:
            if part.growth == "linear":
                linear = linear + part.affine_field(unit).apply(l)
            else:
                bounded = bounded + part.affine_field(actual).apply(l)
            if augmented:
                bounded = bounded.at[:, -1].add(part.affine_field(actual).offset / root)
        return bounded, linear

    def rates(layer: MeanFieldLayer, y: Array, alpha: Array, gamma: Array, physical: Array | bool) -> Array:
        l, u = y[:-2].reshape(d, k), y[-2]
        bounded, linear = speeds(layer, l, u)
        # w₁ = α/(α + γρ) and w₂ = γρ/(α + γρ) without ever forming ρ.
        some = gamma > 0
        log_ratio = u + jnp.log(jnp.where(some, gamma, 1.0)) - jnp.log(alpha)
        w1 = jnp.where(some, jax.nn.sigmoid(-log_ratio), 1.0)
        w2 = jnp.where(some, jax.nn.sigmoid(log_ratio), 0.0)
        field = sign * (w1 * (bounded / alpha) + w2 * (linear / jnp.where(some, gamma, 1.0)))
        m = jnp.sum(l * field)
        shape = field - m * l + 0.5 * (1 - jnp.sum(l * l)) * l
        clock = w1 / alpha
        speed = jnp.concatenate([shape.reshape(-1), jnp.stack([2 * m, clock])])
        # The step that lands on a given time runs in physical time.
        return jnp.where(physical, speed / jnp.where(clock > 0, clock, 1.0), speed)

    def weights(before: Array, after: Array) -> Array:
        rows = [jnp.sqrt(jnp.sum(y[:-2].reshape(d, k) ** 2, axis=1)) for y in (before, after)]
        row = jnp.maximum(rows[0], rows[1])
        shape = jnp.broadcast_to((row + 1e-30)[:, None], (d, k)).reshape(-1)
        return rtol * jnp.concatenate([shape, jnp.stack([jnp.ones((), rtol.dtype), jnp.abs(after[-1]) + 1e-300])])

    def body(s: _State) -> _State:
        if pieces > 1:
            edge = jnp.where(sign > 0, edges[s.piece + 1], edges[s.piece])
            target = jnp.minimum(horizon, sign * (edge - t0))
        else:
            target = horizon
        elapsed = s.y[-1]
        remaining = target - elapsed

        # The scales are held during a step: they only set the clock, and a kink in them would cost accuracy.
        layer = schedule.layer_in_piece(s.piece, t0 + sign * elapsed)
        alpha, gamma = scales(layer)
        clock = jax.lax.stop_gradient(rates(layer, s.y, alpha, gamma, False)[-1])
        lands = remaining <= s.h * clock
        h = jnp.where(lands, remaining, s.h)

        def rate(_, y):
            return rates(schedule.layer_in_piece(s.piece, t0 + sign * y[-1]), y, alpha, gamma, lands)

        trial = trial_step(rate, tableau, jnp.zeros(()), h, s.y, rate(None, s.y), rolled=True)
        new = trial.state.at[-1].set(jnp.where(lands, target, trial.state[-1]))
        ratio = jax.lax.stop_gradient(trial.error / weights(s.y, new))
        # Largest and not mean error: each entry of l, u and t counts in any dimension.
        error = jnp.max(jnp.abs(ratio))
        overshoots = ~lands & (new[-1] > target)
        accept = (error <= 1.0) & ~overshoots
        factor = step_factor(error, tableau.order, coarse=kind == "checkpointed")
        factor = jnp.where(s.rejected_in_a_row > 0, jnp.minimum(factor, 1.0), factor)
        factor = jnp.where(overshoots, jnp.minimum(factor, 0.5), factor)
        used = jax.lax.stop_gradient(jnp.where(lands, h / jnp.where(clock > 0, clock, 1.0), h))
        h_next = jnp.where(lands & accept, jnp.maximum(s.h, used * factor), used * factor)
        y = jnp.where(accept, new, s.y)

        ends = accept & lands
        piece = s.piece
        if pieces > 1:
            moves = ends & (target < horizon)
            piece = jnp.clip(piece + jnp.where(moves, sign.astype(int), 0), 0, pieces - 1)
            ends = ends & ~moves
        status = jnp.where(ends, Status.REACHED_END, RUNNING)
        high, growth = blow_up_state(schedule.layer_in_piece(piece, t0 + sign * y[-1]), y)
        status = jnp.where((status == RUNNING) & accept & high & (growth > LEAST_GROWTH), BLOW_UP, status)
        status = jnp.where((status == RUNNING) & (y[-2] > u0 + PATIENCE), Status.NO_BLOW_UP_DIRECTION, status)
        rejected_in_a_row = jnp.where(accept, 0, s.rejected_in_a_row + 1)
        status = jnp.where((status == RUNNING) & (rejected_in_a_row > MOST_REJECTIONS), Status.STEP_TOO_SMALL, status)
        steps = s.steps + 1
        status = jnp.where((status == RUNNING) & (steps >= max_steps), Status.OUT_OF_STEPS, status)
        return _State(h_next, y, piece, steps, rejected_in_a_row, status)

    def blow_up_state(layer: MeanFieldLayer, y: Array) -> tuple[Array, Array]:
        """Whether Σ is larger than every scale, and c/γ, the growth it has by itself."""
        l, u = y[:-2].reshape(d, k), y[-2]
        _, linear = speeds(layer, l, u)
        alpha, gamma = scales(layer)
        safe = jnp.where(gamma > 0, gamma, 1.0)
        high = u >= DECADES + jnp.maximum(jnp.log(alpha) - jnp.log(safe), u0)
        return high & (gamma > 0), sign * jnp.sum(l * linear) / safe

    y0 = jnp.concatenate([l0.reshape(-1), jnp.stack([u0, jnp.zeros_like(u0)])])
    zero = jnp.zeros((), int)
    done = jnp.where(point | (horizon == 0), Status.REACHED_END, RUNNING)
    h0 = jax.lax.stop_gradient(0.5 * rtol ** (1.0 / tableau.order))
    start = _State(h0, y0, piece0, zero, zero, done)
    end = bounded_loop(lambda s: s.status == RUNNING, body, start, max_steps, kind)

    found = end.status == BLOW_UP
    l, u = end.y[:-2].reshape(d, k), end.y[-2]
    layer = schedule.layer_in_piece(end.piece, t0 + sign * end.y[-1])
    bounded, linear = speeds(layer, l, u)
    tail = _remaining_time(sign * jnp.sum(l * bounded), sign * jnp.sum(l * linear), u, found)
    elapsed = jnp.where(found, end.y[-1] + tail, end.y[-1])
    shape = l[:, :r] / jnp.where(point, 1.0, frobenius_norm(l[:, :r]))
    # Where V and B turn the shape for ever (a spiral), its speed shows the directions it is about to visit.
    alpha, gamma = scales(layer)
    speed = rates(layer, end.y, alpha, gamma, False)
    turning = speed[:-2].reshape(d, k)[:, :r] / jnp.where(found & (speed[-2] > 0), speed[-2], 1.0)
    turning = jax.lax.stop_gradient(jnp.where(found, turning, 0.0))
    return Search(found, t0 + sign * elapsed, shape, turning, end.status, end.steps)


def _remaining_time(a: Array, c: Array, u: Array, found: Array) -> Array:
    """∫ dρ / (2ρ(a + cρ)) from ρ = eᵘ to infinity, (e⁻ᵘ/2c) ln(1 + x)/x with x = a e⁻ᵘ/c."""
    c = jnp.where(found, c, 1.0)
    u = jnp.where(found, u, DECADES)
    x = a * jnp.exp(-u) / c
    small = jnp.abs(x) < 1e-4
    safe = jnp.where(small, 1.0, x)
    ratio = jnp.where(small, 1 - x / 2 + x * x / 3, jnp.log1p(safe) / safe)
    return jnp.exp(-u) / (2 * c) * ratio


def growth_scales(layer: MeanFieldLayer, d: int, r: int) -> tuple[Array, Array]:
    """α ≥ ‖M₀‖ and γ ≥ ‖M₁‖ at a unit shape; any positive numbers would do, these balance the clock.

    1/α is the time scale of the feed-forward, and 1/(γT) the size of Σ at which attention matters within a time T.
    """
    reference = Gaussian(jnp.zeros(d), factor=jnp.eye(d, r))
    alpha = gamma = jnp.zeros(())
    for part in layer.parts:
        bound = _norm_bound(part.affine_field(reference))
        alpha, gamma = (alpha, gamma + bound) if part.growth == "linear" else (alpha + bound, gamma)
    return alpha, gamma


def _norm_bound(field: AffineField) -> Array:
    """A bound on ‖M‖ from the chains of its factors."""
    total = jnp.zeros((), field.offset.dtype)
    for chain in field.chains:
        bound = jnp.ones((), field.offset.dtype)
        for matrix in chain:
            bound = bound * _matrix_bound(matrix)
        total = total + jnp.sum(bound)
    return jax.lax.stop_gradient(total)


def _matrix_bound(matrix: Array) -> Array:
    """√(‖X‖₁‖X‖_∞) ≥ ‖X‖₂ of each matrix of a stack: no squares, so 1e-300 does not underflow."""
    if matrix.ndim == 0:
        return jnp.abs(matrix)
    sums = jnp.abs(matrix)
    one = jnp.max(jnp.sum(sums, axis=-2), axis=-1, initial=0.0)
    infinity = jnp.max(jnp.sum(sums, axis=-1), axis=-1, initial=0.0)
    return jnp.sqrt(one) * jnp.sqrt(infinity)
