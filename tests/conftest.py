"""Double precision for every test; hypothesis without deadlines, since a first call compiles."""

import hypothesis
import jax

jax.config.update("jax_enable_x64", True)
hypothesis.settings.register_profile("gaussflow", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("gaussflow")
