"""Other packages' names for what this one has, for code that was written for them."""
