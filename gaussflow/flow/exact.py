"""The closed form for V = vI and constant parameters, for any rank (a gaussflow derivation; the Riccati case).

With Q = v(B + Bᵀ) the covariance obeys Σ' = AΣ + ΣAᵀ + ΣQΣ, and from Σ₀ = L₀L₀ᵀ

    L(t) = E L₀ R⁻ᵀ,   R Rᵀ = I − L₀ᵀ W L₀,   E = exp(At),   W(t) = ∫₀ᵗ exp(Aᵀs) Q exp(As) ds,

until the first t with λmax(L₀ᵀ W(t) L₀) = 1, the blow-up time. One formula for the whole interval would overflow or
cancel for long t, so the flow is restarted (it is a semigroup) after steps with ‖A‖δ ≤ 2: the cost grows with ‖A‖T.

The mean obeys μ' = (A + vI + vΣB)μ + b, which has no closed form in general: even for symmetric B its transition matrix
is a square root of (I − L₀ᵀ W L₀)⁻¹ along a path of matrices that do not commute. It is a linear equation along a known
Σ(t), so it is solved by collocation at Gauss nodes with Σ exact at every node.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gaussflow.linalg import frobenius_norm, symmetric_part, transpose

LONGEST_STEP = 2.0
"""‖A‖δ of one restart: E then costs at most e⁴ in conditioning."""
MOST_RESTARTS = 1 << 17
"""Restarts in all; ‖A‖T may be twice this. Longer horizons are for an implicit method."""
MOST_MARCHING_STEPS = 1 << 17
MOST_MEAN_STEPS = 1 << 17
CHECKPOINTS = 32  # of a reverse-mode loop: memory for 32 states, and each step computed about four times
TERMS = 24  # of the Taylor series at ‖A‖h ≤ 1: those of W fall like 2ᵏ/(k + 1)!
LOW_RANK = 8  # d/r from which no (d, d) exponential is formed, if d is
LARGE = 64  # at least this
REPEATED = 1e-8  # eigenvalues this close to the largest blow up together


class ExactBlowUp(NamedTuple):
    """First blow-up time in (0, horizon], its error estimate, the limit of L / ‖L‖, and whether there is one."""

    time: Float[Array, ""]
    error: Float[Array, ""]
    factor: Float[Array, "d r"]
    found: Bool[Array, ""]


class ExactMeans(NamedTuple):
    """Means at the save times, how many of those were reached (later ones repeat the last), and the steps it took."""

    means: Float[Array, "n d"]
    reached: Int[Array, ""]
    steps: Int[Array, ""]
    rejected: Int[Array, ""]


# ---------------------------------------------------------------------------------------------------------- factors


def exact_factors(
    A: Float[Array, "d d"], Q: Float[Array, "d d"], factor: Float[Array, "d r"], times: Float[Array, " n"],
    *, kind: str = "lax",
) -> Float[Array, "n d r"]:  # fmt: skip
    """L at each of the increasing ``times`` >= 0, all before the blow-up, from L at time 0.

    Full rank: E and W of a step come from Taylor coefficients computed once, and evenly spaced times (up to rounding)
    share them. Low rank in a large space: no (d, d) matrix is formed. ``kind`` is "lax" (forward mode, fastest) or
    "checkpointed" (reverse mode).
    """
    d, r = factor.shape
    if r == 0 or times.shape[0] == 0:
        return jnp.zeros((times.shape[0], d, r), factor.dtype)
    if d >= LARGE and LOW_RANK * r <= d:
        return _factors_by_thin_series(A, Q, factor, times, kind)
    return _factors_by_propagators(A, Q, factor, times, kind)


def restarts_needed(A: Float[Array, "d d"], length: Float[Array, ""]) -> Float[Array, ""]:
    """How many restarts a run of this length takes."""
    return norm_bound(A) * length / LONGEST_STEP


def advance(L: Float[Array, "d r"], E: Float[Array, "d d"], W: Float[Array, "d d"]) -> Float[Array, "d r"]:
    """L after one step with propagator E and Gramian W: E L R⁻ᵀ, R Rᵀ = I − Lᵀ W L."""
    return E @ _over_root(L, transpose(L) @ (W @ L))


def _over_root(L: Array, gramian: Array) -> Array:
    """L R⁻ᵀ with R Rᵀ = I − gramian."""
    R = jnp.linalg.cholesky(jnp.eye(L.shape[-1], dtype=L.dtype) - gramian)
    return jax.lax.linalg.triangular_solve(R, L, left_side=False, lower=True, transpose_a=True)


class _Interval(NamedTuple):
    """Where the walk over save intervals stands: ``restart`` of the interval that ends at save time ``interval``."""

    interval: Array
    restart: Array
    L: Array
    length: Array  # for which E and W are
    E: Array
    W: Array
    saved: Array


def _factors_by_propagators(A: Array, Q: Array, factor: Array, times: Array, kind: str) -> Array:
    n = times.shape[0]
    starts = jnp.concatenate([jnp.zeros((1,), times.dtype), times[:-1]])
    lengths = times - starts
    fixed_lengths = jax.lax.stop_gradient(lengths)
    norm = norm_bound(A)
    counts = jnp.clip(jnp.ceil(norm * fixed_lengths / LONGEST_STEP), 1, MOST_RESTARTS).astype(int)
    same = 4 * jnp.finfo(times.dtype).eps * jax.lax.stop_gradient(times[-1])
    series = propagator_series(A, Q, norm)

    def body(s: _Interval) -> _Interval:
        step = lengths[s.interval] / counts[s.interval]
        new = (s.restart == 0) & (jnp.abs(fixed_lengths[s.interval] - s.length) > same)
        E, W = jax.lax.cond(new, lambda: local_flow(series, jax.lax.stop_gradient(step)), lambda: (s.E, s.W))
        # Intervals that share E and W have each their own derivative in the time.
        L = _with_derivative_in_step(advance(s.L, E, W), A, Q, step)
        last = s.restart + 1 == counts[s.interval]
        # Unfinished intervals write to a row of their own that nobody reads.
        saved = s.saved.at[jnp.where(last, s.interval, n)].set(L)
        length = jnp.where(new, fixed_lengths[s.interval], s.length)
        return _Interval(s.interval + last, jnp.where(last, 0, s.restart + 1), L, length, E, W, saved)

    zero = jnp.zeros((), int)
    E0, W0 = jnp.eye(A.shape[0], dtype=A.dtype), jnp.zeros_like(Q)
    saved0 = jnp.zeros((n + 1, *factor.shape), factor.dtype)
    start = _Interval(zero, zero, factor, jnp.zeros((), times.dtype), E0, W0, saved0)
    end = _loop(lambda s: s.interval < n, body, start, MOST_RESTARTS + n, kind, buffers=lambda s: s.saved)
    return end.saved[:n]


@jax.custom_jvp
def _with_derivative_in_step(L: Array, A: Array, Q: Array, step: Array) -> Array:
    """L = E L₀ R⁻ᵀ after a step, unchanged; its derivative in the step, AL + L·(lower half of LᵀQL)ᵀ, is attached."""
    return L


@_with_derivative_in_step.defjvp
def _step_jvp(primals, tangents):
    L, A, Q, _ = primals
    S = transpose(L) @ (Q @ L)
    half = jnp.tril(S, -1) + 0.5 * jnp.diag(jnp.diagonal(S))
    return L, tangents[0] + tangents[3] * (A @ L + L @ transpose(half))


class PropagatorSeries(NamedTuple):
    """Taylor coefficients of E and of W in τ = ‖A‖h, and ‖A‖ (1 where A = 0)."""

    E: Float[Array, "terms d d"]
    W: Float[Array, "terms d d"]
    rate: Float[Array, ""]


def propagator_series(A: Array, Q: Array, norm: Array) -> PropagatorSeries:
    """The terms of W' obey K₀ = Q, Kₙ₊₁ = (AᵀKₙ + KₙA)/(n + 1)."""
    rate = jnp.where(norm > 0, norm, 1.0)
    A = A / rate

    def term(carry, n):
        power, K = carry
        half = K @ A
        return (A @ power / n, (half + transpose(half)) / n), (power, K / n)

    start = (jnp.eye(A.shape[0], dtype=A.dtype), Q)
    _, (powers, gramians) = jax.lax.scan(term, start, jnp.arange(1, TERMS + 1, dtype=A.dtype))
    return PropagatorSeries(powers, gramians, rate)


