"""The result of an integration: states in time, how it ended, and the blow-up if there was one."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gaussflow.arrays import as_real_array, is_concrete
from gaussflow.errors import InvalidInput, NumericalFailure
from gaussflow.flow.run import Status
from gaussflow.gaussian import Gaussian, assembled
from gaussflow.linalg import gram, psd_sqrt


class Outcome(eqx.Enumeration):
    """How a simulation ended; compare with ``==``, print with :meth:`Outcome.label`."""

    COMPLETED: Any = "completed"
    BLOW_UP: Any = "blow-up"
    FAILED: Any = "failed"


def outcome_label(outcome: Any) -> str:
    """The outcome in words; for a batch, a count of each kind."""
    values = np.atleast_1d(np.asarray(outcome._value))
    kinds: Any = Outcome  # an enumeration of equinox is indexed by its items, which its type does not say
    names = [kinds[item] for item in (Outcome.COMPLETED, Outcome.BLOW_UP, Outcome.FAILED)]
    if values.size == 1:
        return names[int(values.reshape(-1)[0])]
    counts = [(int(np.sum(values == i)), name) for i, name in enumerate(names)]
    return ", ".join(f"{n} {name}" for n, name in counts if n)


Outcome.label = staticmethod(outcome_label)  # type: ignore[attr-defined]


class BlowUp(eqx.Module):
    """A finite-time blow-up of the covariance.

    Attributes
    ----------
    time:
        the blow-up time t*; meaningless unless ``found``.
    error:
        an estimate of its absolute error (numerical, not a proof).
    factor:
        the limit of L / ‖L‖ as t → t*, shape (d, r): Σ / tr Σ tends to its Gram matrix. Where it spirals and has no
        limit, its last value.
    turning:
        how fast ``factor`` still turns for each e-fold of tr Σ, (d, r); zero where there is a limit.
    found:
        whether there is a blow-up before the end; always true where code outside ``jit`` and ``vmap`` sees one.
    """

    time: Float[Array, "*batch"]
    error: Float[Array, "*batch"]
    factor: Float[Array, "*batch d r"]
    turning: Float[Array, "*batch d r"]
    found: Bool[Array, "*batch"]

    @property
    def directions(self) -> np.ndarray:
        """Orthonormal columns, shape (d, k), spanning the part of the space in which Σ blows up (host only).

        A spiralling shape counts with the directions it turns into.
        """
        columns = np.concatenate([np.asarray(self.factor), np.asarray(self.turning)], axis=1)
        left, values, _ = np.linalg.svd(columns, full_matrices=False)
        # Directions that stay bounded have shrunk to e^-20 when the flow stops; those that blow up are of order 1.
        directions = left[:, values > 1e-4 * np.max(values, initial=0.0)]
        signs = np.sign(directions[np.argmax(np.abs(directions), axis=0), np.arange(directions.shape[1])])
        return directions * np.where(signs == 0, 1.0, signs)

    def __str__(self) -> str:
        return f"blow-up at t = {float(self.time):.10g} (error about {float(self.error):.1g}, numerical)"

    def to_dict(self) -> dict[str, Any]:
        return {
            "time": float(self.time),
            "error": float(self.error),
            "known_by": "numerical",
            "directions": self.directions.T.tolist(),
        }


class Trajectory(eqx.Module):
    """States of a Gaussian along the depth of a Transformer.

    Attributes
    ----------
    ts:
        the times of the saved states, shape (n,).
    means:
        μ at those times, (n, d).
    outcome:
        COMPLETED, BLOW_UP or FAILED.
    valid:
        which entries were reached, (n,). Outside ``jit`` and ``vmap`` the arrays are trimmed to the valid ones.
    stats:
        steps, rejected steps, evaluations and the status of the integrator.
    method:
        the form that was integrated: "covariance", "factor", "exact" or "stiff".

    ``covariances`` (n, d, d) and ``factors`` (n, d, r) are computed from whichever of the two was integrated.
    """

    ts: Float[Array, "*batch n"]
    means: Float[Array, "*batch n d"]
    saved_factors: Float[Array, "*batch n d r"] | None
    saved_covariances: Float[Array, "*batch n d d"] | None
    valid: Bool[Array, "*batch n"]
    outcome: Any
    blow_up_record: BlowUp
    stats: dict[str, Any]
    start: Gaussian
    error_estimate: Float[Array, "*batch"] | None = None
    restart: Any = None
    method: str = eqx.field(static=True, default="factor")

    @property
    def covariances(self) -> Float[Array, "*batch n d d"]:
        """Σ at the saved times, exactly symmetric."""
        if self.saved_covariances is not None:
            return self.saved_covariances
        assert self.saved_factors is not None
        return gram(self.saved_factors)

    @property
    def factors(self) -> Float[Array, "*batch n d r"]:
        """L with Σ = L Lᵀ at the saved times; from the covariance form, its symmetric square root."""
        return psd_sqrt(self.saved_covariances) if self.saved_factors is None else self.saved_factors

    @property
    def blow_up(self) -> BlowUp | None:
        """The blow-up; None where there is none (inside ``jit`` and for batches: a record with ``found``)."""
        record = self.blow_up_record
        if is_concrete(record.found) and np.ndim(record.found) == 0 and not bool(record.found):
            return None
        return record

    @property
    def final(self) -> Gaussian:
        """The last valid state; the initial one if no save time was reached."""
        if self.ts.shape[-1] == 0:
            return self.start
        if self.ts.ndim == 1 and is_concrete(self.valid) and np.asarray(self.valid).all():
            return self[-1]
        count = jnp.sum(self.valid, axis=-1)
        last = jnp.maximum(count - 1, 0)

        def pick(saved, initial):
            index = last.reshape(last.shape + (1,) * (saved.ndim - last.ndim))
            value = jnp.take_along_axis(saved, index, axis=last.ndim).squeeze(last.ndim)
            return jnp.where((count > 0).reshape(count.shape + (1,) * (value.ndim - count.ndim)), value, initial)

        mean = pick(self.means, self.start.mean)
        if self.saved_factors is not None:
            return assembled(Gaussian, mean=mean, factor=pick(self.saved_factors, self.start.factor))
        return assembled(Gaussian, mean=mean, factor=psd_sqrt(pick(self.saved_covariances, self.start.covariance)))

    def __getitem__(self, index: Any) -> Gaussian:
        """The state at one saved time."""
        if self.saved_factors is not None:
            return assembled(Gaussian, mean=self.means[index], factor=self.saved_factors[index])
        return assembled(Gaussian, mean=self.means[index], factor=psd_sqrt(self.covariances[index]))

    def __call__(self, t: Any) -> Gaussian:
        """The state at any time between the first and the last saved one (``dense=True``).

        ``t`` may be an array of times, shape (m,); then mean and factor get a leading axis. Raises
        :class:`InvalidInput` outside the saved interval, or without ``dense=True``.
        """
        if self.restart is None:
            raise InvalidInput("t", got="a trajectory saved at points", wanted="one that can be evaluated anywhere",
                               fix="pass dense=True to simulate")  # fmt: skip
        t = as_real_array(t, "t")
        if t.ndim > 1:
            raise InvalidInput("t", got=f"shape {t.shape}", wanted="one time or a vector of times")
        sign = jnp.where(self.ts[-1] >= self.ts[0], 1.0, -1.0)
        last = self.ts[jnp.maximum(jnp.sum(self.valid) - 1, 0)]
        if is_concrete(t, self.ts, self.valid):
            outside = (sign * (t - self.ts[0]) < 0) | (sign * (t - last) > 0)
            if bool(jnp.any(outside)):
                first_bad = float(jnp.ravel(t)[int(jnp.argmax(jnp.ravel(outside)))])
                raise InvalidInput(
                    "t", got=f"{first_bad:g}", wanted=f"a time from {float(self.ts[0]):g} to {float(last):g}"
                )
        state = _evaluate(self, t, sign)
        if is_concrete(state) and not bool(jnp.all(jnp.isfinite(state.mean))):
            raise NumericalFailure("the state between two saved ones could not be reached; save more points")
        return state

    def __str__(self) -> str:
        return summary(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready numbers: how it ended, the blow-up, the final state, the statistics."""
        final = self.final
        return {
            "outcome": outcome_label(self.outcome),
            "method": self.method,
            "cause": self.cause if bool(self.outcome == Outcome.FAILED) else None,
            "t0": float(self.ts[0]) if self.ts.shape[0] else None,
            "t_last": float(self.ts[-1]) if self.ts.shape[0] else None,
            "points": int(self.ts.shape[0]),
            "blow_up": None if self.blow_up is None else self.blow_up.to_dict(),
            "final": {
                "mean": np.asarray(final.mean).tolist(),
                "eigenvalues": _eigenvalues(final).tolist(),
                "rank": final.rank,
            },
            "error_estimate": None if self.error_estimate is None else float(self.error_estimate),
            "stats": {key: int(np.asarray(value)) for key, value in self.stats.items()},
        }

    @property
    def cause(self) -> str:
        """Why the integrator stopped, in words (host only)."""
        return Status.IN_WORDS[int(self.stats["status"])]


