"""LATENT: records randomised bit by bit before they leave their owner (docs/privacy-model.md section 6)."""