def local_flow(series: PropagatorSeries, step: Array) -> tuple[Array, Array]:
    """E = exp(Ah) and W = ∫₀ʰ exp(Aᵀs) Q exp(As) ds for ‖A‖h ≤ 2: the series at h/2, then W(2h) = W + EᵀWE."""
    half = 0.5 * step
    powers = _powers(series.rate * half)
    E, W = jnp.tensordot(powers, series.E, axes=1), half * jnp.tensordot(powers, series.W, axes=1)
    return E @ E, W + symmetric_part(transpose(E) @ (W @ E))


def _powers(x: Array) -> Array:
    """1, x, x², ...; by products, whose derivative at zero is finite."""
    return jnp.cumprod(jnp.full(TERMS, x).at[0].set(1.0))


# ------------------------------------------------------------------------------------- one step without (d, d) matrices

NODES = 14
_points, _gauss_weights = np.polynomial.legendre.leggauss(NODES)
POINTS, WEIGHTS = 0.5 * (_points + 1), 0.5 * _gauss_weights
"""Gauss nodes and weights on [0, 1]."""
TO_LEGENDRE = (2 * np.arange(NODES)[:, None] + 1) * np.polynomial.legendre.legvander(_points, NODES - 1).T * WEIGHTS
"""Values at the nodes to coefficients of the Legendre polynomials on [0, 1]."""
NODE_POWERS = POINTS[:, None] ** np.arange(TERMS)