def _eigenvalues(gaussian: Gaussian) -> np.ndarray:
    return np.sort(np.linalg.svd(np.asarray(gaussian.factor, dtype=np.float64), compute_uv=False) ** 2)[::-1]


def summary(trajectory: Trajectory) -> str:
    """A few aligned lines on a single concrete trajectory; shapes for anything else."""
    if trajectory.ts.ndim != 1 or not is_concrete(trajectory.ts, trajectory.means):
        return f"Trajectory(ts {trajectory.ts.shape}, means {trajectory.means.shape}, method {trajectory.method})"
    final = trajectory.final
    rows = [("outcome", outcome_label(trajectory.outcome))]
    if bool(trajectory.outcome == Outcome.FAILED):
        rows.append(("cause", trajectory.cause))
    if trajectory.blow_up is not None:
        rows.append(("blow-up", str(trajectory.blow_up).removeprefix("blow-up at ")))
    if trajectory.ts.shape[0]:
        rows.append(
            ("time", f"{float(trajectory.ts[0]):g} to {float(trajectory.ts[-1]):.10g}, {len(trajectory.ts)} points")
        )
    rows.append(("final mean", in_short(np.asarray(final.mean))))
    rows.append(("eigenvalues", in_short(_eigenvalues(final)) or "none: a point"))
    rows.append(("method", f"{trajectory.method}, {int(trajectory.stats['steps'])} steps"))
    if trajectory.error_estimate is not None:
        rows.append(("error", f"about {float(trajectory.error_estimate):.1e} relative"))
    head = f"Trajectory in dimension {final.dim}, rank {final.rank}"
    return "\n".join([head, *(f"  {name:<12} {text}" for name, text in rows)])


def in_short(values: np.ndarray, most: int = 6) -> str:
    """The first numbers of a vector, to five digits."""
    shown = "  ".join(f"{v:.5g}" for v in values[:most])
    return shown + (f"  ... ({len(values)} in all)" if len(values) > most else "")


@eqx.filter_jit
def _evaluate(trajectory: Trajectory, t: Array, sign: Array) -> Gaussian:
    def at(time):
        earlier = trajectory.valid & (sign * (trajectory.ts - time) <= 0)
        nearest = jnp.maximum(jnp.sum(earlier) - 1, 0)
        return trajectory.restart(trajectory[nearest], trajectory.ts[nearest], time)

    return at(t) if t.ndim == 0 else jax.vmap(at)(t)
