"""What a layer does to a Gaussian."""