def _legendre_integrals(x):
    """∫₀ˣ of each Legendre polynomial on [0, 1]; the new axis is the last."""
    z = 2 * x - 1
    P = [1.0 + 0 * z, z]
    for m in range(1, NODES):
        P.append(((2 * m + 1) * z * P[m] - m * P[m - 1]) / (m + 1))
    rest = [(P[m + 1] - P[m - 1]) / (2 * (2 * m + 1)) for m in range(1, NODES)]
    xp = jnp if isinstance(x, jax.Array) else np
    return xp.stack([x + 0 * z, *rest], axis=-1)


INTEGRATE = _legendre_integrals(POINTS) @ TO_LEGENDRE
"""Values at the nodes to integrals from 0 to each node."""


class ThinStep(NamedTuple):
    """exp(Aτ)L and its Gramian rate on a step of length h with ‖A‖h ≤ 2, from a factor L of shape (d, r).

    ``series`` (terms, d, r) are the Taylor coefficients of exp(Aθh)L in θ; ``moved`` (nodes, d, r) its values at the
    Gauss nodes; ``rates`` (nodes, r, r) those of Lᵀ exp(Aᵀτ) Q exp(Aτ) L. Sums with positive weights keep the sign
    of a definite Q.
    """

    series: Array
    moved: Array
    rates: Array
    h: Array


def thin_step(A: Array, Q: Array, L: Array, h: Array) -> ThinStep:
    def term(X, n):
        return (A @ X) * (h / n), X

    _, series = jax.lax.scan(term, L, jnp.arange(1, TERMS + 1, dtype=L.dtype), unroll=4)
    moved = jnp.tensordot(jnp.asarray(NODE_POWERS, L.dtype), series, axes=1)
    rates = symmetric_part(transpose(moved) @ jnp.einsum("ij,njk->nik", Q, moved))
    return ThinStep(series, moved, rates, h)


def thin_end(step: ThinStep) -> tuple[Array, Array]:
    """exp(Ah)L and Lᵀ W(h) L."""
    return jnp.sum(step.series, axis=0), step.h * jnp.tensordot(jnp.asarray(WEIGHTS, step.h.dtype), step.rates, axes=1)


