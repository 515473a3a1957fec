"""Plain PyTorch implementations: what each op means, and what all others are tested against."""
