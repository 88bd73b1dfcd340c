"""Classification of MNIST-scale (Table 1)."""
