"""The result of an integration: states in time, how it ended, and the blow-up if there was one."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from gaussflow.arrays import is_concrete
from gaussflow.errors import InvalidInput
from gaussflow.flow.run import Status
from gaussflow.gaussian import Gaussian
from gaussflow.linalg import gram, psd_sqrt


class Outcome(eqx.Enumeration):
    """How a simulation ended; compare with ``==``, print with :meth:`Outcome.label`."""

    COMPLETED = "completed"
    BLOW_UP = "blow-up"
    FAILED = "failed"


def outcome_label(outcome: Any) -> str:
    """The outcome in words; for a batch, a count of each kind."""
    values = np.atleast_1d(np.asarray(outcome._value))
    names = [Outcome[item] for item in (Outcome.COMPLETED, Outcome.BLOW_UP, Outcome.FAILED)]
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
        the limit of L / ‖L‖ as t → t*, shape (d, r): Σ / tr Σ tends to its Gram matrix.
    found:
        whether there is a blow-up before the end; always true where code outside ``jit`` and ``vmap`` sees one.
    """

    time: Float[Array, "*batch"]
    error: Float[Array, "*batch"]
    factor: Float[Array, "*batch d r"]
    found: Bool[Array, "*batch"]

    @property
    def directions(self) -> np.ndarray:
        """Orthonormal columns, shape (d, k), spanning the part of the space in which Σ blows up (host only)."""
        left, values, _ = np.linalg.svd(np.asarray(self.factor, dtype=np.float64), full_matrices=False)
        # Directions that stay bounded have shrunk to e^-20 by the time the flow stops; those that blow up are of order 1.
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
    error_estimate: Float[Array, "*batch"] | None = None
    restart: Any = None
    method: str = eqx.field(static=True, default="factor")
    rank: int = eqx.field(static=True, default=-1)

    @property
    def covariances(self) -> Float[Array, "*batch n d d"]:
        """Σ at the saved times, exactly symmetric."""
        return gram(self.saved_factors) if self.saved_covariances is None else self.saved_covariances

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
        """The last valid state."""
        last = jnp.maximum(jnp.sum(self.valid, axis=-1) - 1, 0)
        pick = lambda x: jnp.take_along_axis(x, last.reshape(last.shape + (1,) * (x.ndim - last.ndim)), last.ndim).squeeze(last.ndim)
        factor = psd_sqrt(pick(self.saved_covariances)) if self.saved_factors is None else pick(self.saved_factors)
        return _gaussian(pick(self.means), factor)

    def __getitem__(self, index: int) -> Gaussian:
        """The state at one saved time."""
        if self.saved_factors is None:
            return _gaussian(self.means[index], psd_sqrt(self.saved_covariances[index]))
        return _gaussian(self.means[index], self.saved_factors[index])

    @property
    def cause(self) -> str:
        """Why the integrator stopped, in words (host only)."""
        return Status.IN_WORDS[int(self.stats["status"])]


def _gaussian(mean, factor) -> Gaussian:
    gaussian = object.__new__(Gaussian)
    object.__setattr__(gaussian, "mean", mean)
    object.__setattr__(gaussian, "factor", factor)
    return gaussian
