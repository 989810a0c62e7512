"""Layers as functions of time: which layer acts when, and how schedules pass through JAX."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from gaussflow.layers.schedule import Constant, as_schedule

one, two, three = (gf.Parameters(A=c * np.eye(2)) for c in (1.0, 2.0, 3.0))
a = lambda layer: float(layer.A[0, 0])


@pytest.mark.parametrize("times", [[0.0, 1.0, 3.0], [0.0, 1.0, 3.0, 4.0]])
def test_piecewise_constant(times):
    schedule = gf.PiecewiseConstant(times, [one, two, three])
    assert schedule.pieces == 3
    assert schedule.dim == 2
    assert np.array_equal(schedule.edges, [0.0, 1.0, 3.0, 4.0 if len(times) == 4 else np.inf])
    values = {0.0: 1, 0.5: 1, 1.0: 2, 2.9: 2, 3.0: 3, 3.5: 3}  # the later one at an edge
    assert {t: a(schedule(t)) for t in values} == values
    assert [a(schedule.layer_in_piece(k, 1.0)) for k in range(3)] == [1, 2, 3]
    assert a(jax.jit(lambda s, t: s(t))(schedule, 1.0)) == 2


def test_scalars_beside_matrices_in_pieces():
    schedule = gf.PiecewiseConstant([0, 1], [gf.Parameters(A=2.0, V=-1.0), gf.Parameters(A=np.eye(2), V=-1.0)])
    assert np.array_equal(schedule(0.0).A, 2 * np.eye(2))
    assert schedule(0.0).V.shape == ()
    assert schedule.dim == 2


@pytest.mark.parametrize(
    ("times", "layers", "text"),
    [
        ([0.0], [], "layers: got no layer; wanted at least one"),
        ([0.0], one, "layers: got one Parameters; wanted a list of layers"),
        ([0.0], [np.eye(2)], "layers: got a list with a ndarray; wanted a list of layers"),
        ([0.0], [one, two], "times: got shape (1,) for 2 layers; wanted 2 starting times, or 3 to include the end"),
        ([0.0, 1.0, 2.0, 3.0], [one, two], "times: got shape (4,) for 2 layers"),
        (0.0, [one], "times: got a scalar for 1 layers"),
        ([1.0, 0.0], [one, two], "times: got times that do not increase; wanted strictly increasing times"),
        ([0.0, 0.0], [one, two], "times: got times that do not increase"),
        ([0.0, np.nan], [one, two], "times: got 1 NaN or infinite entry"),
        ([0, 1], [one, gf.AffineFeedForward(A=1.0)], "items: got a mixture of AffineFeedForward and Parameters"),
        ([0, 1], [one, gf.Parameters(A=np.eye(3))], "items: got dimensions [2, 3]"),
    ],
)
def test_refused_pieces(times, layers, text):
    with pytest.raises(gf.InvalidInput) as refusal:
        gf.PiecewiseConstant(times, layers)
    assert str(refusal.value).startswith(text)


def ramp(t):
    return gf.Parameters(A=t * jnp.eye(2))


class Slope(eqx.Module):
    """A function of time with an array inside."""

    rate: jax.Array

    def __call__(self, t):
        return gf.Parameters(A=self.rate * t * jnp.eye(2))


def test_time_varying_with_jumps():
    schedule = gf.TimeVarying(ramp, jumps=[1, 2])
    assert np.array_equal(schedule.edges, [-np.inf, 1.0, 2.0, np.inf])
    assert (schedule.pieces, schedule.dim) == (3, 2)
    assert a(schedule(1.5)) == 1.5
    assert gf.TimeVarying(ramp).pieces == 1
    # Both one-sided layers exist at a jump: a function may use the piece it is asked about only through t.
    assert a(schedule.layer_in_piece(0, 1.0)) == a(schedule.layer_in_piece(1, 1.0)) == 1.0


def test_a_bare_function_passes_through_jit_and_is_no_leaf():
    schedule = gf.TimeVarying(ramp, jumps=[1.0])
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(schedule))
    evaluate = jax.jit(lambda s, t: s(t).A[0, 0])
    assert float(evaluate(schedule, 0.5)) == 0.5
    assert float(eqx.filter_jit(lambda s, t: s(t).A[0, 0])(schedule, 0.25)) == 0.25
    count = evaluate._cache_size()
    evaluate(gf.TimeVarying(ramp, jumps=[2.0]), 0.5)  # the same function and shapes: no second compilation
    assert evaluate._cache_size() == count
    gradient = jax.grad(lambda s: s(0.5).A[0, 0] * s.jumps[0])(schedule)
    assert np.array_equal(gradient.jumps, [0.5])


def test_a_module_keeps_its_arrays_as_leaves():
    schedule = gf.TimeVarying(Slope(jnp.asarray(3.0)))
    gradient = jax.jit(jax.grad(lambda s: jnp.sum(s(0.5).A)))(schedule)
    assert float(gradient.function.rate) == 1.0
    batch = jax.vmap(lambda rate: gf.TimeVarying(Slope(rate)))(jnp.arange(3.0))
    assert np.array_equal(jax.vmap(lambda s: s(2.0).A[0, 0])(batch), [0.0, 2.0, 4.0])


def test_a_function_may_close_over_a_tracer():
    value = lambda rate: jnp.sum(gf.TimeVarying(lambda t: gf.Parameters(A=rate * t * jnp.eye(2)))(0.5).A)
    assert float(jax.jit(jax.grad(value))(3.0)) == 1.0


def looks_at_time(t):
    return one if t < 1 else two


@pytest.mark.parametrize(
    ("function", "jumps", "text"),
    [
        (np.eye(2), (), "function: got ndarray; wanted a function of time returning a layer"),
        (lambda t: t * np.eye(2), (), "function: got one that returns"),
        (looks_at_time, (), "function: got one that looks at the value of t; wanted one that JAX can trace; use"),
        (ramp, [2.0, 1.0], "jumps: got times that do not increase"),
        (ramp, 1.0, "jumps: got a scalar; wanted a list of times"),
        (ramp, [[1.0]], "jumps: got shape (1, 1); wanted a list of times"),
    ],
)
def test_refused_functions(function, jumps, text):
    with pytest.raises(gf.InvalidInput) as refusal:
        gf.TimeVarying(function, jumps)
    assert str(refusal.value).startswith(text)
    assert "\n" not in str(refusal.value)


def test_as_schedule():
    schedule = gf.PiecewiseConstant([0.0], [one])
    assert as_schedule(schedule) is schedule
    constant = as_schedule(one)
    assert isinstance(constant, Constant)
    assert np.array_equal(constant.edges, [-np.inf, np.inf])
    assert (constant.dim, constant.pieces, a(constant(7.0))) == (2, 1, 1.0)
    assert isinstance(as_schedule(ramp), gf.TimeVarying)
    for wrong in ({"A": 1.0}, np.eye(2), None):
        with pytest.raises(gf.InvalidInput, match=r"^parameters: got .*; wanted Parameters, a layer, a schedule, or"):
            as_schedule(wrong)
