"""The training loop, on Lightning. Needs the extra `train`."""
