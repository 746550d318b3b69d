"""A reader of handwritten numbers: a network on arrays alone, trained with a gradient from ctcbind."""
