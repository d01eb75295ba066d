"""Reports on a run, a ticket set or a sweep, for a person or a program: facts, gathered from values."""
