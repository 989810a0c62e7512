"""Derivatives of final states and blow-up times: reverse and forward mode against finite differences and formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf

D, R = 3, 2
WEIGHT = np.arange(1.0, 10.0).reshape(3, 3) / 10


def problem():
    rng = np.random.default_rng(5)
    matrix = lambda: 0.6 * rng.normal(size=(D, D))
    return dict(A=matrix(), B=matrix(), V=matrix(), b=rng.normal(size=D), mean=rng.normal(size=D),
                factor=0.5 * rng.normal(size=(D, R)), t1=np.asarray(0.6))  # fmt: skip


def value(inputs, **options):
    p = gf.Parameters(A=inputs["A"], B=inputs["B"], V=inputs["V"], b=inputs["b"])
    g = gf.Gaussian.from_factor(inputs["mean"], inputs["factor"])
    final = gf.simulate(p, g, t1=inputs["t1"], points=3, rtol=1e-11, **options).final
    return jnp.sum(WEIGHT * final.covariance) + jnp.sum(jnp.sin(final.mean))


def finite_difference(function, inputs, name, index, h=1e-5):
    moved = lambda sign: {**inputs, name: inputs[name] + sign * h * (np.arange(inputs[name].size) == index).reshape(
        inputs[name].shape)}  # fmt: skip
    return (float(function(moved(1))) - float(function(moved(-1)))) / (2 * h)


@pytest.mark.parametrize("method", ["factor", "covariance"])
def test_reverse_mode_with_respect_to_everything(method):
    inputs = problem()
    gradient = jax.jit(jax.grad(lambda x: value(x, method=method)))(inputs)
    plain = jax.jit(lambda x: value(x, method=method))
    for name, array in inputs.items():
        for index in {0, array.size - 1}:
            expected = finite_difference(plain, inputs, name, index)
            assert abs(float(np.ravel(gradient[name])[index]) - expected) < 1e-6 * max(1.0, abs(expected)), name


def test_forward_mode_agrees():
    inputs = problem()
    forward = jax.jit(jax.jacfwd(lambda A: value({**inputs, "A": A}, method="factor", differentiate="forward")))
    plain = jax.jit(lambda x: value(x, method="factor"))
    jacobian = np.asarray(forward(inputs["A"]))
    for index in (0, 5):
        assert abs(jacobian.ravel()[index] - finite_difference(plain, inputs, "A", index)) < 1e-6


def test_exact_form():
    inputs = {**problem(), "V": np.asarray(-0.7)}
    gradient = jax.jit(jax.grad(lambda x: value(x, method="exact")))(inputs)
    plain = jax.jit(lambda x: value(x, method="exact"))
    for name, array in inputs.items():
        expected = finite_difference(plain, inputs, name, array.size - 1)
        assert abs(float(np.ravel(gradient[name])[-1]) - expected) < 1e-6 * max(1.0, abs(expected)), name


def blow_up(inputs, **options):
    p = gf.Parameters(A=inputs["A"], B=inputs["B"], V=inputs["V"])
    g = gf.Gaussian.from_factor(jnp.zeros(inputs["factor"].shape[0]), inputs["factor"])
    return gf.blow_up_time(p, g, horizon=20.0, rtol=1e-9, **options).time


def test_blow_up_time_of_a_general_problem():
    rng = np.random.default_rng(2)
    near = lambda: np.eye(D) + 0.2 * rng.normal(size=(D, D))
    inputs = dict(A=0.3 * rng.normal(size=(D, D)), B=near(), V=near(), factor=rng.normal(size=(D, R)))
    gradient = jax.jit(jax.grad(blow_up))(inputs)
    plain = jax.jit(blow_up)
    for name, array in inputs.items():
        for index in (0, array.size - 1):
            expected = finite_difference(plain, inputs, name, index, h=1e-4)
            assert abs(float(np.ravel(gradient[name])[index]) - expected) < 1e-6 * max(1.0, abs(expected)), name


@pytest.mark.parametrize("method", ["exact", "compactified"])
def test_blow_up_time_in_dimension_one(method):
    """t* = ln(1 + a/(cσ))/(2a): derivatives with respect to a and to σ, c = vb."""
    a, c, s = 0.7, 1.3, 0.9

    def time(a, v, s):
        p = gf.Parameters(A=a, B=1.0, V=v)
        return gf.blow_up_time(
            p, gf.Gaussian.from_factor(jnp.zeros(1), jnp.sqrt(s)[None, None]), 50.0, method=method
        ).time

    found = jax.jit(jax.grad(time, argnums=(0, 1, 2)))(a, c, s)
    x = a / (c * s)
    by_a = 1 / (2 * a * c * s * (1 + x)) - np.log1p(x) / (2 * a * a)
    by_size = -1 / (2 * c * s * (1 + x))  # with respect to ln c and to ln σ
    assert np.allclose(found, [by_a, by_size / c, by_size / s], rtol=1e-8)


def test_repeated_top_eigenvalue_is_averaged():
    """Σ = I blows up in every direction at once; the gradient with respect to a in A = aI is that of dimension one."""

    def time(a):
        p = gf.Parameters(A=a * jnp.eye(3), B=jnp.eye(3), V=1.0)
        return gf.blow_up_time(p, gf.Gaussian.from_factor(jnp.zeros(3), jnp.eye(3)), 50.0).time

    assert abs(float(jax.grad(time)(1.0)) - (0.25 - np.log(2) / 2)) < 1e-10


def test_no_blow_up_has_a_zero_gradient():
    def time(a, v):
        p = gf.Parameters(A=a, B=1.0, V=v)
        return gf.blow_up_time(p, gf.Gaussian.from_factor(jnp.zeros(2), jnp.eye(2)), 5.0).time

    assert np.array_equal(jax.grad(time, argnums=(0, 1))(0.5, -1.0), (0.0, 0.0))
