"""Training runs: options, the training loop, records, evaluation and tables."""