def _factors_by_thin_series(A: Array, Q: Array, factor: Array, times: Array, kind: str) -> Array:
    """One thin step serves every save time inside it; each turn of the loop either steps or saves."""
    n = times.shape[0]
    norm = norm_bound(A)
    last = jax.lax.stop_gradient(times[-1])
    h = jnp.where(norm > 0, LONGEST_STEP / jnp.where(norm > 0, norm, 1.0), jnp.maximum(last, 1.0))
    fixed_times = jax.lax.stop_gradient(times)

    def body(s):
        index, start, step, saved = s
        due = fixed_times[index] <= start + h

        def save():
            share = (times[index] - start) / h
            weights = _legendre_integrals(share) @ jnp.asarray(TO_LEGENDRE, share.dtype)
            L = _over_root(jnp.tensordot(_powers(share), step.series, axes=1),
                           h * jnp.tensordot(weights, step.rates, axes=1))  # fmt: skip
            return start, step, L

        def move():
            moved, gramian = thin_end(step)
            L = _over_root(moved, gramian)
            return start + h, thin_step(A, Q, L, h), L

        start, step, L = jax.lax.cond(due, save, move)
        return index + due, start, step, saved.at[jnp.where(due, index, n)].set(L)

    saved0 = jnp.zeros((n + 1, *factor.shape), factor.dtype)
    start = (jnp.zeros((), int), jnp.zeros((), times.dtype), thin_step(A, Q, factor, h), saved0)
    end = _loop(lambda s: s[0] < n, body, start, MOST_RESTARTS + n, kind, buffers=lambda s: s[3])
    return end[3][:n]


# ------------------------------------------------------------------------------------------------------------ the mean


class _MeanState(NamedTuple):
    t: Array
    h: Array
    L: Array
    mean: Array
    saved: Array
    steps: Array
    rejected: Array


SHARE_LOST = 10.0  # the last coefficient kept, over what is lost beyond it (measured: 100 to 1000)
PICARD = 24  # iterations at most: with h·rate ≤ 2 they converge like 2ᵏ/k!


