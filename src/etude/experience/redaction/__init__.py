"""What must not be stored, found in linear time: one module per family of findings."""
