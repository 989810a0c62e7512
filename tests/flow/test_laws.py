"""Laws every solution obeys (theory, section 2), as properties over random problems in general position."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gaussflow as gf
from tests.systems.random_problems import draw, relative, right_hand_side, solve_with_scipy

SHAPES = [(2, 2), (5, 5), (5, 2)]
seeds = st.integers(0, 10_000)
shapes = st.sampled_from(SHAPES)
END = 0.3


def run(p, g, *, t0=0.0, t1=END, **options):
    return gf.simulate(p, g, t0=t0, t1=t1, **({"points": 5, "rtol": 1e-11} | options))


def linear_map(seed, d):
    return np.eye(d) + 0.4 * np.random.default_rng(seed + 77).normal(size=(d, d)) / np.sqrt(d)


@given(seed=seeds, shape=shapes, method=st.sampled_from(["covariance", "factor"]))
def test_symmetry_definiteness_and_rank(seed, shape, method):
    p, g = draw(seed, *shape)
    trajectory = run(p, g, method=method)
    assert trajectory.outcome == gf.Outcome.COMPLETED
    covariances = np.asarray(trajectory.covariances)
    assert np.array_equal(covariances, np.swapaxes(covariances, 1, 2))  # exactly, not nearly
    lowest = np.linalg.eigvalsh(covariances)[:, 0]
    assert np.all(lowest > -1e-9 * np.trace(covariances, axis1=1, axis2=2))
    if method == "factor":
        assert trajectory.final.numerical_rank() == shape[1]
        assert trajectory.final.rank == shape[1]


@given(seed=seeds, shape=shapes)
def test_against_scipy(seed, shape):
    p, g = draw(seed, *shape)
    trajectory = run(p, g)
    means, covariances = solve_with_scipy(p, g, trajectory.ts)
    assert relative(trajectory.means, means) < 1e-9
    assert relative(trajectory.covariances, covariances) < 1e-9


@given(seed=seeds)
def test_heads_against_scipy(seed):
    p, g = draw(seed, 3, heads=2)
    trajectory = run(p, g)
    means, covariances = solve_with_scipy(p, g, trajectory.ts)
    assert relative(trajectory.means, means) < 1e-9
    assert relative(trajectory.covariances, covariances) < 1e-9


@given(seed=seeds, shape=shapes)
def test_congruence_and_log_det(seed, shape):
    """Σ(t) = ΦΣ₀Φᵀ with Φ' = MΦ: here through (log det Σ)' = 2 tr A + 2 tr BVΣ on the range, by quadrature."""
    p, g = draw(seed, *shape)
    trajectory = run(p, g, points=201)
    covariances = np.asarray(trajectory.covariances)
    if shape[0] == shape[1]:
        slope = 2 * np.trace(np.asarray(p.A)) + 2 * np.einsum("ij,jk,nki->n", p.B, p.V, covariances)
        from scipy.integrate import simpson

        change = np.linalg.slogdet(covariances[-1])[1] - np.linalg.slogdet(covariances[0])[1]
        assert abs(change - simpson(slope, x=np.asarray(trajectory.ts))) < 1e-6
    else:
        # Kernel directions of Σ₀ᵀ are carried along: the range of Σ(t) is Φ times that of Σ₀, of the same dimension.
        values = np.linalg.eigvalsh(covariances[-1])
        assert np.all(values[: shape[0] - shape[1]] < 1e-12 * values[-1])
        assert np.all(values[shape[0] - shape[1] :] > 1e-9 * values[-1])


@given(seed=seeds, shape=shapes, share=st.floats(0.1, 0.9))
def test_flow_composition(seed, shape, share):
    p, g = draw(seed, *shape)
    middle = run(p, g, t1=share * END).final
    composed = run(p, middle, t0=share * END).final
    whole = run(p, g).final
    assert relative(composed.covariance, whole.covariance) < 1e-9
    assert relative(composed.mean, whole.mean) < 1e-9


@given(seed=seeds, shape=shapes)
def test_time_reversal(seed, shape):
    p, g = draw(seed, *shape)
    there = run(p, g).final
    back = run(p, there, t0=END, t1=0.0).final
    assert relative(back.covariance, g.covariance) < 1e-8
    assert relative(back.mean, g.mean) < 1e-8
    # The same by (A, V, b) → (−A, −V, −b) forward in time.
    mirrored = gf.Parameters(A=-p.A, B=p.B, V=-p.V, b=-p.b)
    again = run(mirrored, there).final
    assert relative(again.covariance, g.covariance) < 1e-8
    assert relative(again.mean, g.mean) < 1e-8


@given(seed=seeds, shape=shapes)
def test_change_of_coordinates(seed, shape):
    p, g = draw(seed, *shape)
    T = linear_map(seed, shape[0])
    inverse = np.linalg.inv(T)
    moved = gf.Parameters(A=T @ p.A @ inverse, V=T @ p.V @ inverse, B=inverse.T @ p.B @ inverse, b=T @ p.b)
    start = gf.Gaussian.from_factor(T @ g.mean, T @ g.factor)
    one, other = run(p, g).final, run(moved, start).final
    assert relative(other.covariance, T @ np.asarray(one.covariance) @ T.T) < 1e-8
    assert relative(other.mean, T @ np.asarray(one.mean)) < 1e-8


@given(seed=seeds, shape=shapes, scale=st.sampled_from([1e-9, 1e-3, 1e5, 1e9]))
def test_units_do_not_matter(seed, shape, scale):
    """Tokens in other units: x → cx, B → B / c², b → cb; tolerances are relative, so the digits are the same."""
    p, g = draw(seed, *shape)
    scaled = gf.Parameters(A=p.A, V=p.V, B=p.B / scale**2, b=scale * p.b)
    start = gf.Gaussian.from_factor(scale * g.mean, scale * g.factor)
    one, other = run(p, g), run(scaled, start)
    assert int(one.stats["steps"]) == int(other.stats["steps"])
    assert relative(other.final.covariance / scale**2, one.final.covariance) < 1e-10


@given(seed=seeds, epsilon=st.sampled_from([-2.0, 0.25, 3.0]))
def test_gauge(seed, epsilon):
    """(B, V) → (εB, V/ε) leaves the covariance flow unchanged."""
    p, g = draw(seed, 5, 5)
    other = gf.Parameters(A=p.A, B=epsilon * p.B, V=p.V / epsilon, b=p.b)
    assert relative(run(other, g).final.covariance, run(p, g).final.covariance) < 1e-9


@pytest.mark.parametrize("form", ["covariance", "factor"])
def test_velocity_of_the_forms_is_the_system(form):
    """The right-hand side itself, against the paper's equations written out in numpy."""
    from gaussflow.flow.forms import FORMS

    p, g = draw(3, 5, 5, heads=2)
    state = FORMS[form].pack(g.mean, g.factor)
    rate = np.asarray(FORMS[form].rate(p, state))
    expected = right_hand_side(p)(0.0, np.concatenate([np.asarray(g.covariance).ravel(), np.asarray(g.mean)]))
    assert np.allclose(rate[:, -1], expected[-5:], rtol=1e-12)
    covariance_rate = rate[:, :-1]
    if form == "factor":
        covariance_rate = covariance_rate @ np.asarray(g.factor).T
        covariance_rate = covariance_rate + covariance_rate.T
    assert np.allclose(covariance_rate, expected[:-5].reshape(5, 5), rtol=1e-12, atol=1e-13)
    assert jnp.isfinite(rate).all()
