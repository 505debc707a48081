"""What every test shares."""

from hypothesis import HealthCheck, settings

# Deadlines and slow generation measure the machine, not Esper. Derandomized, so that a red run
# can be run again; the soaks look for new examples.
settings.register_profile(
    "esper", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("esper")
