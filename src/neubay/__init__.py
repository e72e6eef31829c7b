"""neubay: offline reinforcement learning without explicit conservatism."""

__version__ = "0.1.0"
