"""Many problems as one: pytrees with a leading axis, for ``jax.vmap`` and batched runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from gaussflow.errors import InvalidInput
from gaussflow.gaussian import Gaussian
from gaussflow.layers.parameters import Parameters

Item = TypeVar("Item", bound=eqx.Module)


def stack(items: Sequence[Item]) -> Item:
    """One object with a leading axis from a list of Gaussians, or of layers of one kind.

    Ranks are padded with zero columns, scalars are broadcast to the matrices beside them, and missing heads are zero.
    The result is for ``jax.vmap`` and :func:`gaussflow.simulate_batch`.

    Raises :class:`gaussflow.errors.InvalidInput` for an empty list, mixed kinds, or different dimensions.
    """
    items = list(items)
    if not items:
        raise InvalidInput("items", got="an empty list", wanted="at least one item to stack")
    kinds = {type(item) for item in items}
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidInput("items", got=f"a mixture of {names}", wanted="items of one kind")
    dims: set[Any] = {getattr(item, "dim", None) for item in items} - {None}
    if len(dims) > 1:
        raise InvalidInput("items", got=f"dimensions {sorted(dims)}", wanted="one dimension for all items")
    if isinstance(items[0], Gaussian):
        items = _same_rank(items)
    elif isinstance(items[0], Parameters):
        items = _same_shapes(items, next(iter(dims), None))
    structures = {jax.tree_util.tree_structure(item) for item in items}
    shapes = {tuple(leaf.shape for leaf in jax.tree_util.tree_leaves(item)) for item in items}
    if len(structures) > 1 or len(shapes) > 1:
        raise InvalidInput("items", got="items with different shapes", wanted="the same shapes in every item")
    return jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *items)


def _same_rank(gaussians):
    rank = max(g.rank for g in gaussians)
    return [Gaussian(g.mean, factor=jnp.pad(g.factor, ((0, 0), (0, rank - g.rank)))) for g in gaussians]


def _same_shapes(layers, d):
    """Parameters with equal shapes: a scalar stays one only if it is one in every item."""
    heads = max(layer.heads for layer in layers)
    mixed = heads > 1 and any(layer.heads != heads for layer in layers)
    fields = {}
    for name in ("A", "B", "V"):
        arrays = [getattr(layer, name) for layer in layers]
        with_heads = name != "A" and (mixed or any(x.ndim == 3 for x in arrays))
        if with_heads or any(x.ndim > 0 for x in arrays):
            arrays = [x * jnp.eye(d, dtype=x.dtype) if x.ndim == 0 else x for x in arrays]
        if with_heads:  # a shared V acts in each of the item's own heads, and in none that is padding
            own = [layer.heads for layer in layers]
            arrays = [jnp.broadcast_to(x, (h, d, d)) for x, h in zip(arrays, own, strict=True)]
            arrays = [jnp.pad(x, ((0, heads - x.shape[0]), (0, 0), (0, 0))) for x in arrays]
        fields[name] = arrays
    biases = [layer.b for layer in layers]
    if any(b is not None for b in biases):
        biases = [jnp.zeros(d, fields["A"][0].dtype) if b is None else b for b in biases]
    return [
        Parameters(A=A, B=B, V=V, b=b) for A, B, V, b in zip(fields["A"], fields["B"], fields["V"], biases, strict=True)
    ]
