"""Settings that all tests share."""

from hypothesis import settings

# A slow or busy machine is no failure: what must be fast is measured by the benchmarks.
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")
