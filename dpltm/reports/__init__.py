"""What a person or a program is told about a run, a ticket set or a sweep: facts, gathered from values."""
