"""The bases of the paper compared by equivariance error, and the command `disco equivariance`."""