def exact_means(
    A: Float[Array, "d d"], v: Float[Array, ""], B: Float[Array, "d d"], b: Float[Array, " d"] | None,
    mean: Float[Array, " d"], factor: Float[Array, "d r"], times: Float[Array, " n"],
    *, rtol: Float[Array, ""], heads: int = 1, kind: str = "lax",
) -> ExactMeans:  # fmt: skip
    """μ at each of the increasing ``times`` >= 0, all before the blow-up, along the exact Σ(t).

    B is that of all ``heads`` together; each of them adds vμ to μ'.

    Gauss collocation with 14 nodes: Σ at a node comes from the closed form, and the stage equations, which are linear,
    are solved by Picard iteration. Steps adapt so that the last Legendre coefficient of μ' stays small against ``rtol``
    times the size of the mean; a polynomial serves every save time inside its step.
    """
    d, r = factor.shape
    if r == 0:
        factor = jnp.zeros((d, 1), factor.dtype)
    Q = v * (B + transpose(B))
    drift = jnp.zeros_like(mean) if b is None else b
    n = times.shape[0]
    end = jax.lax.stop_gradient(times[-1])
    tiny = jnp.finfo(mean.dtype).eps
    tolerance = jnp.maximum(SHARE_LOST * rtol, 20 * tiny)
    norm = norm_bound(A)
    rate = norm + heads * jnp.abs(jax.lax.stop_gradient(v))
    longest = jnp.where(norm > 0, LONGEST_STEP / jnp.where(norm > 0, norm, 1.0), jnp.inf)
    integrate, to_legendre = jnp.asarray(INTEGRATE, mean.dtype), jnp.asarray(TO_LEGENDRE, mean.dtype)
    fixed_times = jax.lax.stop_gradient(times)

    def body(s: _MeanState) -> _MeanState:
        lands = s.h * (1 + 1e-10) >= end - s.t
        fixed_h = jnp.where(lands, end - s.t, s.h)
        # Only the last step depends on the end time.
        h = jnp.where(lands, times[-1] - s.t, fixed_h)
        step = thin_step(A, Q, s.L, h)
        factors = _over_root(step.moved, h * jnp.tensordot(integrate, step.rates, axes=1))

        def slope(values):
            inner = jnp.einsum("nij,ni->nj", factors, values @ transpose(B))
            return values @ transpose(A) + v * (heads * values + jnp.einsum("nij,nj->ni", factors, inner)) + drift

        values, change = _picard(lambda u: s.mean + h * (integrate @ slope(u)), s.mean, kind, 0.1 * tolerance)
        coefficients = to_legendre @ slope(values)
        fixed = jax.lax.stop_gradient((coefficients, values, change))
        size = jnp.max(jnp.sqrt(jnp.sum(fixed[1] ** 2, axis=1)))
        size = jnp.where(size > 0, size, 1.0)
        tail = jnp.sqrt(jnp.sum(fixed[0][-1] ** 2))
        error = fixed_h * tail / (2 * NODES) / size
        solved = fixed[2] <= tolerance * size
        error = jnp.where(solved & jnp.isfinite(error), error, jnp.inf)
        moved, gramian = thin_end(step)
        L = _over_root(moved, gramian)
        accept = (error <= tolerance) & jnp.all(jnp.isfinite(L))
        # In quarters of an octave: a reverse pass computes steps again, rounded differently, and must choose the same.
        grow = (tolerance / jnp.maximum(error, 1e-9 * tolerance)) ** (1 / NODES)
        grow = 2 ** (jnp.floor(4 * jnp.log2(0.95 * grow)) / 4)
        h_next = fixed_h * jnp.where(accept, jnp.clip(grow, 0.25, 3.0), jnp.clip(grow, 0.25, 0.9))
        h_next = jnp.where(lands & accept, jnp.maximum(h_next, s.h), h_next)
        mean = s.mean + h * coefficients[0]
        keep = lambda new, old: jnp.where(accept, new, old)
        t = keep(jnp.where(lands, end, s.t + fixed_h), s.t)
        inside = accept & (fixed_times > s.t) & (fixed_times <= t)
        share = jnp.clip((times - s.t) / jnp.where(h > 0, h, 1.0), 0.0, 1.0)
        share = jnp.where(inside, share, 0.0)
        dense = s.mean + h * (_legendre_integrals(share) @ coefficients)
        saved = jnp.where(inside[:, None], dense, s.saved)
        return _MeanState(t, jnp.minimum(h_next, longest), keep(L, s.L), keep(mean, s.mean), saved,
                          s.steps + 1, s.rejected + jnp.where(accept, 0, 1))  # fmt: skip

    projected = transpose(factor) @ (B @ factor)
    rate = rate + jnp.abs(jax.lax.stop_gradient(v)) * norm_bound(projected)
    first = jnp.minimum(jnp.where(rate > 0, 1.0 / jnp.where(rate > 0, rate, 1.0), jnp.inf), jnp.maximum(end, tiny))
    zero = jnp.zeros((), int)
    saved0 = jnp.broadcast_to(mean, (n, d))
    start = _MeanState(jnp.zeros((), times.dtype), first, factor, mean, saved0, zero, zero)

    def unfinished(s):
        # Steps that are rounding themselves: past the blow-up there is nothing to resolve.
        stuck = s.h <= 8 * tiny * s.t
        return (s.t < end) & ~stuck & (s.steps < MOST_MEAN_STEPS)

    done = _loop(unfinished, body, start, MOST_MEAN_STEPS, kind)
    reached = fixed_times <= done.t
    means = jnp.where(reached[:, None], done.saved, done.mean)
    return ExactMeans(means, jnp.sum(reached), done.steps, done.rejected)


