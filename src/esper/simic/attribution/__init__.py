"""Attribution: measures the contribution of each seed by ablations."""
