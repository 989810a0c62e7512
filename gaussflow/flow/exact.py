"""The closed form for V = vI and constant parameters, for any rank (a gaussflow derivation; the Riccati case).

With Q = v(B + Bᵀ) the covariance obeys Σ' = AΣ + ΣAᵀ + ΣQΣ, and from Σ₀ = L₀L₀ᵀ

    L(t) = E L₀ R⁻ᵀ,   R Rᵀ = I − L₀ᵀ W L₀,   E = exp(At),   W(t) = ∫₀ᵗ exp(Aᵀs) Q exp(As) ds,

until the first t with λmax(L₀ᵀ W(t) L₀) = 1, the blow-up time. One formula for the whole interval would overflow or
cancel for long t, so the flow is restarted (it is a semigroup) after steps with ‖A‖δ ≤ 2.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gaussflow.flow.explicit import bounded_loop
from gaussflow.linalg import frobenius_norm, symmetric_part, transpose

LONGEST_STEP = 2.0  # ‖A‖δ of one restart: E then costs at most e⁴ in conditioning
DOUBLINGS = 2
TERMS = 18  # of the Taylor series at ‖A‖h ≤ 1/2: the remainder of W is below 1/19!
MOST_RESTARTS = 1 << 17
"""Restarts in all; ‖A‖T may be twice this. Longer horizons are for an implicit method."""
MOST_MARCHING_STEPS = 1 << 17
REPEATED = 1e-8  # eigenvalues this close to the largest blow up together


class ExactBlowUp(NamedTuple):
    """First blow-up time in (0, horizon], its error estimate, the limit of L / ‖L‖, and whether there is one."""

    time: Float[Array, ""]
    error: Float[Array, ""]
    factor: Float[Array, "d r"]
    found: Bool[Array, ""]


def exact_factors(
    A: Float[Array, "d d"], Q: Float[Array, "d d"], factor: Float[Array, "d r"], times: Float[Array, " n"],
    *, kind: str = "lax",
) -> Float[Array, "n d r"]:  # fmt: skip
    """L at each of the increasing ``times`` >= 0, all before the blow-up, from L at time 0.

    Even spacing is recognised (up to rounding), and then E and W are computed once.
    """
    if factor.shape[1] == 0:
        return jnp.zeros((times.shape[0], *factor.shape), factor.dtype)
    norm = _norm(A)
    same = 4 * jnp.finfo(times.dtype).eps * times[-1]

    def interval(carry, end):
        L, start, last_length, E, W = carry
        length = jax.lax.stop_gradient(end - start)
        new = jnp.abs(length - last_length) > same
        restarts = jnp.maximum(jnp.ceil(norm * length / LONGEST_STEP), 1.0)
        # The derivative in the end time enters through the step itself.
        step = (end - start) / restarts
        E, W = jax.lax.cond(new, lambda: local_flow(A, Q, step), lambda: (E, W))

        def one(state):
            i, L = state
            return i + 1, advance(L, E, W)

        count = jnp.minimum(restarts, MOST_RESTARTS).astype(int)
        _, L = bounded_loop(lambda s: s[0] < count, one, (jnp.zeros((), int), L), MOST_RESTARTS, kind)
        return (L, end, jnp.where(new, length, last_length), E, W), L

    E0, W0 = jnp.eye(A.shape[0], dtype=A.dtype), jnp.zeros_like(Q)
    start = (factor, jnp.zeros((), times.dtype), jnp.zeros((), times.dtype), E0, W0)
    return jax.lax.scan(interval, start, times)[1]


def restarts_needed(A: Float[Array, "d d"], length: Float[Array, ""]) -> Float[Array, ""]:
    """How many restarts a run of this length takes."""
    return _norm(A) * length / LONGEST_STEP


def advance(L: Float[Array, "d r"], E: Float[Array, "d d"], W: Float[Array, "d d"]) -> Float[Array, "d r"]:
    """L after one step with propagator E and Gramian W: E L R⁻ᵀ, R Rᵀ = I − Lᵀ W L."""
    gap = jnp.eye(L.shape[1], dtype=L.dtype) - symmetric_part(transpose(L) @ (W @ L))
    R = jnp.linalg.cholesky(gap)
    return E @ transpose(jax.scipy.linalg.solve_triangular(R, transpose(L), lower=True))


def local_flow(A: Array, Q: Array, step: Array) -> tuple[Array, Array]:
    """E = exp(Ah) and W = ∫₀ʰ exp(Aᵀs) Q exp(As) ds for ‖A‖h ≤ 2: Taylor at h/4, then doubling W(2h) = W + EᵀWE."""
    E, W = _taylor(A, Q, step / 2**DOUBLINGS)
    for _ in range(DOUBLINGS):
        E, W = _double(E, W)
    return E, W


def _double(E: Array, W: Array) -> tuple[Array, Array]:
    return E @ E, W + symmetric_part(transpose(E) @ (W @ E))


def _taylor(A: Array, Q: Array, h: Array) -> tuple[Array, Array]:
    """The series of E and of W, whose terms obey K₀ = Q, Kₙ₊₁ = AᵀKₙ + KₙA; accurate for ‖A‖h ≤ 1/2."""

    def term(carry, n):
        power, K, E, W = carry
        W = W + K * h / n
        power = (A @ power) * h / n
        half = K @ A
        K = (half + transpose(half)) * h / n
        return (power, K, E + power, W), None

    identity = jnp.eye(A.shape[0], dtype=A.dtype)
    # K carries hⁿ/n!, so that the term of W is K h/(n + 1): the loop counts n + 1.
    start = (identity, Q, identity, jnp.zeros_like(Q))
    (_, _, E, W), _ = jax.lax.scan(term, start, jnp.arange(1, TERMS + 1, dtype=A.dtype))
    return E, W


def exact_blow_up(
    A: Float[Array, "d d"], Q: Float[Array, "d d"], factor: Float[Array, "d r"], horizon: Float[Array, ""],
    *, kind: str = "lax",
) -> ExactBlowUp:  # fmt: skip
    """The first t in (0, horizon] at which the covariance becomes infinite.

    The time axis is covered by steps that provably hold no root, whatever the signs of Q: on a step from L,
    λmax(LᵀW(s)L) ≤ s q₀ + s² q₁/2 + s³ q₂/6 with q₀ = λmax(LᵀQL), q₁ = λmax(Lᵀ(AᵀQ + QA)L) and a bound q₂ on the
    second derivative. Towards a blow-up q₀ ~ 1/(t* − t) dominates and each step takes a fixed share of what is left.

    The derivative of t* is that of the implicit function F(θ, t) = λmax − 1 = 0, averaged over the eigenspace where
    λmax is repeated; it is zero where nothing is found.
    """
    r = factor.shape[1]
    if r == 0:
        never = jnp.zeros((), bool)
        return ExactBlowUp(horizon, jnp.zeros_like(horizon), factor, never)
    horizon = jnp.minimum(horizon, 1e300 if horizon.dtype == jnp.float64 else 1e30)
    fixed = jax.lax.stop_gradient((A, Q, factor, horizon))
    found, estimate, steps = _march(*fixed)

    # One differentiable Newton step on F, from a restart a little before the root.
    t_star = jnp.where(found, estimate, 0.0)
    norm = jax.lax.stop_gradient(_norm(A))
    back = jnp.minimum(0.5 / jnp.where(norm > 0, norm, 1.0), jnp.where(norm > 0, 0.5, 0.9) * t_star)
    L = exact_factors(A, Q, factor, (t_star - back)[None], kind=kind)[0]
    E, W = local_flow(A, Q, back)
    gramian = symmetric_part(transpose(L) @ (W @ L))
    moved = E @ L
    values, vectors = jax.lax.stop_gradient(jnp.linalg.eigh(gramian))
    top = (values > values[-1] - REPEATED * jnp.maximum(jnp.abs(values[-1]), 1.0)).astype(values.dtype)
    mean_over = lambda K: jnp.sum(top * jnp.sum(vectors * (K @ vectors), axis=0)) / jnp.sum(top)
    value = mean_over(gramian) - 1.0
    slope = jax.lax.stop_gradient(mean_over(transpose(moved) @ (Q @ moved)))
    usable = found & (slope > 0) & jnp.isfinite(value)
    time = jnp.where(usable, t_star - value / jnp.where(usable, slope, 1.0), jnp.where(found, t_star, horizon))

    directions = jax.lax.stop_gradient(moved @ (vectors * top))
    size = frobenius_norm(directions)
    shape = directions / jnp.where(size > 0, size, 1.0)
    # A relative change ε of Σ moves F by ε, and t* by ε / F_t; each step rounds a few times.
    rounding = 8 * jnp.finfo(A.dtype).eps * (1 + 0.1 * steps)
    error = jnp.where(usable, rounding * (1 / jnp.where(usable, slope, 1.0) + jnp.abs(t_star)), 0.0)
    return ExactBlowUp(time, jax.lax.stop_gradient(error), shape, found)


class _March(NamedTuple):
    t: Array
    L: Array
    found: Array
    root: Array
    done: Array
    steps: Array


def _march(A: Array, Q: Array, factor: Array, horizon: Array) -> tuple[Array, Array, Array]:
    """Whether λmax(L₀ᵀW(t)L₀) reaches 1 by the horizon, where, and after how many steps."""
    norm = _norm(A)
    cap = 0.5 / jnp.where(norm > 0, norm, 1.0)
    cap = jnp.where(norm > 0, cap, jnp.inf)
    half = transpose(A) @ Q
    first = half + transpose(half)
    second = 4 * norm**2 * _norm(Q) * jnp.e
    safe = _safe_for_ever(A, Q, factor, horizon)

    def body(s: _March) -> _March:
        t, L = s.t, s.L
        q0, z = _top(transpose(L) @ (Q @ L))
        K1 = transpose(L) @ (first @ L)
        q1, _ = _top(K1)
        q2 = second * jnp.sum(L * L)
        positive = lambda x: jnp.where(x > 0, x, 1.0)
        free = jnp.minimum(cap, jnp.where(q0 > 0, 0.4 / positive(q0), jnp.inf))
        free = jnp.minimum(free, jnp.where(q1 > 0, jnp.sqrt(0.4 / positive(q1)), jnp.inf))
        free = jnp.minimum(free, jnp.where(q2 > 0, jnp.cbrt(1.2 / positive(q2)), jnp.inf))
        # Close enough for two terms of the root: q₀τ + zᵀK₁z τ²/2 = 1, with a relative error of (‖A‖τ)².
        tau = jnp.where(q0 > 0, 1.0 / positive(q0), jnp.inf)
        near = (q0 > 0) & (norm * tau <= 1e-7)
        tau = jnp.where(near, tau - 0.5 * (z @ (K1 @ z)) * tau**3, tau)
        root = t + tau
        done = near | (t + free >= horizon)
        step = jnp.where(done, 0.0, free)
        L = jnp.where(done, L, advance(L, *_taylor(A, Q, step)))
        return _March(t + step, L, near & (root <= horizon), root, done, s.steps + 1)

    start = _March(jnp.zeros((), A.dtype), factor, jnp.zeros((), bool), horizon, safe, jnp.zeros((), int))
    end = jax.lax.while_loop(lambda s: ~s.done & (s.steps < MOST_MARCHING_STEPS), body, start)
    return end.found, end.root, end.steps


def _safe_for_ever(A: Array, Q: Array, factor: Array, horizon: Array) -> Array:
    """Whether the positive part of Q alone cannot reach λmax = 1 by the horizon, by doubling: O(log) in its length."""
    values, vectors = jnp.linalg.eigh(Q)
    positive = symmetric_part((vectors * jnp.maximum(values, 0.0)) @ transpose(vectors))
    # Rounding must not turn Q = −BᵀB into an attack.
    positive = jnp.where(values[-1] <= 1e-15 * jnp.max(jnp.abs(values)), 0.0, positive)
    norm = _norm(A)
    doublings = jnp.maximum(jnp.ceil(jnp.log2(jnp.maximum(2 * norm * horizon, 1.0))), 0.0)
    E, W = _taylor(A, positive, horizon / 2**doublings)

    def one(state):
        i, E, W = state
        return i + 1, *_double(E, W)

    _, _, W = jax.lax.while_loop(lambda s: s[0] < doublings, one, (jnp.zeros((), A.dtype), E, W))
    reached = transpose(factor) @ (W @ factor)
    finite = jnp.all(jnp.isfinite(reached))
    top, _ = _top(jnp.where(finite, reached, 0.0))
    return (finite & (top < 1 - 1e-9)) | (jnp.max(positive) <= 0) & (jnp.min(positive) >= 0)


def _top(K: Array) -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(symmetric_part(K))
    return values[-1], vectors[:, -1]


def _norm(X: Array) -> Array:
    """√(‖X‖₁‖X‖_∞), a bound on the spectral norm."""
    sums = jnp.abs(jax.lax.stop_gradient(X))
    return jnp.sqrt(jnp.max(jnp.sum(sums, axis=0), initial=0.0)) * jnp.sqrt(jnp.max(jnp.sum(sums, axis=1), initial=0.0))