def _picard(step, mean: Array, kind: str, tolerance: Array) -> tuple[Array, Array]:
    """The fixed point of ``step`` on values at the nodes, (nodes, d), and the size of the last change."""
    start = jnp.broadcast_to(mean, (NODES, *mean.shape))
    if kind != "lax":
        values, _ = jax.lax.scan(lambda u, _: (step(u), None), start, None, length=PICARD)
        new = step(values)
        return new, jnp.max(jnp.abs(jax.lax.stop_gradient(new - values)))

    def more(s):
        i, values, change = s
        return (i < PICARD) & (change > tolerance * jnp.max(jnp.abs(values)))

    def one(s):
        i, values, _ = s
        new = step(values)
        return i + 1, new, jnp.max(jnp.abs(new - values))

    _, values, change = jax.lax.while_loop(more, one, (0, start, jnp.asarray(jnp.inf, mean.dtype)))
    return values, change


# ------------------------------------------------------------------------------------------------------------- blow-up


def exact_blow_up(
    A: Float[Array, "d d"], Q: Float[Array, "d d"], factor: Float[Array, "d r"], horizon: Float[Array, ""],
    *, kind: str = "lax",
) -> ExactBlowUp:  # fmt: skip
    """The first t in (0, horizon] at which the covariance becomes infinite.

    The time axis is covered by steps that provably hold no root, whatever the signs of Q. On a step of length s from L,
    with K(τ) = Lᵀ exp(Aᵀτ) Q exp(Aτ) L and its derivatives at τ = 0, either of two bounds on λmax(LᵀW(s)L) will do:

        that of the positive part of Q alone, which grows with s;
        s λmax(K) + s²/2 ‖K'‖ + s³/6 ‖K''‖ + s⁴/24 · 8‖A‖³‖Q‖‖L‖² exp(2‖A‖s), where the signs cancel.

    Towards a blow-up λmax(K) ~ 1/(t* − t) dominates and each step takes a fixed share of what is left. Q ⪯ 0, or a
    positive part of Q that stays too small up to the horizon, is seen at once.

    The derivative of t* is that of the implicit function F(θ, t) = λmax − 1 = 0, averaged over the eigenspace where
    λmax is repeated; it is zero where nothing is found.
    """
    r = factor.shape[1]
    if r == 0:
        never = jnp.zeros((), bool)
        return ExactBlowUp(horizon, jnp.zeros_like(horizon), factor, never)
    horizon = jnp.minimum(horizon, 1e300 if horizon.dtype == jnp.float64 else 1e30)
    found, estimate, sensitivity, steps = _march(*jax.lax.stop_gradient((A, Q, factor, horizon)))
    none = (jnp.zeros_like(horizon) + horizon, jnp.zeros_like(horizon), jnp.zeros_like(factor))
    time, error, shape = jax.lax.cond(found, lambda: _polish(A, Q, factor, estimate, steps, kind), lambda: none)
    # The data are known to rounding, which t* may amplify (close to an unstable equilibrium it does).
    error = error + jnp.where(found, 4 * jnp.finfo(A.dtype).eps * sensitivity, 0.0)
    return ExactBlowUp(time, jax.lax.stop_gradient(error), shape, found)


def _polish(A: Array, Q: Array, factor: Array, t_star: Array, steps: Array, kind: str) -> tuple[Array, Array, Array]:
    """One differentiable Newton step on F, from a restart a little before the root: time, error, limit of L / ‖L‖."""
    norm = norm_bound(A)
    back = jnp.minimum(0.5 / jnp.where(norm > 0, norm, 1.0), jnp.where(norm > 0, 0.5, 0.9) * t_star)
    L = exact_factors(A, Q, factor, (t_star - back)[None], kind=kind)[0]
    moved, gramian = thin_end(thin_step(A, Q, L, back))
    values, vectors = jax.lax.stop_gradient(jnp.linalg.eigh(gramian))
    top = (values > values[-1] - REPEATED * jnp.maximum(jnp.abs(values[-1]), 1.0)).astype(values.dtype)
    mean_over = lambda K: jnp.sum(top * jnp.sum(vectors * (K @ vectors), axis=0)) / jnp.sum(top)
    value = mean_over(gramian) - 1.0
    slope = jax.lax.stop_gradient(mean_over(transpose(moved) @ (Q @ moved)))
    usable = (slope > 0) & jnp.isfinite(value)
    safe_slope = jnp.where(usable, slope, 1.0)
    time = jnp.where(usable, t_star - value / safe_slope, t_star)
    directions = jax.lax.stop_gradient(moved @ (vectors * top))
    size = frobenius_norm(directions)
    shape = directions / jnp.where(size > 0, size, 1.0)
    # A relative change ε of Σ moves F by ε, and t* by ε / F_t; each step rounds a few times.
    rounding = 8 * jnp.finfo(A.dtype).eps * (1 + 0.1 * steps)
    error = rounding * (jnp.where(usable, 1 / safe_slope, 0.0) + jnp.abs(t_star))
    return time, error, shape


