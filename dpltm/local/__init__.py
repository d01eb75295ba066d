"""LATENT: records randomised bit by bit before they leave their owner (PRIVACY.md section 6)."""
