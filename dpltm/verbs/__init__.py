"""The verbs: what a user asks for, each one module. ``dpltm`` has their functions; ``dpltm.cli`` calls the same ones."""
