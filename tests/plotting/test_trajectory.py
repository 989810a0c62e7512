"""What the plots show: the right numbers, labelled, and nothing that is only rounding."""

import equinox as eqx
import matplotlib
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import gaussflow as gf
from gaussflow import plotting

from ..systems.hand_made import growing, shrinking, trajectory

matplotlib.use("Agg")
PLOTS = (plotting.plot_eigenvalues, plotting.plot_means, plotting.plot_log_det, plotting.plot_ellipses)


def new_axes():
    return Figure(layout="constrained").subplots()


def drawn(ax):
    """The y values of the curves along time, (curves, n), without markers of single times."""
    return np.array([line.get_ydata() for line in ax.lines if len(line.get_ydata()) > 2])


def visible_text(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
@pytest.mark.parametrize("make", [shrinking, growing, lambda: shrinking(3, 1), lambda: shrinking(1, 1)])
def test_every_plot_takes_and_returns_labelled_axes(plot, make):
    ax = new_axes()
    assert plot(make(), ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    ax.figure.canvas.draw()


def test_eigenvalues_are_those_of_the_covariance_from_either_form():
    t = shrinking(3)
    expected = np.linalg.eigvalsh(np.asarray(t.covariances))[:, ::-1].T
    ax = plotting.plot_eigenvalues(t, new_axes())
    assert ax.get_yscale() == "log"
    assert np.allclose(drawn(ax), expected, rtol=1e-12, atol=0)
    same = plotting.plot_eigenvalues(trajectory(t.ts, t.means, factors=t.factors), new_axes())
    assert np.allclose(drawn(same), expected, rtol=1e-9, atol=0)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [rf"$\lambda_{{{i}}}$" for i in (1, 2, 3)]
    assert len({(line.get_color(), str(line.get_linestyle())) for line in ax.lines}) == 3


def test_zero_eigenvalues_are_not_drawn_at_the_level_of_rounding():
    thin = shrinking(4, 2)
    for t in (thin, trajectory(thin.ts, thin.means, covariances=thin.covariances)):
        ax = plotting.plot_eigenvalues(t, new_axes())
        assert drawn(ax).shape == (2, 30)
        assert ax.get_title() == "rank 2 of 4"
        assert ax.get_ylim()[0] > 1e-6
        log_det = plotting.plot_log_det(t, new_axes())
        expected = np.sum(np.log(np.linalg.eigvalsh(np.asarray(t.covariances))[:, 2:]), axis=1)
        assert np.allclose(drawn(log_det)[0], expected, rtol=0, atol=1e-9)
        assert "pseudo-determinant" in log_det.get_ylabel()


def test_a_factor_with_dependent_columns_has_the_rank_of_its_numbers():
    ts = np.linspace(0.0, 1.0, 5)
    factors = np.tile(np.array([[1.0, 1.0], [0.1, 0.1], [0.3, 0.3]]), (5, 1, 1))
    ax = plotting.plot_eigenvalues(trajectory(ts, np.zeros((5, 3)), factors=factors), new_axes())
    assert ax.get_title() == "rank 1 of 3"


def test_log_det_of_a_definite_covariance():
    t = shrinking(3)
    ax = plotting.plot_log_det(t, new_axes())
    assert np.allclose(drawn(ax)[0], np.linalg.slogdet(np.asarray(t.covariances))[1], rtol=0, atol=1e-12)


def test_log_det_stops_where_an_eigenvalue_drowns_in_rounding():
    ts = np.linspace(0.0, 1.0, 11)
    covariances = np.stack([np.diag([1.0, 10.0 ** (-20 * t)]) for t in ts])
    t = trajectory(ts, np.zeros((11, 2)), covariances=covariances)
    ax = plotting.plot_log_det(t, new_axes())
    assert ax.get_title() == "until an eigenvalue drowns in rounding"
    curve = drawn(ax)[0]
    assert np.allclose(curve[:7], -20 * ts[:7] * np.log(10), rtol=1e-12, atol=1e-12)
    assert np.isnan(curve[-2:]).all()
    assert ax.get_xlim()[1] > 1.0


def test_means():
    t = shrinking(2)
    assert np.array_equal(drawn(plotting.plot_means(t, new_axes())), np.asarray(t.means).T)


@pytest.mark.parametrize("plot", PLOTS[:3], ids=lambda plot: plot.__name__)
def test_a_blow_up_is_marked_and_labelled(plot):
    ax = plot(growing(), new_axes())
    marks = [line for line in ax.lines if len(line.get_xdata()) == 2]
    assert [list(line.get_xdata()) for line in marks] == [[1.0, 1.0]]
    assert visible_text(ax) == ["blow-up\n$t^* = 1$"]
    assert ax.get_xlim()[0] < 0.0 < 1.0 < ax.get_xlim()[1]


def test_means_that_run_away_get_a_symmetric_logarithmic_axis():
    assert plotting.plot_means(growing(), new_axes()).get_yscale() == "symlog"
    assert plotting.plot_means(shrinking(), new_axes()).get_yscale() == "linear"


def ellipses(ax):
    return next(c for c in ax.collections if isinstance(c, LineCollection)).get_segments()


def test_ellipses_have_the_shape_of_the_covariance():
    t = shrinking(2)
    ax = plotting.plot_ellipses(t, new_axes(), count=5, deviations=1.5)
    curves = ellipses(ax)
    assert len(curves) == 5
    for curve, index in ((curves[0], 0), (curves[-1], -1)):
        away = curve - np.asarray(t.means)[index]
        distance = np.einsum("ni,ij,nj->n", away, np.linalg.inv(np.asarray(t.covariances)[index]), away)
        assert np.allclose(distance, 1.5**2, rtol=1e-9, atol=0)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$x_1$", "$x_2$")
    assert ax.get_aspect() == 1.0


def test_above_dimension_two_the_axes_are_principal_directions_and_say_so():
    ts = np.linspace(0.0, 1.0, 6)
    covariance = np.diag([0.1, 6.0, 0.5, 3.0])
    t = trajectory(ts, np.ones((6, 4)), covariances=np.tile(covariance, (6, 1, 1)))
    for same in (t, trajectory(ts, np.ones((6, 4)), factors=np.tile(np.sqrt(covariance), (6, 1, 1)))):
        ax = plotting.plot_ellipses(same, new_axes(), deviations=1.0)
        assert ax.get_xlabel() == "first principal direction (62% of variance)"
        assert ax.get_ylabel() == "second principal direction (31%)"
        size = np.ptp(ellipses(ax)[0], axis=0)
        assert np.allclose(size, 2 * np.sqrt([6.0, 3.0]), rtol=1e-3, atol=0)
        assert np.allclose(ellipses(ax)[0].mean(axis=0), [1.0, 1.0], rtol=0, atol=0.05)


def test_in_dimension_one_a_band_around_the_mean():
    ts = np.linspace(0.0, 1.0, 6)
    t = trajectory(ts, 3.0 * np.ones((6, 1)), covariances=np.full((6, 1, 1), 0.25))
    ax = plotting.plot_ellipses(t, new_axes())
    assert ax.get_ylabel() == "mean ± 2 standard deviations"
    band = ax.collections[0].get_paths()[0].vertices
    assert np.isclose(band[:, 1].min(), 2.0, rtol=1e-12)
    assert np.isclose(band[:, 1].max(), 4.0, rtol=1e-12)


def test_before_a_blow_up_only_ellipses_of_comparable_size_are_drawn():
    t = growing()
    ax = plotting.plot_ellipses(t, new_axes())
    assert np.max(np.abs(np.concatenate(ellipses(ax)))) < 0.25 * float(t.means[-1, 0])


def test_backward_time_one_state_and_a_point():
    forward = shrinking(2)
    backward = trajectory(forward.ts[::-1], forward.means, covariances=forward.covariances)
    single = trajectory([1.0], [[0.0, 1.0]], covariances=[np.eye(2)])
    point = trajectory(forward.ts, forward.means, factors=np.zeros((30, 2, 0)))
    for t in (backward, single, point):
        figure = plotting.plot_trajectory(t)
        figure.canvas.draw()
    assert visible_text(figure.axes[0]) == ["a point: no covariance"]
    assert figure.axes[0].get_title() == "rank 0 of 2"


@pytest.mark.parametrize("make", [lambda: shrinking(100), lambda: shrinking(100, 30), lambda: shrinking(12)])
def test_many_dimensions_have_no_endless_legend(make):
    t = make()
    figure = plotting.plot_trajectory(t)
    figure.canvas.draw()
    for ax in figure.axes:
        assert ax.get_legend() is None or len(ax.get_legend().get_texts()) <= 3
        assert len(ax.lines) <= 24
    assert "12 eigenvalues" in figure.axes[0].get_title() or t.means.shape[1] == 100


def test_the_overview_leaves_pyplot_alone(tmp_path):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figure = plotting.plot_trajectory(growing(), title="a title")
    figure.savefig(tmp_path / "overview.png")
    assert plt.get_fignums() == before
    assert figure.get_suptitle() == "a title"
    assert len(figure.axes) == 5  # four plots and the bar of times
    assert (tmp_path / "overview.png").stat().st_size > 10_000


def test_without_axes_one_is_made():
    import matplotlib.pyplot as plt

    ax = plotting.plot_means(shrinking())
    assert ax.figure.number in plt.get_fignums()
    plt.close(ax.figure)


def test_a_batch_or_nothing_is_refused():
    t = shrinking(2, 2)
    parts = lambda t: (t.ts, t.means, t.saved_factors, t.valid)
    empty = eqx.tree_at(parts, t, tuple(x[:0] for x in parts(t)))
    batch = eqx.tree_at(parts, t, tuple(x[None] for x in parts(t)))
    with pytest.raises(gf.InvalidInput, match=r"^trajectory: got no saved state; wanted at least one"):
        plotting.plot_means(empty, new_axes())
    with pytest.raises(gf.InvalidInput, match=r"^trajectory: got a batch of shape \(1,\); wanted one trajectory"):
        plotting.plot_eigenvalues(batch, new_axes())
