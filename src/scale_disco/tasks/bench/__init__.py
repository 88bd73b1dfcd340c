"""Cost of layers and networks, and the command `disco bench`."""
