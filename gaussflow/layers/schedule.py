"""Layers as functions of time: constant, piecewise constant, or any function."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gaussflow.arrays import as_real_array, is_concrete, shape_in_words
from gaussflow.errors import InvalidInput
from gaussflow.gaussian import assembled
from gaussflow.layers.field import MeanFieldLayer
from gaussflow.layers.stacking import stack


class Schedule(eqx.Module):
    """A layer for every time, in pieces between ``edges``; integrators restart at every edge, never step across one."""

    @property
    @abc.abstractmethod
    def edges(self) -> Float[Array, " pieces+1"]:
        """Increasing times e₀ < … < e_K: piece k acts on [e_k, e_{k+1}]. The ends may be infinite."""

    @abc.abstractmethod
    def layer_in_piece(self, piece: Any, t: Any) -> MeanFieldLayer:
        """The layer at time t of piece number ``piece`` (so that both one-sided values exist at an edge)."""

    @property
    def dim(self) -> int | None:
        return self(0.5 * (jnp.maximum(self.edges[0], -1.0) + jnp.minimum(self.edges[-1], 1.0))).dim

    @property
    def pieces(self) -> int:
        return self.edges.shape[-1] - 1

    def __call__(self, t: Any) -> MeanFieldLayer:
        """The layer at time t (the later one at an edge)."""
        if self.pieces == 1:
            return self.layer_in_piece(0, t)
        return self.layer_in_piece(jnp.searchsorted(self.edges[1:-1], jnp.asarray(t), side="right"), t)


class Constant(Schedule):
    """One layer for all time."""

    layer: MeanFieldLayer

    @property
    def edges(self) -> Array:
        return jnp.asarray([-jnp.inf, jnp.inf])

    @property
    def dim(self) -> int | None:
        return self.layer.dim

    def layer_in_piece(self, piece: Any, t: Any) -> MeanFieldLayer:
        return self.layer


class PiecewiseConstant(Schedule):
    """Layer k acts from ``times[k]`` to ``times[k + 1]``.

    Parameters
    ----------
    times:
        increasing. With as many times as layers the last layer acts for ever; with one more, the schedule ends there
        and simulating past its end is an error.
    layers:
        the layers, all of one kind; scalars are broadcast where another piece has a matrix.
    """

    times: Float[Array, " k"]
    layers: MeanFieldLayer
    count: int = eqx.field(static=True)

    def __init__(self, times: Any, layers: Any):
        if not isinstance(layers, Iterable):
            raise InvalidInput("layers", got=f"one {type(layers).__name__}", wanted="a list of layers")
        layers = list(layers)
        if not layers:
            raise InvalidInput("layers", got="no layer", wanted="at least one")
        for layer in layers:
            if not isinstance(layer, MeanFieldLayer):
                raise InvalidInput("layers", got=f"a list with a {type(layer).__name__}", wanted="a list of layers")
        self.times = as_real_array(times, "times")
        self.count = len(layers)
        if self.times.ndim != 1 or self.times.shape[0] not in (len(layers), len(layers) + 1):
            raise InvalidInput(
                "times",
                got=f"{shape_in_words(self.times.shape)} for {len(layers)} layers",
                wanted=f"{len(layers)} starting times, or {len(layers) + 1} to include the end",
            )
        if is_concrete(self.times) and np.any(np.diff(np.asarray(self.times)) <= 0):
            raise InvalidInput("times", got="times that do not increase", wanted="strictly increasing times")
        self.layers = stack(layers)

    @property
    def dim(self) -> int | None:
        return self.layer_in_piece(0, 0.0).dim

    @property
    def edges(self) -> Array:
        if self.times.shape[-1] == self.count:
            return jnp.append(self.times, jnp.inf)
        return self.times

    def layer_in_piece(self, piece: Any, t: Any) -> MeanFieldLayer:
        return jax.tree_util.tree_map(lambda x: x[piece], self.layers)


class _Structure(eqx.Module):
    """A bare Python function as part of the structure of a pytree: equal only to itself, and no leaf."""

    function: Callable[[Any], Any] = eqx.field(static=True)

    def __call__(self, t: Any) -> Any:
        return self.function(t)


class TimeVarying(Schedule):
    """Any function of time.

    Parameters
    ----------
    function:
        t ↦ layer, written in JAX; smooth between ``jumps``. A callable ``equinox.Module`` (or any other pytree) keeps
        its arrays as leaves, for ``jit`` and ``grad``; a bare function is part of the structure.
    jumps:
        increasing times at which the layer jumps; the integrator restarts there.

    Raises
    ------
    InvalidInput
        if ``function`` does not return a layer or cannot be traced by JAX, or if ``jumps`` do not increase.
    """

    function: Callable[[Any], MeanFieldLayer]
    jumps: Float[Array, " k"]

    def __init__(self, function: Any, jumps: Any = ()):
        if not callable(function):
            raise InvalidInput("function", got=type(function).__name__, wanted="a function of time returning a layer")
        bare = jax.tree_util.all_leaves([function])
        self.function = _Structure(function) if bare else function
        self.jumps = as_real_array(jumps, "jumps")
        if self.jumps.ndim != 1:
            raise InvalidInput("jumps", got=shape_in_words(self.jumps.shape), wanted="a list of times")
        if is_concrete(self.jumps) and np.any(np.diff(np.asarray(self.jumps)) <= 0):
            raise InvalidInput("jumps", got="times that do not increase", wanted="strictly increasing times")
        layer = self._shape()
        if not isinstance(layer, MeanFieldLayer):
            raise InvalidInput(
                "function", got=f"one that returns {type(layer).__name__}", wanted="one returning a layer"
            )

    def _shape(self) -> Any:
        """What the function returns, without its numbers."""
        try:
            return eqx.filter_eval_shape(self.function, jnp.zeros((), self.jumps.dtype))
        except jax.errors.ConcretizationTypeError:
            raise InvalidInput(
                "function",
                got="one that looks at the value of t",
                wanted="one that JAX can trace",
                fix="use jax.numpy.where, or PiecewiseConstant for jumps",
            ) from None

    @property
    def edges(self) -> Array:
        infinity = jnp.asarray([jnp.inf], self.jumps.dtype)
        return jnp.concatenate([-infinity, self.jumps, infinity])

    @property
    def dim(self) -> int | None:
        return self._shape().dim

    def layer_in_piece(self, piece: Any, t: Any) -> MeanFieldLayer:
        return self.function(t)


def as_schedule(layer: Any) -> Schedule:
    """A layer, a schedule, or a bare function of time, as a schedule; anything else raises :class:`InvalidInput`."""
    if isinstance(layer, Schedule):
        return layer
    if isinstance(layer, MeanFieldLayer):
        return assembled(Constant, layer=layer)
    if callable(layer):
        return TimeVarying(layer)
    raise InvalidInput(
        "parameters", got=type(layer).__name__, wanted="Parameters, a layer, a schedule, or a function of time"
    )
