"""The scikit-learn face: ``TicketClassifier`` and ``TicketRegressor``."""
