"""Few examples, the same ones each time: a failure here is a failure everywhere."""

from hypothesis import settings

settings.register_profile("glassformer", max_examples=10, deadline=None, derandomize=True)
settings.load_profile("glassformer")
