"""Tasks built on the core: a folder each, with data, networks, training, evaluation and command."""
