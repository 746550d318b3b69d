"""A reader of ragged lines of text: a PyTorch network trained with gradients from ctcbind."""
