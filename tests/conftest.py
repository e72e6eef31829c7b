"""Shapes in the types are checked at run time under test."""

import os

os.environ.setdefault("MUJOCO_GL", "egl")

from jaxtyping import install_import_hook

install_import_hook("neubay", "beartype.beartype")