class _March(NamedTuple):
    t: Array
    L: Array
    back: Array  # C with L(t) = exp(At) L₀ C
    careful: Array  # the bound by the positive part has just failed from here
    near: Array
    done: Array
    steps: Array


LARGEST_GRAMIAN = 0.8  # of a step that provably holds no root; I − LᵀWL then keeps a condition number of 5


def _march(A: Array, Q: Array, factor: Array, horizon: Array) -> tuple[Array, Array, Array, Array]:
    """Whether λmax(L₀ᵀW(t)L₀) reaches 1 by the horizon, where, the shift of that time by a relative change of Σ₀, and
    after how many steps."""
    norm = norm_bound(A)
    within = lambda limit, x: jnp.where(x > 0, limit / jnp.where(x > 0, x, 1.0), jnp.inf)
    # (2.4 / (8‖A‖³‖Q‖e^1.5))^¼ by roots, which do not overflow.
    by_third = within(1.0, norm) ** 0.75 * within(0.3 * np.exp(-1.5), norm_bound(Q)) ** 0.25
    positive, harmless = _positive_part(Q)
    safe = harmless | jax.lax.cond(
        harmless, lambda: harmless, lambda: _never_reaches_one(A, positive, factor, horizon, norm)
    )
    identity = jnp.eye(factor.shape[1], dtype=factor.dtype)

    def body(s: _March) -> _March:
        L = s.L
        X1 = A @ L
        QL, QX1 = Q @ L, Q @ X1
        k0 = jnp.linalg.eigvalsh(symmetric_part(transpose(L) @ QL))[-1]
        half1, half2 = transpose(X1) @ QL, transpose(A @ X1) @ QL
        k1 = norm_bound(half1 + transpose(half1))
        k2 = norm_bound(half2 + transpose(half2) + 2 * transpose(X1) @ QX1)
        shares = [within(0.4, k0), jnp.sqrt(within(0.4, k1)), jnp.cbrt(within(0.6, k2)),
                  by_third * jnp.sqrt(within(1.0, frobenius_norm(L))), within(0.75, norm)]  # fmt: skip
        proven = jnp.min(jnp.stack(shares))
        k0_positive = norm_bound(symmetric_part(transpose(L) @ (positive @ L)))
        hoped = jnp.minimum(within(LONGEST_STEP, norm), within(0.5, k0_positive))
        careful = s.careful | (hoped <= proven)
        step = jnp.where(careful, proven, hoped)
        near = (k0 > 0) & (norm <= NEAR * k0)
        to_end = jnp.minimum(step, horizon - s.t)
        local = thin_step(A, Q, L, jnp.where(near, 0.0, to_end))
        rates = jnp.einsum("ij,njk->nik", positive, local.moved)
        bound = to_end * jnp.tensordot(jnp.asarray(WEIGHTS, L.dtype), transpose(local.moved) @ rates, axes=1)
        # A Cholesky factor exists if and only if the eigenvalues of the bound are below.
        free = careful | jnp.all(jnp.isfinite(jnp.linalg.cholesky(LARGEST_GRAMIAN * identity - symmetric_part(bound))))
        moves = free & ~near
        moved, gramian = thin_end(local)
        both = _over_root(jnp.concatenate([moved, s.back]), gramian)
        L, back = jnp.where(moves, both[: L.shape[0]], L), jnp.where(moves, both[L.shape[0] :], s.back)
        t = jnp.where(moves, s.t + to_end, s.t)
        done = near | moves & (s.t + step >= horizon)
        return _March(t, L, back, ~free, near, done, s.steps + 1)

    no = jnp.zeros((), bool)
    start = _March(jnp.zeros((), A.dtype), factor, identity, no, no, safe, jnp.zeros((), int))
    end = jax.lax.while_loop(lambda s: ~s.done & (s.steps < MOST_MARCHING_STEPS), body, start)
    # Two terms of the root: k₀τ + zᵀK'z τ²/2 = 1, with a relative error of (‖A‖τ)².
    values, vectors = jnp.linalg.eigh(symmetric_part(transpose(end.L) @ (Q @ end.L)))
    z = end.L @ vectors[:, -1]
    tau = jnp.where(end.near, within(1.0, values[-1]), 0.0)
    root = end.t + tau * (1 - (tau * (A @ z)) @ (tau * (Q @ z)))
    sensitivity = tau * jnp.sum((end.back @ vectors[:, -1]) ** 2)
    return end.near & (root <= horizon), root, sensitivity, end.steps


