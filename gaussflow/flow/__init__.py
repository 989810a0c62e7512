"""The core integrator: Gaussians through layers, with blow-up told apart from failure."""
