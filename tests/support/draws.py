"""How property tests draw: the same examples in every run with one version of Hypothesis, and as long as they take.

A test gives `SAME_EVERYWHERE` to Hypothesis, with the number of its examples: `@settings(SAME_EVERYWHERE,
max_examples=40)`. `@seed(1)` draws others.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

SAME_EVERYWHERE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Hypothesis also tries the constants of the local modules that are loaded. Which ones are depends on the tests that ran
# before in the same process, and there is no setting for it.
assert hasattr(providers, "is_local_module_file")
providers.is_local_module_file = lambda path: False
# A random.Random whose choices Hypothesis makes, independent of each other, and shrinks towards the smallest numbers.
# Strategies within a strategy are not independent: to find coincidences, Hypothesis makes four of five draws by copying
# one part of an earlier draw over another part.
CHOICES = st.randoms(use_true_random=False)
