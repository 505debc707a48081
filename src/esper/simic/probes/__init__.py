"""Probes: analytic models of growth in place of networks, to test a learner on."""