NEAR = 1e-7
"""‖A‖τ below which two terms of the root are enough."""


def _positive_part(Q: Array) -> tuple[Array, Array]:
    """The positive part of Q, and whether there is none; rounding must not turn Q = −BᵀB into an attack."""
    values, vectors = jnp.linalg.eigh(Q)
    harmless = values[-1] <= 1e-15 * jnp.max(jnp.abs(values))
    return symmetric_part((vectors * jnp.maximum(values, 0.0)) @ transpose(vectors)), harmless


def _never_reaches_one(A: Array, positive: Array, factor: Array, horizon: Array, norm: Array) -> Array:
    """Whether the positive part of Q alone cannot reach λmax = 1 by the horizon, by doubling: O(log) in its length."""
    doublings = jnp.maximum(jnp.ceil(jnp.log2(jnp.maximum(norm * horizon, 1.0))), 0.0)
    E, W = local_flow(propagator_series(A, positive, norm), horizon / 2**doublings)

    def one(state):
        i, E, W = state
        return i + 1, E @ E, W + symmetric_part(transpose(E) @ (W @ E))

    _, _, W = jax.lax.while_loop(lambda s: s[0] < doublings, one, (jnp.zeros((), A.dtype), E, W))
    reached = transpose(factor) @ (W @ factor)
    finite = jnp.all(jnp.isfinite(reached))
    return finite & (jnp.linalg.eigvalsh(jnp.where(finite, symmetric_part(reached), 0.0))[-1] < 1 - 1e-9)


def norm_bound(X: Float[Array, "d d"]) -> Float[Array, ""]:
    """An upper bound on the spectral norm, without a derivative: tight to a factor d^(1/16) up to d = 512."""
    X = jax.lax.stop_gradient(X)
    sums = jnp.abs(X)
    # √(‖X‖₁‖X‖_∞) as a product of roots, which does not overflow.
    simple = jnp.sqrt(jnp.max(jnp.sum(sums, axis=0), initial=0.0)) * jnp.sqrt(
        jnp.max(jnp.sum(sums, axis=1), initial=0.0)
    )
    if not 2 <= X.shape[0] <= 512:
        return simple
    unit = X / jnp.where(simple > 0, simple, 1.0)
    power = transpose(unit) @ unit
    for _ in range(3):
        power = power @ power
    return simple * jnp.minimum(jnp.trace(power) ** (1 / 16) * (1 + 1e-12), 1.0)


def _loop(condition, body, start, most: int, kind: str, buffers=None):
    """A while loop: plain (forward mode, fastest) or checkpointed (reverse mode)."""
    if kind == "lax":
        return jax.lax.while_loop(condition, body, start)
    return eqxi.while_loop(
        condition, body, start, max_steps=most, kind="checkpointed", checkpoints=CHECKPOINTS, buffers=buffers
    )
