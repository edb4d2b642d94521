"""Expectation propagation for probit classifiers with Gaussian process priors."""
