"""Plots: every one takes and returns ``ax``; matplotlib is imported when the first is drawn."""

from gaussflow.plotting.trajectory import plot_eigenvalues as plot_eigenvalues
from gaussflow.plotting.trajectory import plot_ellipses as plot_ellipses
from gaussflow.plotting.trajectory import plot_log_det as plot_log_det
from gaussflow.plotting.trajectory import plot_means as plot_means
from gaussflow.plotting.trajectory import plot_trajectory as plot_trajectory
